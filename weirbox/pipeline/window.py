"""The queue of one stage: what is ready, how much is busy, how large a packet may be."""

from __future__ import annotations

from collections import deque

from weirbox.domain.words import Stage
from weirbox.pipeline.stages import Item

PACKET_S = 1.0
"""How long trials may join a packet, in seconds, and from where on a trial has a task run
of its own: a task run costs about 6 ms of CPU on each side, so one that takes a second
keeps that under one percent."""

MOST = 200
"""The most trials in one packet: bounds what one task run's record stands for."""

STARTING = 2
"""The most packets of a stage whose task runs are being started at a time. Starting one is
CPU work of the one event loop, so more at once would make none of them start sooner, and
the first to end tell how large the next may be."""

TENTH = 0.1  # which share of the durations lies below the typical one
STEP = 0.1  # how far one duration moves the estimate, as a share of it


class StageQueue:
    """Trials that wait for one stage, and the stage's own limit, counted in trials."""

    def __init__(self, stage: Stage, limit: int, *, packets: bool) -> None:
        self.stage = stage
        self.limit = limit
        self.ready: deque[Item] = deque()
        self.busy = 0
        self._packets = packets
        self._typical: float | None = None

    @property
    def free(self) -> int:
        """Slots that nothing uses."""
        return self.limit - self.busy

    @property
    def packet_size(self) -> int:
        """How many trials may share a task run, by how long they typically take.

        One while nothing is known: the first trials measure.
        """
        if not self._packets or self._typical is None:
            return 1
        return MOST if self._typical < PACKET_S else 1

    @property
    def pace(self) -> float | None:
        """Trials per second with all slots in use; None while nothing is known."""
        return None if self._typical is None else self.limit / max(self._typical, 1e-6)

    def take(self, most: int) -> list[Item]:
        """The next `most` trials; their slots are taken."""
        items = [self.ready.popleft() for _ in range(most)]
        self.busy += len(items)
        return items

    def done(self, seconds: float) -> None:
        """A trial's work ended: its slot is free, whatever its packet still does.

        The typical duration is the running tenth percentile. A mean would grow when the
        event loop is late, make packets smaller, and so make the loop later still.
        """
        self.busy -= 1
        if self._typical is None:
            self._typical = seconds
        elif seconds < self._typical:
            self._typical *= 1 - STEP * (1 - TENTH)
        else:
            self._typical *= 1 + STEP * TENTH
