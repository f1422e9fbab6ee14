"""What pulling from every platform has in common: the limits, the events, the link."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from weirbox.domain.platforms import SourceTrace
from weirbox.domain.pulling import Probe, Pulled
from weirbox.domain.trace import TraceEvent
from weirbox.domain.tracing import TraceSourceSpec, TraceSpec, parent_span_of
from weirbox.domain.words import Correlate, PullState
from weirbox.errors import TraceError
from weirbox.traces.http import Api, probe
from weirbox.traces.mapping import Standing, events_of, standing
from weirbox.traces.spans import Span

LOOKBACK = timedelta(days=7)
"""How old a trace may be where a platform searches a span of time."""

MOST_TRACES = 100
"""The most traces of one trial: more carry an attribute that is not the trial's own."""

MOST_SPANS = 100_000
"""The most spans of one trial; bounds memory."""

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,200}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a platform has of one trial.

    Attributes:
        trace_id, url: Of the first trace, as the platform has it.
        open: Whether the platform itself says that the trace goes on.
    """

    spans: Sequence[Span] = ()
    trace_id: str | None = None
    url: str | None = None
    open: bool = False


class Source(ABC):
    """A platform that traces are pulled from; pulling changes nothing, and is safe to repeat."""

    def __init__(self, spec: TraceSpec, source: TraceSourceSpec, api: Api) -> None:
        self._by_id = spec.correlate is Correlate.ID
        self._attribute = spec.attribute
        self._source = source
        self._api = api

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._api.base_url!r})"

    async def pull(self, correlation: str, trace_id: str) -> Pulled:
        """Look once for a trial's trace.

        Args:
            correlation: The trial's correlation id.
            trace_id: The trace id that the trial was given.

        Raises:
            TraceError: `transient` where asking again may help.
        """
        if not _PLAIN.fullmatch(correlation):
            raise TraceError(
                f"the correlation id {correlation!r} cannot be searched for: it has other "
                "characters than letters, digits, '.', '_' and '-'"
            )
        parent = parent_span_of(correlation)
        try:
            found = await (
                self._find_by_id(trace_id) if self._by_id else self._find_by_tag(correlation)
            )
            stands, events = await asyncio.to_thread(_told, found, parent)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise TraceError(
                f"{self._api.who} answers in a form that is not known: "
                f"{type(error).__name__}: {error}"
            ) from error
        return Pulled(
            state=stands.state,
            events=events,
            spans=len(found.spans),
            trace=self._place(found),
            missing=stands.missing,
        )

    async def probe(self) -> Probe:
        """Ask whether it can be used, within ten seconds. Never raises."""
        return await probe(self._knock)

    async def aclose(self) -> None:
        """Close connections."""
        await self._api.aclose()

    @abstractmethod
    async def _find_by_id(self, trace_id: str) -> Found:
        """The spans of one trace."""

    @abstractmethod
    async def _find_by_tag(self, correlation: str) -> Found:
        """The spans of all traces that carry the attribute."""

    @abstractmethod
    async def _knock(self) -> None:
        """Ask for something that needs the credentials and the scope. Raises `TraceError`."""

    def _place(self, found: Found) -> SourceTrace | None:
        if found.trace_id is None:
            return None
        return SourceTrace(
            platform=self._source.kind,
            base_url=self._source.url,
            scope=self._source.scope,
            trace_id=found.trace_id,
            url=found.url,
        )

    def _checked(self, traces: Iterable[str]) -> list[str]:
        """Ids of traces that carry the attribute, each once. Raises where they are too many."""
        known = list(dict.fromkeys(traces))
        if len(known) > MOST_TRACES:
            raise TraceError(
                f"{self._api.who}: more than {MOST_TRACES} traces have the same "
                f"{self._attribute!r}: give each trial's program its own, as "
                "OTEL_RESOURCE_ATTRIBUTES does"
            )
        return known

    def _room(self, spans: Sequence[object]) -> None:
        """Raises where a trial has too many spans."""
        if len(spans) > MOST_SPANS:
            raise TraceError(f"{self._api.who}: the trace has more than {MOST_SPANS} spans")


def earliest(spans: Iterable[Span]) -> str | None:
    """The id of the trace that began first."""
    first = min(spans, key=lambda span: span.start, default=None)
    return None if first is None else first.trace_id


def nanoseconds(moment: str | None) -> int | None:
    """A moment in ISO 8601 as nanoseconds since 1970; without a zone it is UTC."""
    if not moment:
        return None
    read = datetime.fromisoformat(moment)
    aware = read if read.tzinfo else read.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1) * 1000


def _told(found: Found, parent: str) -> tuple[Standing, tuple[TraceEvent, ...]]:
    stands = standing(found.spans, parent)
    if found.open and stands.state is PullState.COMPLETE:
        rooted = any(span.parent == parent for span in found.spans)
        if not rooted:
            stands = Standing(PullState.PARTIAL, "its end")
    return stands, events_of(found.spans)
