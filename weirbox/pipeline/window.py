"""The queue of one stage: what is ready, how much is busy, how large a packet may be."""

from __future__ import annotations

from collections import deque

from weirbox.domain.words import Stage
from weirbox.pipeline.stages import Item

PACKET_S = 1.0
"""The most work, in seconds, that trials share a task run for: a task run costs about
6 ms of CPU on each side, so a packet of a second keeps that under one percent."""

MOST = 200
"""The most trials in one packet: bounds what one task run's record stands for."""

WEIGHT = 0.1
"""How much the newest duration moves the running mean."""


class StageQueue:
    """Trials that wait for one stage, and the stage's own limit, counted in trials."""

    def __init__(self, stage: Stage, limit: int, *, packets: bool) -> None:
        self.stage = stage
        self.limit = limit
        self.ready: deque[Item] = deque()
        self.busy = 0
        self._packets = packets
        self._mean: float | None = None

    @property
    def free(self) -> int:
        """Slots that nothing uses."""
        return self.limit - self.busy

    @property
    def packet_size(self) -> int:
        """How many trials may share a task run, from the running mean of their durations.

        One while nothing is known: the first trials measure.
        """
        if not self._packets or self._mean is None:
            return 1
        return max(1, min(MOST, int(PACKET_S / max(self._mean, 1e-6))))

    def take(self, most: int) -> list[Item]:
        """The next packet, of at most `most` trials; their slots are taken."""
        count = min(len(self.ready), self.free, self.packet_size, most)
        packet = [self.ready.popleft() for _ in range(count)]
        self.busy += len(packet)
        return packet

    def done(self, seconds: float) -> None:
        """A trial's work ended: its slot is free, whatever its packet still does."""
        self.busy -= 1
        self._mean = seconds if self._mean is None else (1 - WEIGHT) * self._mean + WEIGHT * seconds
