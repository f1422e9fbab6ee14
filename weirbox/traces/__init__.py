"""Trace sources: the platforms that traces of the system under test are pulled from."""

from __future__ import annotations

from typing import assert_never

from weirbox.domain.pulling import TraceSource
from weirbox.domain.seams import Workshop
from weirbox.domain.tracing import (
    LangfuseSource,
    LangsmithSource,
    MlflowSource,
    OtelSource,
    PhoenixSource,
    TraceSpec,
)

__all__ = ["build"]


def build(spec: TraceSpec, workshop: Workshop) -> TraceSource:
    """The source that a suite describes; no secret is read and nothing opened yet."""
    source = spec.source
    match source:
        case OtelSource():
            from weirbox.traces.otel import Otel

            return Otel(spec, source, workshop)
        case MlflowSource():
            from weirbox.traces.mlflow import Mlflow

            return Mlflow(spec, source, workshop)
        case PhoenixSource():
            from weirbox.traces.phoenix import Phoenix

            return Phoenix(spec, source, workshop)
        case LangfuseSource():
            from weirbox.traces.langfuse import Langfuse

            return Langfuse(spec, source, workshop)
        case LangsmithSource():
            from weirbox.traces.langsmith import Langsmith

            return Langsmith(spec, source, workshop)
        case _:
            assert_never(source)
