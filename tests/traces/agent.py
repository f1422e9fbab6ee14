"""An agent that the OpenTelemetry SDK traces, as the environment says; run by Phoenix's Python.

Everything that ties it to a trial is in the environment: OTEL_RESOURCE_ATTRIBUTES, TRACEPARENT
and the exporter's variables. Its spans leave one by one, the root last, LATE_S after the others.
"""

from __future__ import annotations

import os
import time

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator


def main() -> None:
    """Call a model, and end later."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    tracer = trace.get_tracer("agent", tracer_provider=provider)
    carrier = {"traceparent": os.environ.get("TRACEPARENT", "")}
    above = TraceContextTextMapPropagator().extract(carrier)
    tag = {"weirbox.run_id": os.environ["WEIRBOX_RUN_ID"]}
    with tracer.start_as_current_span("agent", context=above, attributes=tag):
        counts = {"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 1}
        with tracer.start_as_current_span(
            "chat", attributes={"gen_ai.operation.name": "chat", **counts, **tag}
        ):
            time.sleep(0.05)
        print("called", flush=True)
        time.sleep(float(os.environ.get("LATE_S", "0")))
    provider.shutdown()


if __name__ == "__main__":
    main()
