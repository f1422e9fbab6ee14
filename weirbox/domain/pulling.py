"""The protocol between the pipeline and the platforms that traces are pulled from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from weirbox.domain.platforms import SourceTrace
from weirbox.domain.trace import TraceEvent
from weirbox.domain.words import ProbeState, PullState


class Probe(NamedTuple):
    """What became of asking a platform; `message` says what is wrong."""

    state: ProbeState
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What a platform has of a trial's trace at this moment.

    Attributes:
        events: In order, with `at` counted from the first span's start.
        spans: How many spans there are; while it grows, the trace is still arriving.
        trace: Where it stands; the first one if there are several.
        missing: What a partial trace lacks, in words.
    """

    state: PullState
    events: tuple[TraceEvent, ...] = ()
    spans: int = 0
    trace: SourceTrace | None = None
    missing: str = ""


class TraceSource(Protocol):
    """A platform that traces are pulled from."""

    async def pull(self, correlation: str, trace_id: str) -> Pulled:
        """Look once for a trial's trace, by the one or the other as the suite says.

        Raises:
            TraceError: `transient` where asking again may help.
        """

    async def probe(self) -> Probe:
        """Ask whether it can be used, within ten seconds. Never raises."""

    async def aclose(self) -> None:
        """Close connections."""
