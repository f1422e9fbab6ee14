"""How long a trace is waited for, and what a trial's trace comes to in the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from weirbox.domain.platforms import SourceTrace
from weirbox.domain.pulling import Probe, Pulled
from weirbox.domain.trace import StageError, TraceEvent, Usage
from weirbox.domain.words import ErrorKind, EventKind, ProbeState, PullState
from weirbox.errors import TraceError
from weirbox.testing import Clock
from weirbox.traces.collecting import Answer, Collected, Outcome, collect

PLACE = SourceTrace(platform="mlflow", base_url="http://there", trace_id="tr-1")
NOTHING = Pulled(state=PullState.ABSENT)
BUSY = TraceError("busy", transient=True, status=503)
REFUSED = TraceError("no such key", status=401)


def call(number: int) -> TraceEvent:
    """A model's call."""
    usage = Usage(input_tokens=10, output_tokens=1)
    return TraceEvent(kind=EventKind.LLM_CALL, name=f"{number}", usage=usage, model="small")


def part(spans: int) -> Pulled:
    """A trace with so many spans so far."""
    events = tuple(call(number) for number in range(spans))
    return Pulled(
        state=PullState.PARTIAL, events=events, spans=spans, trace=PLACE, missing="its root span"
    )


def whole(spans: int) -> Pulled:
    """A trace that is all there."""
    events = tuple(call(number) for number in range(spans))
    return Pulled(state=PullState.COMPLETE, events=events, spans=spans, trace=PLACE)


class Script:
    """A source that answers in turn; the last answer stays."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = list(answers)
        self.pulls = 0

    async def pull(self, correlation: str, trace_id: str) -> Pulled:
        answer = self.answers[min(self.pulls, len(self.answers) - 1)]
        self.pulls += 1
        if isinstance(answer, TraceError):
            raise answer
        return answer

    async def probe(self) -> Probe:
        return Probe(ProbeState.OK)

    async def aclose(self) -> None:
        """Nothing is open."""


async def run(*answers: Answer) -> tuple[Collected, list[float]]:
    """Collect from a script; gives what came out, and the pauses."""
    clock = Clock()
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)

    return await collect(Script(answers), "run.1", "f" * 32, clock=clock, sleep=sleep), pauses


async def test_a_trace_that_is_there_is_taken_at_once() -> None:
    collected, pauses = await run(whole(2))

    assert collected == Collected(outcome=Outcome.COMPLETE, events=whole(2).events, trace=PLACE)
    assert collected.usage == Usage(input_tokens=20, output_tokens=2)
    assert collected.model == "small"
    assert pauses == []


async def test_a_trace_that_comes_late_is_waited_for() -> None:
    collected, pauses = await run(NOTHING, NOTHING, NOTHING, whole(1))

    assert collected.outcome is Outcome.COMPLETE
    assert pauses == [2.0, 2.0, 2.0]


async def test_a_trace_that_never_comes_is_given_up_after_three_more_looks() -> None:
    collected, pauses = await run(NOTHING)

    message = "there is no trace of correlation 'run.1'"
    assert collected == Collected(
        outcome=Outcome.ABSENT,
        events=(TraceEvent(kind=EventKind.ERROR, name="trace absent", text=message),),
        error=StageError(kind=ErrorKind.COLLECT, message=message),
    )
    assert pauses == [2.0, 2.0, 2.0]


async def test_a_trace_is_watched_while_it_grows() -> None:
    collected, pauses = await run(NOTHING, part(1), part(1), part(5), part(5), part(5), whole(9))

    assert collected.outcome is Outcome.COMPLETE
    assert len(collected.events) == 9
    assert sum(pauses) == 12.0


async def test_a_trace_that_stops_growing_is_taken_as_it_is() -> None:
    collected, pauses = await run(part(1), part(4))

    assert collected.outcome is Outcome.PARTIAL
    assert collected.events[:4] == part(4).events
    assert collected.events[4:] == (
        TraceEvent(
            kind=EventKind.ERROR,
            name="trace partial",
            text="the trace of correlation 'run.1' is not complete: it lacks its root span",
        ),
    )
    assert collected.trace == PLACE
    assert collected.error is None
    assert sum(pauses) == 8.0


async def test_a_trace_that_grows_on_and_on_is_taken_after_half_a_minute() -> None:
    collected, pauses = await run(*(part(number) for number in range(1, 100)))

    assert collected.outcome is Outcome.PARTIAL
    assert sum(pauses) == 30.0
    assert len(collected.events) == 17


async def test_a_platform_that_is_busy_is_asked_again_ever_later() -> None:
    collected, pauses = await run(BUSY, BUSY, BUSY, whole(1))

    assert collected.outcome is Outcome.COMPLETE
    assert pauses == [2.0, 4.0, 8.0]


async def test_a_platform_says_when_to_ask_again_within_reason() -> None:
    seven = TraceError("slow down", transient=True, retry_after=7, status=429)
    hour = TraceError("slow down", transient=True, retry_after=3600, status=429)

    collected, pauses = await run(seven, hour, whole(1))

    assert collected.outcome is Outcome.COMPLETE
    assert pauses == [7.0, 30.0]


async def test_answers_in_between_are_not_counted_as_one_trouble() -> None:
    collected, _ = await run(BUSY, BUSY, NOTHING, BUSY, BUSY, part(1), BUSY, BUSY, whole(2))

    assert collected.outcome is Outcome.COMPLETE


async def test_a_platform_that_stays_busy_is_given_up() -> None:
    collected, pauses = await run(BUSY)

    assert collected.outcome is Outcome.FAILED
    assert collected.error == StageError(
        kind=ErrorKind.COLLECT,
        message="the trace of correlation 'run.1' could not be pulled: busy",
    )
    assert collected.events == (
        TraceEvent(
            kind=EventKind.ERROR,
            name="trace failed",
            text="the trace of correlation 'run.1' could not be pulled: busy",
        ),
    )
    assert pauses == [2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    "error",
    [REFUSED, TraceError("secret 'KEY' is not set", kind=ErrorKind.MISSING_SECRET)],
    ids=["refused", "no secret"],
)
async def test_a_hard_answer_is_not_asked_for_again(error: TraceError) -> None:
    collected, pauses = await run(error)

    assert collected.outcome is Outcome.FAILED
    assert collected.error is not None
    assert collected.error.kind is error.kind
    assert str(error) in collected.error.message
    assert pauses == []


async def test_what_was_seen_before_a_platform_failed_is_kept() -> None:
    collected, _ = await run(part(3), REFUSED)

    assert collected.outcome is Outcome.PARTIAL
    assert collected.events[:3] == part(3).events
    assert "no such key" in collected.events[3].text
    assert collected.error is None


async def test_an_answer_with_fewer_spans_takes_nothing_away() -> None:
    collected, _ = await run(part(3), part(1))

    assert collected.events[:3] == part(3).events
