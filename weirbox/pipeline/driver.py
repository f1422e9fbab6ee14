"""The driver: claims trials and takes them through the stages until nothing is claimable.

Each stage has its own queue and its own limit, and a trial moves on the moment its stage is
done and its rows are committed. A bounded window of trials is in flight, so memory does not
grow with the plan. The driver is given a stage runner, which wraps packets of trials in
Prefect task runs, or in nothing.

Safe to run in any number, anywhere, and to kill at any moment: what is in flight is only
lost work, since claims expire and every result is fenced (`weirbox.store.claims`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import StrEnum
from functools import partial
from math import ceil
from typing import Any

from weirbox.domain.words import Stage, TrialStage
from weirbox.pipeline import live
from weirbox.pipeline.claiming import Claim
from weirbox.pipeline.kit import Kit
from weirbox.pipeline.lease import Lease
from weirbox.pipeline.packets import OpenPacket, Packet, Receipt, StageRunner, make_packet
from weirbox.pipeline.stages import Item, Stages, is_being_cancelled
from weirbox.pipeline.window import STARTING, StageQueue
from weirbox.store.engine import Database, is_trouble
from weirbox.store.rows import StageResult
from weirbox.store.writer import Writer

AHEAD_S = 1.0
"""How much work, in seconds, waits for a slot, so that a free slot never waits for a claim.
What waits here is kept from other drivers, so slow trials are claimed almost one by one."""

PREFETCH = 64
"""The most trials that wait for a slot, however short they are."""

LOOK_AGAIN_S = 5.0
"""How soon a driver that still works looks for trials that others have given back."""

MOST_CLAIMED = 1000
"""Trials claimed at a time: bounds the parameters of one statement."""

MOST_THREADS = 64
"""Threads for blocking work; each keeps memory of its own."""

BACK_OFF_S = 0.5
"""Pause before another attempt, doubled each time."""

log = logging.getLogger(__name__)


class End(StrEnum):
    """Why a driver stopped."""

    NOTHING_LEFT = "nothing left"  # nothing is claimable any more
    DRAINED = "drained"  # it was asked to stop
    CLAIM_LOST = "claim lost"  # another driver took its trials over
    RUN_ENDED = "run ended"  # cancelled, superseded or failed meanwhile


class Driver:
    """Drives one run under one claim. Use it once."""

    def __init__(
        self,
        database: Database,
        kit: Kit,
        runner: StageRunner,
        *,
        lease_s: float,
        grace_s: float,
        dispatch: int | None = None,
    ) -> None:
        self._dispatch_id = dispatch
        self._database, self._kit, self._runner = database, kit, runner
        self._lease_s, self._grace_s = lease_s, grace_s
        concurrency = kit.plan.suite.concurrency
        packets = kit.plan.suite.granularity == "auto"
        self._queues = {
            stage: StageQueue(stage, limit, packets=packets)
            for stage, limit in (
                (Stage.EXPORT, concurrency.export),
                (Stage.JUDGE, concurrency.judge),
                (Stage.EXECUTE, kit.execute_limit),
            )
        }
        self._in_window = 0
        self._held = 0
        self._waiting = 0
        self._open: dict[str, OpenPacket] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._end: End | None = None
        self._fault: BaseException | None = None
        self._exhausted = False
        self._claiming = False

    # --- from outside -----------------------------------------------------------

    async def drive(self) -> End:
        """Work until nothing is claimable, or until told to stop."""
        self._loop = asyncio.get_running_loop()
        self._claim = await asyncio.to_thread(self._begin)
        self._writer = Writer(self._database)
        self._stages = Stages(self._database, self._writer, self._kit)
        lease = Lease(
            self._database,
            self._kit.run_id,
            self._claim.token,
            lease_s=self._lease_s,
            lost=lambda: self._stop_soon(End.CLAIM_LOST),
            ended=lambda status: self._stop_soon(End.RUN_ENDED),
        )
        live.enter(self._claim.token, self)
        lease.start()
        try:
            await self._drive()
        finally:
            await asyncio.shield(self._close(lease))
        return self._end or End.NOTHING_LEFT

    def drain(self) -> None:
        """Start nothing new, give in-flight trials their grace, then stop. Thread-safe."""
        self._stop_soon(End.DRAINED)

    async def work(self, packet: Packet) -> Receipt:
        """Take a packet's trials through its stage, each on its own."""
        self._wake.set()
        return await self._open[packet.key].run()

    # --- the loop ---------------------------------------------------------------

    async def _drive(self) -> None:
        limits = sum(queue.limit for queue in self._queues.values())
        threads = min(limits, MOST_THREADS)
        self._loop.set_default_executor(ThreadPoolExecutor(max_workers=threads))
        while True:
            self._wake.clear()
            if self._fault is not None:
                raise self._fault
            if self._end is not None:
                await self._wind_down()
                return
            self._dispatch()
            if most := self._wanted():
                self._claiming = True
                self._spawn(self._claim_more(most))
            elif self._exhausted and self._held == 0:
                if not self._tasks:
                    return
                self._close_packets()
            await self._wake.wait()

    def _dispatch(self) -> None:
        for queue in self._queues.values():
            while (most := self._may_start(queue)) and self._start(queue, most):
                pass

    def _close_packets(self) -> None:
        for opened in self._open.values():
            opened.close()

    def _may_start(self, queue: StageQueue) -> int:
        most = min(len(queue.ready), queue.free)
        if queue.stage is Stage.EXECUTE:
            most = min(most, self._kit.window - self._in_window)
        return max(0, most)

    def _start(self, queue: StageQueue, most: int) -> bool:
        """Start up to `most` trials: in a packet that has room, else in a new one.

        Returns:
            False when as many packets are being started as may be.
        """
        of_stage = [p for p in self._open.values() if p.packet.stage is queue.stage]
        shared = next((p for p in of_stage if p.room > 0), None)
        if shared is None and sum(not p.started for p in of_stage) >= STARTING:
            return False
        items = queue.take(min(most, queue.packet_size if shared is None else shared.room))
        for item in items:
            self._waiting -= not item.started
            item.started = True
            self._enter_window(queue.stage, item)
        if shared is None:
            self._open_packet(queue, items)
        else:
            for item in items:
                shared.join(item)
        return True

    def _open_packet(self, queue: StageQueue, items: list[Item]) -> None:
        size = queue.packet_size
        packet = make_packet(
            self._kit.run_id, self._claim.token, queue.stage, items, shared=size > 1
        )
        self._open[packet.key] = OpenPacket(
            packet,
            items,
            capacity=lambda: queue.packet_size if size > 1 else 1,
            work=partial(self._one, queue.stage),
        )
        self._spawn(self._run_packet(packet))

    def _enter_window(self, stage: Stage, item: Item) -> None:
        if stage is not Stage.EXPORT and not item.in_window:
            item.in_window = True
            self._in_window += 1

    def _leave_window(self, item: Item) -> None:
        if item.in_window:
            item.in_window = False
            self._in_window -= 1

    async def _run_packet(self, packet: Packet) -> None:
        """Run a packet in the engine; without it where the engine fails or cuts it off.

        A receipt from the engine's cache without our rows is not believed: the packet
        has not started then, and is run again.
        """
        opened = self._open[packet.key]
        try:
            await self._runner.run(packet, refresh=False)
            if not opened.started:
                await self._runner.run(packet, refresh=True)
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            log.warning("%s: the engine cancelled %s", packet.label, packet.stage)
        except Exception as error:  # noqa: BLE001 - the engine is a view; the work goes on
            log.warning("%s: the engine failed: %s", packet.label, error)
        try:
            await opened.ended()
            while opened.left:
                await opened.run()
        finally:
            del self._open[packet.key]

    async def _one(self, stage: Stage, item: Item) -> None:
        try:
            result = await self._measured(stage, item)
            try:
                counted = await self._written(result)
            except Exception as error:
                if is_trouble(error):
                    raise
                result = self._stages.refused(stage, item, result.started_at, error)
                counted = await self._written(result)
        except asyncio.CancelledError:
            item.resumed = True
            raise
        except Exception as error:  # noqa: BLE001 - without its rows a driver cannot go on
            self._fail(error)
        else:
            self._advance(item, result, counted=counted)

    async def _measured(self, stage: Stage, item: Item) -> StageResult:
        """Run the stage, and free the slot; a trial that is cut off keeps its own, since its
        packet goes on with it, or the driver ends."""
        started = time.perf_counter()
        result = await self._stages.run(stage, item)
        self._queues[stage].done(time.perf_counter() - started)
        if stage is Stage.JUDGE:
            self._leave_window(item)
        self._wake.set()
        return result

    async def _written(self, result: StageResult) -> bool:
        """Commit; who is cancelled waits all the same, as what was handed over is written."""
        writing: asyncio.Future[bool] = asyncio.wrap_future(self._writer.submit(result))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            return await writing

    def _advance(self, item: Item, result: StageResult, *, counted: bool) -> None:
        if not counted:
            log.warning("%s: %s came too late and changed nothing", item.ticket.name, result.stage)
        if not counted or result.next_stage is TrialStage.DONE:
            self._leave_window(item)
            self._held -= 1
        else:
            self._queue_next(item, result)
        self._wake.set()

    def _queue_next(self, item: Item, result: StageResult) -> None:
        again = result.next_stage.value == result.stage.value
        attempt = item.ticket.attempt + 1 if again else 1
        redo = item.ticket.redo if again else None
        item.ticket = replace(item.ticket, stage=result.next_stage, attempt=attempt, redo=redo)
        queue = self._queues[Stage(result.next_stage.value)]
        if again:
            pause = BACK_OFF_S * 2 ** (attempt - 2)
            self._loop.call_later(pause, self._requeue, queue, item)
        else:
            queue.ready.append(item)

    def _requeue(self, queue: StageQueue, item: Item) -> None:
        queue.ready.append(item)
        self._wake.set()

    # --- claiming ---------------------------------------------------------------

    def _begin(self) -> Claim:
        return Claim.begin(
            self._database, self._kit.run_id, lease_s=self._lease_s, dispatch=self._dispatch_id
        )

    def _wanted(self) -> int:
        """How many trials to claim now: for the slots that are free, and `AHEAD_S` of work."""
        if self._claiming or self._exhausted or self._held >= self._most_held:
            return 0
        execute = self._queues[Stage.EXECUTE]
        free = max(0, min(execute.free, self._kit.window - self._in_window))
        paces = [pace for queue in self._queues.values() if (pace := queue.pace) is not None]
        ahead = execute.limit if execute.pace is None else ceil(AHEAD_S * min(paces))
        most = min(free + min(ahead, PREFETCH), MOST_CLAIMED)
        missing = most - self._waiting
        return missing if missing > most // 2 else 0

    @property
    def _most_held(self) -> int:
        return 2 * self._kit.window + 2 * PREFETCH

    async def _claim_more(self, most: int) -> None:
        try:
            items = await asyncio.to_thread(self._claim.take, most)
        except Exception as error:  # noqa: BLE001 - raised by `drive`
            self._fail(error)
            return
        finally:
            self._claiming = False
            self._wake.set()
        self._exhausted = not items
        if self._exhausted:
            self._loop.call_later(LOOK_AGAIN_S, self._look_again)
        self._held += len(items)
        self._waiting += len(items)
        for item in items:
            self._queues[Stage(item.ticket.stage.value)].ready.append(item)

    def _look_again(self) -> None:
        self._exhausted = False
        self._wake.set()

    # --- the end ----------------------------------------------------------------

    def _stop_soon(self, end: End) -> None:
        def stop() -> None:
            self._end = self._end or end
            self._wake.set()

        self._loop.call_soon_threadsafe(stop)

    async def _wind_down(self) -> None:
        """Let launched work settle; after the grace time, or without a claim, cut it off."""
        for queue in self._queues.values():
            queue.ready.clear()
        self._close_packets()
        grace = 0.0 if self._end is End.CLAIM_LOST else self._grace_s
        if self._tasks and grace:
            await asyncio.wait(set(self._tasks), timeout=grace)

    async def _close(self, lease: Lease) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        live.leave(self._claim.token)
        await asyncio.to_thread(self._give_back, lease)

    def _give_back(self, lease: Lease) -> None:
        lease.stop()
        self._writer.close()
        self._claim.give_back(wait=self._fault is None)

    def _fail(self, error: BaseException) -> None:
        self._fault = self._fault or error
        self._wake.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._fail(fault)
