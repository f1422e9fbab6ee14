"""The places that judged trials are sent to, and the one factory that makes them."""

from __future__ import annotations

from typing import assert_never

from weirbox.domain.exporting import (
    JsonlSink,
    LangfuseSink,
    LangsmithSink,
    MlflowSink,
    OtelSink,
    ParquetSink,
    PhoenixSink,
    SinkSpec,
)
from weirbox.domain.seams import ReadSecret, Sink

__all__ = ["build"]


def build(spec: SinkSpec, read_secret: ReadSecret) -> Sink:
    """Make the sink that a suite describes; nothing is written or read before its `set_up`.

    Args:
        read_secret: Asked with each request, and never before.
    """
    match spec:
        case JsonlSink():
            from weirbox.sinks.folder import JsonlFolder

            return JsonlFolder(name=spec.name, path=spec.path)
        case ParquetSink():
            from weirbox.sinks.parquet import ParquetFolder

            return ParquetFolder(name=spec.name, path=spec.path)
        case MlflowSink():
            from weirbox.sinks.mlflow import Mlflow

            return Mlflow(spec, read_secret)
        case PhoenixSink():
            from weirbox.sinks.phoenix import Phoenix

            return Phoenix(spec, read_secret)
        case LangfuseSink():
            from weirbox.sinks.langfuse import Langfuse

            return Langfuse(spec, read_secret)
        case LangsmithSink():
            from weirbox.sinks.langsmith import Langsmith

            return Langsmith(spec, read_secret)
        case OtelSink():
            from weirbox.sinks.otel import Otel

            return Otel(spec, read_secret)
        case _:
            assert_never(spec)
