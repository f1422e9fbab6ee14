"""The driver: it streams, keeps its limits, and shares task runs where trials are short."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from tests.factories import FAILS, PASSES, Fakes, column, drive, judged, suite, trials
from tests.fakes import SINK, Harness, limits, most_at_once, number, passing
from weirbox.domain.case import Case
from weirbox.domain.seams import ExportOutcome, TrialExport
from weirbox.domain.words import Stage, Verdict
from weirbox.pipeline import driver as driver_module
from weirbox.pipeline import window
from weirbox.pipeline.live import work_on
from weirbox.pipeline.packets import Packet
from weirbox.pipeline.stages import Item
from weirbox.pipeline.window import StageQueue
from weirbox.store.engine import Database
from weirbox.testing import MemorySink, ReplayJudge

# --- streaming ---------------------------------------------------------------------


def test_judging_starts_while_executing_goes_on_and_exporting_ends_with_judging(
    shared_database: Database,
) -> None:
    fakes = Fakes(
        harness=Harness(delay_of=lambda case: 0.1 * (1 + number(case) % 4)),
        provider=passing(delay_s=0.05),
        sink=MemorySink(),
    )

    run = drive(shared_database, judged(50, sinks=SINK, concurrency=limits()), fakes=fakes)

    rows = trials(shared_database, run.run_id)
    assert run.progress.exported == 50
    third_execution = sorted(row.executed_at for row in rows)[2]
    assert min(row.judge_started_at for row in rows) < third_execution
    spans = sorted(row.exported_at - row.execute_started_at for row in rows)
    after_last_judge = max(r.exported_at for r in rows) - max(r.judged_at for r in rows)
    assert after_last_judge < spans[len(spans) // 2]


def test_each_trial_is_judged_before_most_others_are_executed(shared_sqlite: Database) -> None:
    fakes = Fakes(harness=Harness(delay_s=0.02), provider=passing())

    run = drive(shared_sqlite, judged(40, concurrency=limits(2, 2)), fakes=fakes)

    rows = trials(shared_sqlite, run.run_id)
    first_judged = min(row.judged_at for row in rows)
    assert sum(row.execute_started_at > first_judged for row in rows) > 30


def test_one_slow_case_delays_nothing_but_itself(shared_sqlite: Database) -> None:
    fakes = Fakes(
        harness=Harness(delay_of=lambda case: 1.0 if number(case) == 0 else 0.01),
        provider=passing(),
        sink=MemorySink(),
    )

    run = drive(shared_sqlite, judged(30, sinks=SINK, concurrency=limits()), fakes=fakes)

    slow, *others = trials(shared_sqlite, run.run_id)
    assert max(row.exported_at for row in others) < slow.executed_at


def test_one_slow_judging_delays_nothing_but_itself(shared_sqlite: Database) -> None:
    class Slow(ReplayJudge):
        async def ask(self, request: Any) -> Any:
            await asyncio.sleep(1.0 if request.case_id == "case-0" else 0.01)
            return await super().ask(request)

    fakes = Fakes(provider=Slow(lambda request: PASSES))

    run = drive(shared_sqlite, judged(30, concurrency=limits()), fakes=fakes)

    slow, *others = trials(shared_sqlite, run.run_id)
    assert max(row.judged_at for row in others) < slow.judged_at


def test_no_more_trials_are_in_flight_than_the_window_holds(shared_sqlite: Database) -> None:
    fakes = Fakes(harness=Harness(delay_s=0.002), provider=passing(delay_s=0.02))

    run = drive(shared_sqlite, judged(40, concurrency=limits(8, 4, window=3)), fakes=fakes)

    rows = trials(shared_sqlite, run.run_id)
    assert most_at_once([(row.execute_started_at, row.judged_at) for row in rows]) == 3


def test_every_stage_keeps_its_own_limit_and_uses_it(shared_sqlite: Database) -> None:
    class Sink(MemorySink):
        async def send(self, trial: TrialExport) -> ExportOutcome:
            await asyncio.sleep(0.02)
            return await super().send(trial)

    fakes = Fakes(harness=Harness(delay_s=0.02), provider=passing(delay_s=0.04), sink=Sink())
    chosen = judged(40, sinks=SINK, concurrency=limits(5, 3, 2))

    rows = trials(shared_sqlite, drive(shared_sqlite, chosen, fakes=fakes).run_id)

    assert most_at_once([(r.execute_started_at, r.executed_at) for r in rows]) == 5
    assert most_at_once([(r.judge_started_at, r.judged_at) for r in rows]) == 3
    assert most_at_once([(r.export_started_at, r.exported_at) for r in rows]) == 2


def test_trials_in_memory_do_not_grow_with_the_plan(shared_sqlite: Database) -> None:
    seen: list[int] = []

    def answer(case: Case) -> str:
        if number(case) % 20 == 0:
            seen.append(sum(isinstance(thing, Item) for thing in gc.get_objects()))
        return str(case.input)

    fakes = Fakes(harness=Harness(answer=answer), provider=passing())

    run = drive(shared_sqlite, judged(400, concurrency=limits(2, 2, window=4)), fakes=fakes)

    assert run.progress.scored == 400
    assert len(seen) == 20
    assert max(seen) <= 2 * 4 + 3 * driver_module.PREFETCH


# --- packets -----------------------------------------------------------------------


@dataclass
class Recording:
    """A stage runner that remembers the packets it ran."""

    packets: list[Packet] = field(default_factory=list)

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        self.packets.append(packet)
        await work_on(packet)

    def sizes(self) -> Counter[int]:
        """How many packets started with how many trials."""
        return Counter(len(packet.seqs) for packet in self.packets)


def test_granularity_case_makes_one_packet_of_each_trial_and_stage(shared_sqlite: Database) -> None:
    runner, fakes = Recording(), Fakes(provider=passing(), sink=MemorySink())
    chosen = judged(30, granularity="case", sinks=SINK)

    run = drive(shared_sqlite, chosen, runner=runner, fakes=fakes)

    assert run.progress.exported == 30
    kinds = Counter((packet.stage, packet.seqs, packet.shared) for packet in runner.packets)
    assert set(kinds) == {
        (stage, (seq,), False)
        for stage in (Stage.EXECUTE, Stage.JUDGE, Stage.EXPORT)
        for seq in range(30)
    }
    assert set(kinds.values()) == {1}
    assert len({packet.key for packet in runner.packets}) == 90


def test_trials_that_take_as_long_as_a_packet_have_one_each(shared_sqlite: Database) -> None:
    runner = Recording()
    with patch.object(window, "PACKET_S", 0.02):
        drive(
            shared_sqlite,
            suite(12, concurrency=limits()),
            runner=runner,
            fakes=Fakes(harness=Harness(delay_s=0.03)),
        )

    executions = [packet for packet in runner.packets if packet.stage is Stage.EXECUTE]
    assert sorted(packet.seqs for packet in executions) == [(seq,) for seq in range(12)]


def test_short_trials_share_packets(shared_sqlite: Database) -> None:
    runner = Recording()

    run = drive(shared_sqlite, suite(400, concurrency=limits(16, 16)), runner=runner)

    assert run.progress.scored == 400
    assert len(runner.packets) < 400 / 2


@pytest.mark.parametrize(
    ("seconds", "size"),
    [(2.0, 1), (1.0, 1), (0.9, window.MOST), (0.1, window.MOST), (0.0, window.MOST)],
)
def test_trials_of_less_than_a_second_share_a_packet(seconds: float, size: int) -> None:
    queue = StageQueue(Stage.JUDGE, 4, packets=True)
    assert queue.packet_size == 1

    queue.busy = 1
    queue.done(seconds)

    assert queue.packet_size == size
    assert queue.free == 4


# --- verdicts over all this --------------------------------------------------------


def test_what_is_decided_is_in_the_rows_of_every_trial(shared_database: Database) -> None:
    provider = ReplayJudge(
        lambda request: FAILS if request.case_id == "case-1" else PASSES, cost_usd=0.25
    )

    run = drive(shared_database, judged(3, graders=[]), fakes=Fakes(provider=provider))

    assert column(shared_database, run.run_id, "verdict") == ["pass", "fail", "pass"]
    assert column(shared_database, run.run_id, "disposition") == ["clean", "quarantined", "clean"]
    assert (run.verdicts.passed, run.verdicts.failed) == (2, 1)
    assert (run.cost_usd, run.calls) == (0.75, 3)
    assert Verdict.NONE not in column(shared_database, run.run_id, "verdict")
    assert timedelta(0) < max(
        row.judged_at - row.execute_started_at for row in trials(shared_database, run.run_id)
    )
