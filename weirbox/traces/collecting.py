"""When a trace is complete, worth waiting for, or given up: one rule for both ways to collect.

What was measured, and what the rule answers to: MLflow's client sends a trace up to 4.7 s after
the traced call, OpenTelemetry's batches leave every 5 s, and Phoenix shows a trace in parts for
up to half a minute, its root last. A program that was killed never sends its root.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from weirbox.domain.platforms import SourceTrace
from weirbox.domain.pulling import Pulled, TraceSource
from weirbox.domain.trace import StageError, TraceEvent, Usage, last_model, total_usage
from weirbox.domain.words import ErrorKind, EventKind, PullState
from weirbox.errors import TraceError

PAUSE_S = 2.0
"""Between two looks."""

LOOKS_AGAIN = 3
"""How often a trace that is not there, or no longer grows, is looked for again."""

GROWING_S = 30.0
"""The most that a trace is watched growing, from the first of its spans on."""

TRANSIENT_AGAIN = 3
"""How often in a row a platform that says "not now" is asked again."""

MOST_RETRY_AFTER_S = 30.0
"""The most that a platform's wish to be left alone is followed."""

Answer = Pulled | TraceError
"""What one look came to."""


class Outcome(StrEnum):
    """What collecting came to."""

    COMPLETE = "complete"
    PARTIAL = "partial"  # what is there is taken
    ABSENT = "absent"  # the platform has nothing
    FAILED = "failed"  # the platform could not be asked


_SAID = {f"trace {outcome}" for outcome in Outcome}


@dataclass(frozen=True)
class Wait:
    """Look again, after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Watch:
    """What was seen so far.

    Attributes:
        best: The answer with the most spans.
        since: When the first spans were seen.
        still: How often in a row there was nothing new.
        refused: How often in a row the platform said "not now".
    """

    best: Pulled | None = None
    since: float | None = None
    still: int = 0
    refused: int = 0


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a trial's trace came to.

    Attributes:
        events: With an error event at the end unless the trace is complete, which names the
            key that it was looked for by.
        trace: Where it stands at the platform.
        error: Why it is absent or failed; None where there is a trace.
    """

    outcome: Outcome
    events: tuple[TraceEvent, ...] = ()
    trace: SourceTrace | None = None
    error: StageError | None = None

    @property
    def usage(self) -> Usage:
        """The tokens and money of all model calls."""
        return total_usage(self.events)

    @property
    def model(self) -> str | None:
        """The model of the last call that names one."""
        return last_model(self.events)


def decide(watch: Watch, answer: Answer, now: float) -> tuple[Watch, Wait | Outcome]:
    """What follows from one more look; pure.

    Args:
        now: Seconds, by any clock that only goes forward.
    """
    if isinstance(answer, TraceError):
        return _refused(watch, answer)
    grown = watch.best is None or answer.spans > watch.best.spans
    best = answer if grown or answer.state is PullState.COMPLETE else watch.best
    first = now if watch.since is None and answer.spans else watch.since
    still = 0 if grown else watch.still + 1
    seen = Watch(best=best, since=first, still=still)
    if answer.state is PullState.COMPLETE:
        return seen, Outcome.COMPLETE
    if still >= LOOKS_AGAIN or (first is not None and now - first >= GROWING_S):
        return seen, Outcome.ABSENT if first is None else Outcome.PARTIAL
    return seen, Wait(PAUSE_S)


def _refused(watch: Watch, error: TraceError) -> tuple[Watch, Wait | Outcome]:
    seen = replace(watch, refused=watch.refused + 1)
    if error.transient and seen.refused <= TRANSIENT_AGAIN:
        pause = max(PAUSE_S * 2 ** (seen.refused - 1), error.retry_after or 0.0)
        return seen, Wait(min(pause, MOST_RETRY_AFTER_S))
    return seen, Outcome.FAILED if watch.since is None else Outcome.PARTIAL


async def collect(
    source: TraceSource,
    correlation: str,
    trace_id: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Collected:
    """Pull a trial's trace, waiting for it as `decide` says; every failure is a value.

    Safe to run twice: pulling changes nothing at the platform or in the store.

    Args:
        clock: Seconds.
        sleep: Waits for so many of them.
    """
    watch = Watch()
    while True:
        answer: Answer
        try:
            answer = await source.pull(correlation, trace_id)
        except TraceError as error:
            answer = error
        watch, decision = decide(watch, answer, clock())
        if isinstance(decision, Outcome):
            return _collected(watch, answer, decision, correlation)
        await sleep(decision.seconds)


def unsaid(events: tuple[TraceEvent, ...]) -> tuple[TraceEvent, ...]:
    """Events without the one at their end that says the trace could not be had whole: what
    `collect` comes to when it is asked again takes its place."""
    last = events[-1] if events else None
    if last is None or last.kind is not EventKind.ERROR or last.name not in _SAID:
        return events
    return events[:-1]


def _collected(watch: Watch, answer: Answer, outcome: Outcome, correlation: str) -> Collected:
    best = watch.best or Pulled(state=PullState.ABSENT)
    if outcome is Outcome.COMPLETE:
        return Collected(outcome=outcome, events=best.events, trace=best.trace)
    key = f"correlation {correlation!r}"
    error: StageError | None = None
    if isinstance(answer, TraceError):
        text = f"the trace of {key} could not be pulled: {answer}"
        if outcome is Outcome.FAILED:
            error = StageError(kind=answer.kind, message=text, detail=answer.detail)
    elif outcome is Outcome.ABSENT:
        text = f"there is no trace of {key}"
        error = StageError(kind=ErrorKind.COLLECT, message=text)
    else:
        text = f"the trace of {key} is not complete: it lacks {best.missing or 'something'}"
    said = TraceEvent(kind=EventKind.ERROR, name=f"trace {outcome}", text=text)
    return Collected(outcome=outcome, events=(*best.events, said), trace=best.trace, error=error)
