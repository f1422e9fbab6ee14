"""The places that judged trials are sent to, and the one factory that makes them."""

from __future__ import annotations

from weirbox.domain.exporting import JsonlSink, ParquetSink, SinkSpec
from weirbox.domain.seams import Sink
from weirbox.sinks.folder import JsonlFolder
from weirbox.sinks.parquet import ParquetFolder

__all__ = ["build"]


def build(spec: SinkSpec) -> Sink:
    """Make the sink that a suite describes; nothing is written before its `set_up`."""
    match spec:
        case JsonlSink():
            return JsonlFolder(name=spec.name, path=spec.path)
        case ParquetSink():
            return ParquetFolder(name=spec.name, path=spec.path)
