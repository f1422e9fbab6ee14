"""Packets: the task runs that short trials share.

A task run costs about 6 ms of CPU on each side, so trials that take less than `PACKET_S`
share one. A packet starts with the trials that are ready together; while it runs, trials
that become ready within about `PACKET_S` join it, so nothing ever waits for a packet to
fill, and a trial moves on when it is done itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

from weirbox.domain.base import Frozen, digest
from weirbox.domain.words import Stage
from weirbox.pipeline import window
from weirbox.pipeline.stages import Item

LABEL = 80
"""The most characters of a case id in a task run's name."""


class Packet(Frozen):
    """The small argument of one task run: which trials start it, and what finds its driver.

    Attributes:
        token: The driver's claim.
        key: The idempotency key over (run, stage, entry, trial, round, attempt) of those.
        label: What a person reads.
        shared: Whether more trials may join; its receipt then cannot be used again,
            since no other packet has the same trials.
    """

    run_id: str
    token: int
    stage: Stage
    seqs: tuple[int, ...]
    key: str
    label: str
    shared: bool


class Receipt(Frozen):
    """The small result of one task run: the trials it took through its stage."""

    stage: Stage
    seqs: tuple[int, ...]


class StageRunner(Protocol):
    """Runs a packet, by calling `live.work_on`, in whatever the engine wraps it in."""

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        """Run one packet.

        Args:
            refresh: Whether an earlier receipt for the same key must not be used.
        """


def make_packet(
    run_id: str, token: int, stage: Stage, items: Sequence[Item], *, shared: bool
) -> Packet:
    """The packet that starts with these trials."""
    tickets = [item.ticket for item in items]
    keys = [(t.entry_digest, t.trial, t.round, t.attempt) for t in tickets]
    more = f" +{len(items) - 1}" if len(items) > 1 else ""
    return Packet(
        run_id=run_id,
        token=token,
        stage=stage,
        seqs=tuple(t.seq for t in tickets),
        key=digest([run_id, str(stage), keys]),
        label=tickets[0].name[:LABEL] + more,
        shared=shared,
    )


class OpenPacket:
    """A packet that runs, or is about to, with the trials it carries.

    Args:
        capacity: Tells how many trials it may carry in all, as far as is known by now.
        work: Takes one trial through the stage; never raises but when cancelled.

    Attributes:
        started: Whether the engine has called `run`.
        left: Trials that are to be carried still: all of them before it runs, and once
            it has ended, those that the engine cut off.
    """

    def __init__(
        self,
        packet: Packet,
        items: Sequence[Item],
        *,
        capacity: Callable[[], int],
        work: Callable[[Item], Coroutine[Any, Any, None]],
    ) -> None:
        self.packet = packet
        self.started = False
        self.left = list(items)
        self._capacity = capacity
        self._work = work
        self._seqs: list[int] = []
        self._busy: dict[asyncio.Task[None], Item] = {}
        self._closed = False
        self._open_until = 0.0
        self._idle = asyncio.Event()
        self._joined = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    @property
    def room(self) -> int:
        """How many more trials may join."""
        if self._closed or (self.started and time.monotonic() > self._open_until):
            return 0
        return self._capacity() - len(self._seqs) - len(self.left)

    def close(self) -> None:
        """Let no more trials join; the packet ends with those it carries."""
        self._closed = True
        self._joined.set()

    def join(self, item: Item) -> None:
        """Carry one more trial; it starts at once if the packet runs."""
        if self.started:
            self._start(item)
        else:
            self.left.append(item)

    async def run(self) -> Receipt:
        """Carry the trials until none is left; new ones may join until then."""
        self.started = True
        self._open_until = time.monotonic() + window.PACKET_S
        self._ended.clear()
        for item in self.left:
            self._start(item)
        self.left = []
        try:
            await self._idle.wait()
            while await self._goes_on():
                await self._idle.wait()
        finally:
            self._closed = True
            busy = dict(self._busy)
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
            self.left = [item for task, item in busy.items() if task.cancelled()]
            self._ended.set()
        return Receipt(stage=self.packet.stage, seqs=tuple(self._seqs))

    async def _goes_on(self) -> bool:
        """Where nothing is carried, stay open while there is time; False when none joined.

        An open packet holds no slot, and the driver closes it when nothing is to come.
        """
        if not self._busy and self.room > 0:
            self._joined.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    self._joined.wait(), max(0.0, self._open_until - time.monotonic())
                )
        return bool(self._busy)

    async def ended(self) -> None:
        """Wait for `run`, which an engine may leave to itself, to come to its end."""
        await self._ended.wait()

    def _start(self, item: Item) -> None:
        self._seqs.append(item.ticket.seq)
        self._idle.clear()
        self._joined.set()
        task = asyncio.ensure_future(self._work(item))
        self._busy[task] = item
        task.add_done_callback(self._one_done)

    def _one_done(self, task: asyncio.Task[None]) -> None:
        del self._busy[task]
        if not self._busy:
            self._idle.set()
