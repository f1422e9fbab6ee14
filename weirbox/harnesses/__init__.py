"""Harnesses: the system under test, as weirbox drives it."""

from __future__ import annotations

from weirbox.domain.seams import Harness, Workshop
from weirbox.domain.spec import (
    CommandHarness,
    ComputeSpec,
    HarnessSpec,
    HttpHarness,
    PythonHarness,
    RecordedHarness,
)
from weirbox.harnesses.command import Command
from weirbox.harnesses.http import Http
from weirbox.harnesses.python import Python
from weirbox.harnesses.recorded import Recorded


def build(spec: HarnessSpec, workshop: Workshop, *, compute_spec: ComputeSpec) -> Harness:
    """The harness a suite describes.

    Args:
        compute_spec: Where commands run: their secrets and default limits.

    Raises:
        SuiteError: When a function or recording that it names cannot be used.
    """
    match spec:
        case CommandHarness():
            return Command(spec, workshop, compute_spec)
        case HttpHarness():
            return Http(spec, workshop)
        case PythonHarness():
            return Python(spec, workshop)
        case RecordedHarness():
            return Recorded(spec, workshop)


__all__ = ["build"]
