"""An engine is a view: whatever it does, the work goes on and the rows are whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from tests.factories import PASSES, Fakes, drive, driving, judged, plan, summary, trials
from tests.fakes import SINK, Harness, limits, most_at_once, passing
from weirbox.domain.words import RunStatus, Stage
from weirbox.pipeline.live import work_on
from weirbox.pipeline.packets import Packet
from weirbox.store.engine import Database
from weirbox.testing import MemorySink, ReplayJudge


class BeforeRunner:
    """Fails before it has called anything."""

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        raise ConnectionError("no server")


class AfterRunner:
    """Does the work, and fails then."""

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        await work_on(packet)
        raise ConnectionError("the server is gone")


class DuringRunner:
    """Cuts the work off, waits for it, and fails."""

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        work = asyncio.ensure_future(work_on(packet))
        await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        raise ConnectionError("the server is gone")


class CarelessRunner:
    """Cuts the work off without waiting for it, and acts as if all were well."""

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        work = asyncio.ensure_future(work_on(packet))
        await asyncio.sleep(0.01)
        work.cancel()


class DetachedRunner:
    """Leaves the work to itself."""

    def __init__(self) -> None:
        self.work: list[asyncio.Task[Any]] = []

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        self.work.append(asyncio.ensure_future(work_on(packet)))
        await asyncio.sleep(0)


class CancellingRunner:
    """Is cancelled from inside, as by an engine's own time-out."""

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        raise asyncio.CancelledError("a time-out of the engine's")


class TwiceRunner:
    """Does the work twice, as an engine that retries."""

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        await work_on(packet)
        await work_on(packet)


ENGINES = {
    "before": BeforeRunner,
    "after": AfterRunner,
    "during": DuringRunner,
    "careless": CarelessRunner,
    "detached": DetachedRunner,
    "cancelling": CancellingRunner,
    "twice": TwiceRunner,
}


@pytest.mark.parametrize("granularity", ["case", "auto"])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_fails_loses_no_case_and_breaks_no_limit(
    engine: str, granularity: str, shared_sqlite: Database
) -> None:
    harness, sink = Harness(delay_s=0.03), MemorySink()
    fakes = Fakes(harness=harness, provider=passing(delay_s=0.02), sink=sink)
    chosen = judged(8, sinks=SINK, granularity=granularity, concurrency=limits(3, 3, 3))
    run_id = plan(shared_sqlite, chosen)

    async def bounded() -> None:
        work = driving(shared_sqlite, run_id, runner=ENGINES[engine](), fakes=fakes)
        await asyncio.wait_for(work, 30)

    asyncio.run(bounded())

    run = summary(shared_sqlite, run_id)
    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, 8)
    assert run.progress.exported == len(sink.sent) == 8
    cut_off = engine in ("during", "careless")
    assert max(harness.runs.values()) <= (2 if cut_off else 1)
    rows = trials(shared_sqlite, run_id)
    assert most_at_once([(r.execute_started_at, r.executed_at) for r in rows]) <= 3
    assert most_at_once([(r.judge_started_at, r.judged_at) for r in rows]) <= 3


def test_calls_that_were_paid_before_the_engine_cut_a_judging_off_are_not_paid_again(
    shared_sqlite: Database,
) -> None:
    provider = ReplayJudge(lambda request: PASSES, cost_usd=0.01, delay_s=0.03)

    class CutsJudging:
        async def run(self, packet: Packet, *, refresh: bool) -> None:
            work = asyncio.ensure_future(work_on(packet))
            if packet.stage is Stage.JUDGE:
                await asyncio.sleep(0.05)
                work.cancel()
            await work

    run = drive(
        shared_sqlite,
        judged(1, "first", "second"),
        runner=CutsJudging(),
        fakes=Fakes(provider=provider),
    )

    assert run.progress.scored == 1
    asked = Counter(request.check for request in provider.requests)
    assert asked == {"first": 1, "second": 2}


@dataclass
class Caching:
    """Has a receipt of every packet already, and gives it unless told to refresh."""

    believes: bool
    refreshed: int = 0

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        self.refreshed += refresh
        if refresh and not self.believes:
            await work_on(packet)


@pytest.mark.parametrize("believes", [False, True], ids=["refreshes", "never-refreshes"])
def test_a_cached_receipt_without_its_rows_is_run_again(
    believes: bool, shared_sqlite: Database
) -> None:
    runner = Caching(believes=believes)

    run = drive(shared_sqlite, judged(4), runner=runner, fakes=Fakes(provider=passing()))

    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, 4)
    assert runner.refreshed > 0


def test_work_of_a_driver_that_is_not_here_is_refused_by_its_claim() -> None:
    packet = Packet(
        run_id="r", token=77, stage=Stage.JUDGE, seqs=(0,), key="k", label="l", shared=False
    )

    with pytest.raises(LookupError, match="no driver with claim 77"):
        asyncio.run(work_on(packet))
