"""An adaptive limit on the requests in flight for one provider account."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

DEFAULT_PAUSE_S = 2.0
"""How long starts wait when a provider says "too fast" and not for how long."""

SHORTEST_PAUSE_S = 0.5
"""What ``Retry-After: 0`` comes to: long enough that a burst ends before the next start."""

LONGEST_PAUSE_S = 60.0
"""What a longer wish comes to: limits are counted by the minute, and a run has to move."""

_JITTER = 0.1  # the most that is added to a pause, as a share of it


def pause_seconds(retry_after: float | None) -> float:
    """How long to wait for what a provider asks, in seconds: defaulted, floored, capped."""
    if retry_after is None:
        return DEFAULT_PAUSE_S
    return min(max(retry_after, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)


@dataclass(frozen=True)
class LimiterState:
    """What a display shows of a limiter.

    Attributes:
        limit: The most that may be in flight when the provider is at ease.
        current: The most that may be in flight now.
        paused_s: Seconds until the next start; 0 when nothing is paused.
        reason: Why `current` is below `limit`; empty when it is not.
    """

    limit: int
    current: int
    in_flight: int
    waiting: int
    paused_s: float
    reason: str


class AdaptiveLimiter:
    """Halves when the provider says "too fast", recovers by one per round of successes.

    Shared by all judges of an account within one event loop. Responses to requests
    that were under way when the limit was halved belong to the same burst and do
    not halve it again: they say nothing about the new limit.
    """

    def __init__(
        self,
        limit: int,
        floor: int = 1,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Args:
        limit: The most requests in flight.
        floor: What the limit never falls below.
        jitter: Gives a number from 0 to 1.
        """
        if not 1 <= floor <= limit:
            raise ValueError(f"floor {floor} must lie between 1 and the limit {limit}")
        self._limit = limit
        self._floor = floor
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._current = float(limit)
        self._in_flight = 0
        self._waiting = 0
        self._paused_until = float("-inf")
        self._failing_since: float | None = None
        self._successes = 0
        self._reason = ""
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def state(self) -> LimiterState:
        """What a display shows."""
        return LimiterState(
            limit=self._limit,
            current=int(self._current),
            in_flight=self._in_flight,
            waiting=self._waiting,
            paused_s=max(0.0, self._paused_until - self._clock()),
            reason=self._reason,
        )

    @property
    def failing_s(self) -> float:
        """For how many seconds requests have failed, without one that came through."""
        return 0.0 if self._failing_since is None else self._clock() - self._failing_since

    @property
    def successes(self) -> int:
        """How many requests have come through."""
        return self._successes

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Wait for a slot, first come first served; gives the moment at which it was had."""
        await self._acquire()
        try:
            yield self._clock()
        finally:
            self._in_flight -= 1
            self._changed.set()

    def throttled(self, retry_after: float | None, *, started: float | None = None) -> None:
        """The provider said "too fast".

        Args:
            retry_after: Seconds it asks to wait; None when it does not say.
            started: What `slot` gave for this request; now, if absent.
        """
        now = self._clock()
        pause = pause_seconds(retry_after)
        if (now if started is None else started) >= self._paused_until:
            self._current = max(float(self._floor), float(int(self._current) // 2))
        until = now + pause * (1 + _JITTER * self._jitter())
        self._paused_until = max(self._paused_until, until)
        wish = "" if retry_after is None else f", asking to wait {retry_after:g} s"
        self._reason = (
            f"the provider throttles{wish}: {int(self._current)} of {self._limit} at a time, "
            f"after a pause of {pause:g} s"
        )

    def failed(self) -> None:
        """A request failed in a way that may pass."""
        if self._failing_since is None:
            self._failing_since = self._clock()

    def succeeded(self) -> None:
        """A request came through; as many successes as the limit raise it by one."""
        self._failing_since = None
        self._successes += 1
        if self._current >= self._limit:
            return
        self._current = min(float(self._limit), self._current + 1 / self._current)
        if self._current == self._limit:
            self._reason = ""
        self._changed.set()

    async def _acquire(self) -> None:
        self._waiting += 1
        try:
            async with self._turn:
                while (pause := self._paused_until - self._clock()) > 0 or self._is_full():
                    if pause > 0:
                        await self._sleep(pause)
                    else:
                        self._changed.clear()
                        await self._changed.wait()
                self._in_flight += 1
        finally:
            self._waiting -= 1

    def _is_full(self) -> bool:
        return self._in_flight >= int(self._current)


__all__ = [
    "DEFAULT_PAUSE_S",
    "LONGEST_PAUSE_S",
    "SHORTEST_PAUSE_S",
    "AdaptiveLimiter",
    "LimiterState",
    "pause_seconds",
]
