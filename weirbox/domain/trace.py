"""Traces, snapshots and the observation that later stages work from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field, JsonValue

from weirbox.domain.base import Frozen
from weirbox.domain.given import GivenScore
from weirbox.domain.platforms import SourceTrace
from weirbox.domain.words import ErrorKind, EventKind


class Usage(Frozen):
    """Tokens and money of a call or a trial; None where it is unknown.

    Attributes:
        input_tokens: All input tokens, the cached ones included.
        cached_tokens: The part of `input_tokens` that was read from a cache.
        cache_write_tokens: The part of `input_tokens` that was written to a cache.
        output_tokens: Output tokens.
        cost_usd: In US dollars.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def total_tokens(self) -> int | None:
        """Input and output together; None when neither is known."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)


class TraceEvent(Frozen):
    """One event of a trial.

    Attributes:
        at: Seconds since the trial's execution began.
        duration: In seconds, where the event has one.
        parent: The index of the parent event in the trace.
    """

    kind: EventKind
    name: str = ""
    text: str = ""
    data: JsonValue = None
    at: float | None = None
    duration: float | None = None
    usage: Usage | None = None
    model: str | None = None
    parent: int | None = None


class SnapshotFile(Frozen):
    """One file that compute left behind, as text with undecodable bytes escaped."""

    path: str
    text: str
    truncated: bool = False


class Snapshot(Frozen):
    """What compute left behind."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    truncated: bool = False
    files: tuple[SnapshotFile, ...] = ()


class StageError(Frozen):
    """Why a stage of a trial failed, as a value."""

    kind: ErrorKind
    message: str
    detail: str = ""


class Observation(Frozen):
    """Everything the judge stage may look at, once compute is released.

    Attributes:
        output: The answer; text, or JSON where the harness gives JSON.
        duration: Seconds the harness took.
        correlation: The id the harness was given, the key of trace collection.
        source: Where the trace stands that was pulled from a platform.
        given: Scores that a recording brought along, for graders of kind given.
    """

    output: JsonValue = None
    snapshot: Snapshot = Snapshot()
    trace: tuple[TraceEvent, ...] = ()
    usage: Usage = Usage()
    model: str | None = None
    duration: float = 0.0
    correlation: str = ""
    error: StageError | None = None
    source: SourceTrace | None = None
    given: dict[str, GivenScore] = Field(default_factory=dict)


def total_usage(events: Iterable[TraceEvent]) -> Usage:
    """The sum over all events; a number that no event gives stays unknown."""
    totals: dict[str, Any] = {}
    for event in events:
        for name, value in event.usage or ():
            if value is not None:
                totals[name] = totals.get(name, 0) + value
    return Usage(**totals)


def last_model(events: Iterable[TraceEvent]) -> str | None:
    """The model of the last event that names one."""
    models = [event.model for event in events if event.model]
    return models[-1] if models else None
