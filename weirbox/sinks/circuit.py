"""A circuit breaker: a sink that is down or slow is left alone for a while.

It keeps a sink from holding a run up. Trials that come meanwhile fail at once, with a
message that says so, and can be sent again when the sink is well.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 2
"""Bad sends in a row that open the circuit; each has made several attempts by then."""

SLOW_S = 3.0
"""A send that takes longer counts as bad, and the one that tries an open circuit out is cut
off then: two such at a time are less than one trial per second."""

FIRST_PAUSE_S = 5.0
"""How long the sink is left alone; doubled each time that it is still bad then."""

LONGEST_PAUSE_S = 20.0


class Circuit:
    """Whether to try a sink. Not for use by several threads.

    Attributes:
        why: What opened it last.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.why = ""
        self._clock = clock
        self._bad = 0
        self._pause = 0.0
        self._closed_until = 0.0
        self._trying = False

    def admits(self) -> bool:
        """Whether a send may go ahead; after a pause one at a time may, to try it out."""
        if not self.is_open:
            return True
        if self._trying or self._clock() < self._closed_until:
            return False
        self._trying = True
        return True

    @property
    def is_open(self) -> bool:
        """Whether the sink was bad when it was tried last."""
        return self._pause > 0

    @property
    def seconds_left(self) -> float:
        """Until it is tried again."""
        return max(0.0, self._closed_until - self._clock())

    def went_well(self) -> None:
        """Note a send that was answered in time; the circuit is closed again."""
        self._bad, self._pause, self._trying = 0, 0.0, False

    def went_badly(self, why: str) -> None:
        """Note a send that found nobody, was refused, or took too long."""
        self._bad += 1
        if not self._trying and (self.is_open or self._bad < FAILURES):
            return
        self._trying = False
        self.why = why
        self._pause = min(max(FIRST_PAUSE_S, 2 * self._pause), LONGEST_PAUSE_S)
        self._closed_until = self._clock() + self._pause

    def came_to_nothing(self) -> None:
        """Note a send that says nothing of the sink: it was cut off from outside."""
        self._trying = False
