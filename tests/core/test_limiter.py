"""The adaptive limit of an account."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from weirbox.judges.providers.failures import parse_retry_after
from weirbox.limiter import (
    DEFAULT_PAUSE_S,
    LONGEST_PAUSE_S,
    SHORTEST_PAUSE_S,
    AdaptiveLimiter,
    pause_seconds,
)


class Clock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def make(limit: int, clock: Clock, *, floor: int = 1, jitter: float = 0.0) -> AdaptiveLimiter:
    return AdaptiveLimiter(limit, floor, clock=clock, sleep=clock.sleep, jitter=lambda: jitter)


async def test_no_more_than_the_limit_are_in_flight_and_all_get_their_turn() -> None:
    limiter = make(3, Clock())
    most = done = 0

    async def work() -> None:
        nonlocal most, done
        async with limiter.slot():
            most = max(most, limiter.state.in_flight)
            await asyncio.sleep(0)
            done += 1

    await asyncio.gather(*(work() for _ in range(20)))

    assert (most, done, limiter.state.in_flight, limiter.state.waiting) == (3, 20, 0, 0)


async def test_a_burst_of_refusals_halves_the_limit_once() -> None:
    clock = Clock()
    limiter = make(16, clock)
    starts = []
    for _ in range(8):
        async with limiter.slot() as started:
            starts.append(started)
    for started in starts:
        limiter.throttled(2.0, started=started)
    clock.now += 1000  # a straggler of the same burst, long after
    limiter.throttled(2.0, started=starts[0])

    assert limiter.state.current == 8


async def test_a_refusal_under_the_new_limit_halves_it_again_down_to_the_floor() -> None:
    clock = Clock()
    limiter = make(16, clock, floor=2)
    seen = []
    for _ in range(5):
        async with limiter.slot() as started:
            limiter.throttled(1.0, started=started)
        seen.append(limiter.state.current)

    assert seen == [8, 4, 2, 2, 2]


async def test_a_start_waits_as_long_as_the_provider_asks_or_longer() -> None:
    for jitter in (0.0, 1.0):
        clock = Clock()
        limiter = make(4, clock, jitter=jitter)
        async with limiter.slot() as started:
            limiter.throttled(2.0, started=started)
        async with limiter.slot():
            assert 2.0 <= clock.now <= 2.5


async def test_with_every_reply_refused_the_limit_is_at_its_floor_and_the_run_keeps_moving() -> (
    None
):
    clock = Clock()
    limiter = make(8, clock)
    served = 0

    async def work() -> None:
        nonlocal served
        async with limiter.slot() as started:
            await asyncio.sleep(0)
            limiter.throttled(89.0, started=started)
            served += 1

    await asyncio.gather(*(work() for _ in range(30)))

    state = limiter.state
    assert (served, state.current, state.limit) == (30, 1, 8)
    assert clock.now <= 30 * LONGEST_PAUSE_S
    assert "asking to wait 89 s" in state.reason
    assert "1 of 8" in state.reason


async def test_successes_recover_the_limit_by_one_per_round() -> None:
    limiter = make(8, Clock())
    limiter.throttled(1.0)
    assert limiter.state.current == 4

    for _ in range(5):
        limiter.succeeded()
    assert limiter.state.current == 5

    for _ in range(100):
        limiter.succeeded()
    assert (limiter.state.current, limiter.state.reason) == (8, "")


async def test_whoever_waits_for_a_slot_is_let_in_when_the_limit_recovers() -> None:
    clock = Clock()
    limiter = make(2, clock)
    limiter.throttled(None)
    clock.now += 10
    second = limiter.slot()
    async with limiter.slot():
        waiter = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0)
        assert limiter.state.waiting == 1
        limiter.succeeded()
        await asyncio.wait_for(waiter, 1)
        assert limiter.state.in_flight == 2
    await second.__aexit__(None, None, None)


async def test_a_cancelled_waiter_leaves_no_trace() -> None:
    limiter = make(1, Clock())
    second = limiter.slot()
    async with limiter.slot():
        waiter = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0)
        assert limiter.state.waiting == 1
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    async with limiter.slot():
        assert (limiter.state.in_flight, limiter.state.waiting) == (1, 0)


NOW = datetime(2026, 11, 3, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "parsed", "pause"),
    [
        ({"retry-after": "2"}, 2.0, 2.0),
        ({"retry-after": "1.5"}, 1.5, 1.5),
        ({"retry-after": "Tue, 03 Nov 2026 12:00:30 GMT"}, 30.0, 30.0),
        ({"retry-after": "Tue, 03 Nov 2026 11:00:00 GMT"}, 0.0, SHORTEST_PAUSE_S),
        ({"retry-after": "0"}, 0.0, SHORTEST_PAUSE_S),
        ({"retry-after": "-5"}, 0.0, SHORTEST_PAUSE_S),
        ({}, None, DEFAULT_PAUSE_S),
        ({"retry-after": "soon"}, None, DEFAULT_PAUSE_S),
        ({"retry-after": "nan"}, None, DEFAULT_PAUSE_S),
        ({"retry-after": "inf"}, None, DEFAULT_PAUSE_S),
        ({"retry-after": "1000000000"}, 1e9, LONGEST_PAUSE_S),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5, 1.5),
    ],
    ids=lambda value: str(value),
)
def test_retry_after_is_parsed_floored_defaulted_and_capped(
    headers: dict[str, str], parsed: float | None, pause: float
) -> None:
    assert parse_retry_after(headers, now=NOW) == parsed
    assert pause_seconds(parsed) == pause


def test_a_floor_above_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="floor 3"):
        AdaptiveLimiter(2, 3)
