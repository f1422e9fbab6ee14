"""One hard budget per run: reserved before a call, settled after it, whoever drives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import select

from tests.factories import (
    FAILS,
    PASSES,
    Fakes,
    column,
    drive,
    driving,
    judged,
    plan,
    scores,
    summary,
)
from tests.fakes import limits
from tests.processes import outputs, started
from tests.results import claimed, paid
from weirbox.budget import UNRESERVED, TrialLedger
from weirbox.domain.run import RunSummary
from weirbox.domain.seams import JudgeReply, JudgeRequest
from weirbox.domain.spec import Suite
from weirbox.domain.trace import Usage
from weirbox.domain.words import Reason, RunStatus, ScoreState
from weirbox.errors import BudgetExhausted, ProviderError
from weirbox.store import claims, queries
from weirbox.store.base import CALL, RESERVATION
from weirbox.store.engine import Database
from weirbox.store.writer import Writer
from weirbox.testing import ReplayJudge


@contextmanager
def ledgers(database: Database, planned: Suite) -> Iterator[list[TrialLedger]]:
    """A ledger for each trial of a planned run, all over one writer."""
    run_id = plan(database, planned)
    writer = Writer(database)
    try:
        yield [TrialLedger(writer, t, planned.budget) for t in claimed(database, run_id)]
    finally:
        writer.close()


def reserved(database: Database) -> list[int]:
    """What is reserved, in billionths of a dollar."""
    with database.read() as connection:
        return list(connection.execute(select(RESERVATION.c.nusd)).scalars())


def latest(database: Database) -> RunSummary:
    """The only run."""
    with database.read() as connection:
        return queries.summaries(connection)[0]


async def admitted(ledger: TrialLedger, usd: float | None) -> int | None:
    """The reservation, or None when the budget does not admit the call."""
    try:
        return await ledger.reserve(usd)
    except BudgetExhausted:
        return None


# --- the ledger ---------------------------------------------------------------------


async def test_of_four_parallel_calls_two_are_admitted_where_two_fit(database: Database) -> None:
    with ledgers(database, judged(4, budget={"usd": 5.00})) as four:
        await four[0].settle(UNRESERVED, paid(4.75))

        found = await asyncio.gather(*(admitted(ledger, 0.09) for ledger in four))

    assert sum(reservation is not None for reservation in found) == 2
    assert reserved(database) == [90_000_000] * 2
    run = latest(database)
    assert (run.cost_usd, run.reserved_usd) == (4.75, 0.18)


async def test_what_is_settled_or_released_makes_room_for_the_rest(database: Database) -> None:
    with ledgers(database, judged(1, budget={"usd": 0.10})) as [ledger]:
        first = await ledger.reserve(0.09)
        assert await admitted(ledger, 0.09) is None
        await ledger.settle(first, paid(0.01))
        second = await ledger.reserve(0.09)
        await ledger.release(second)
        third = await ledger.reserve(0.09)
        await ledger.settle(third, paid(0.09))
        assert await admitted(ledger, 0.01) is None

    assert reserved(database) == []
    assert (latest(database).cost_usd, latest(database).calls) == (0.10, 2)
    assert ledger.cost_usd == pytest.approx(0.10)


async def test_a_call_that_fits_exactly_is_admitted(database: Database) -> None:
    with ledgers(database, judged(1, budget={"usd": 0.30})) as [ledger]:
        found = [await admitted(ledger, usd) for usd in (0.1, 0.1, 0.1, 1e-9)]

    assert [reservation is not None for reservation in found] == [True, True, True, False]


async def test_a_call_that_cost_more_than_its_bound_is_booked_as_it_was(
    database: Database,
) -> None:
    with ledgers(database, judged(1, budget={"usd": 1.00})) as [ledger]:
        await ledger.settle(await ledger.reserve(0.10), paid(1.50))
        assert await admitted(ledger, 0.01) is None

    assert latest(database).cost_usd == 1.50


async def test_calls_are_limited_too_and_free_ones_count(database: Database) -> None:
    with ledgers(database, judged(1, budget={"calls": 3})) as [ledger]:
        held = [await ledger.reserve(usd) for usd in (0.0, 5.0)]
        await ledger.settle(held[0], paid(0.0, cached=True))
        held.append(await ledger.reserve(None))
        assert await admitted(ledger, 0.0) is None
        await ledger.release(held[1])
        assert await admitted(ledger, 0.0) is not None

    assert latest(database).calls == 1


async def test_without_a_limit_nothing_is_reserved_and_everything_is_booked(
    database: Database,
) -> None:
    with ledgers(database, judged(1)) as [ledger]:
        assert await ledger.reserve(1000.0) == UNRESERVED
        await ledger.settle(UNRESERVED, paid(1000.0))
        await ledger.release(UNRESERVED)

    assert (latest(database).cost_usd, reserved(database)) == (1000.0, [])


async def test_a_free_call_is_admitted_where_nothing_is_left(database: Database) -> None:
    with ledgers(database, judged(1, budget={"usd": 0.0})) as [ledger]:
        assert await admitted(ledger, 0.0) == UNRESERVED
        assert await admitted(ledger, 0.001) is None
        await ledger.settle(UNRESERVED, paid(0.0, cached=True))

    assert [booked.cached for booked in ledger.free_calls] == [True]


async def test_a_call_of_unknown_price_is_admitted_while_anything_is_left(
    database: Database,
) -> None:
    budget = {"usd": 0.10, "allow_unpriced": True}
    with ledgers(database, judged(1, budget=budget)) as [ledger]:
        first = await ledger.reserve(None)
        await ledger.settle(first, paid(None))
        assert ledger.cost_usd is None
        await ledger.settle(await ledger.reserve(0.10), paid(0.10))
        assert await admitted(ledger, None) is None

    run = latest(database)
    assert (run.cost_usd, run.calls, run.unpriced_calls) == (0.10, 2, 1)


async def test_what_a_killed_driver_had_reserved_is_void_and_what_it_spent_stands(
    database: Database,
) -> None:
    chosen = judged(2, budget={"usd": 1.00})
    with ledgers(database, chosen) as [killed, _]:
        await killed.settle(await killed.reserve(0.60), paid(0.55))
        await killed.reserve(0.40)
    run_id = latest(database).run_id
    assert latest(database).reserved_usd == 0.40

    with database.write() as connection:
        claims.reap_drivers(connection, run_id, ["here:1:1"])

    assert (latest(database).reserved_usd, latest(database).cost_usd) == (0.0, 0.55)
    writer = Writer(database)
    fresh = TrialLedger(writer, claimed(database, run_id)[0], chosen.budget)
    assert await admitted(fresh, 0.45) is not None
    assert await admitted(fresh, 0.01) is None
    writer.close()


RESERVER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from tests.results import claimed, paid
from weirbox.store.engine import Database
from weirbox.store.spending import ReserveRequest, Settlement
from weirbox.store.types import to_nano
from weirbox.store.writer import Release, Writer

database = Database(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
[ticket] = claimed(database, sys.argv[2], 1)
writer = Writer(database)

def spend(number):
    reservation = writer.submit(ReserveRequest(ticket, to_nano(0.09))).result()
    if reservation is None:
        return 0
    if number % 5 == 0:
        writer.submit(Release(reservation)).result()
        return 0
    writer.submit(Settlement(ticket, reservation, paid(0.09))).result()
    return 1

with ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(spend, range(40))))
writer.close()
"""


def test_any_number_of_processes_together_never_spend_more_than_the_limit(
    database: Database,
) -> None:
    run_id = plan(database, judged(2, budget={"usd": 1.00}))

    with started(*[("-c", RESERVER, database.url, run_id)] * 2) as processes:
        made = [int(printed) for printed in outputs(processes)]

    run = summary(database, run_id)
    assert sum(made) == run.calls == 11
    assert run.cost_usd == 0.99
    assert reserved(database) == []


# --- whole runs ---------------------------------------------------------------------


def priced(usd: float, reply: str = PASSES, **changes: Any) -> ReplayJudge:
    """A judge with a price."""
    return ReplayJudge(lambda request: reply, cost_usd=usd, **changes)


def test_a_run_whose_budget_runs_out_completes_and_says_what_was_not_judged(
    shared_database: Database,
) -> None:
    chosen = judged(10, graders=[], budget={"usd": 0.50})

    run = drive(shared_database, chosen, fakes=Fakes(provider=priced(0.125, delay_s=0.01)))

    assert run.status is RunStatus.COMPLETED
    assert (run.progress.scored, run.progress.unscored) == (4, 6)
    assert (run.dispositions.clean, run.dispositions.review) == (4, 6)
    assert (run.cost_usd, run.calls, run.reserved_usd) == (0.50, 4, 0.0)
    states = column(shared_database, run.run_id, "state")
    left_out = scores(shared_database, run.run_id, states.index("unscored"))["quality"]
    assert (left_out.state, left_out.reason) == (ScoreState.UNSCORED, Reason.BUDGET)


def test_a_limit_of_calls_is_kept_by_a_run_of_free_judges(sqlite: Database) -> None:
    chosen = judged(5, graders=[], budget={"calls": 2})

    run = drive(sqlite, chosen, fakes=Fakes(provider=priced(0.0)))

    assert (run.progress.scored, run.progress.unscored, run.calls) == (2, 3, 2)


def test_two_drivers_of_one_run_share_its_budget(shared_database: Database) -> None:
    fakes = Fakes(provider=priced(0.09, delay_s=0.01))
    chosen = judged(160, graders=[], budget={"usd": 1.00}, concurrency=limits(8, 8))
    run_id = plan(shared_database, chosen)

    async def both() -> None:
        await asyncio.gather(*(driving(shared_database, run_id, fakes=fakes) for _ in range(2)))

    with fakes.in_place():
        asyncio.run(both())

    run = summary(shared_database, run_id)
    assert (run.status, run.progress.scored + run.progress.unscored) == (RunStatus.COMPLETED, 160)
    assert (run.calls, run.cost_usd, run.progress.scored) == (11, 0.99, 11)


def test_tokens_that_a_failed_call_used_are_booked_and_its_reservation_is_gone(
    database: Database,
) -> None:
    def failing(request: JudgeRequest) -> str:
        raise ProviderError("cut off", usage=Usage(input_tokens=800, cost_usd=0.02))

    provider = ReplayJudge(failing, cost_usd=0.10)

    run = drive(database, judged(1, budget={"usd": 5.0}), fakes=Fakes(provider=provider))

    with database.read() as connection:
        rows = connection.execute(select(CALL.c.ok, CALL.c.input_tokens, CALL.c.message)).all()
    assert [tuple(row) for row in rows] == [(False, 800, "cut off")]
    assert (run.cost_usd, run.calls, run.reserved_usd) == (0.02, 1, 0.0)


def test_a_call_that_was_never_made_costs_nothing(shared_database: Database) -> None:
    def failing(request: JudgeRequest) -> str:
        raise ProviderError("no route")

    provider = ReplayJudge(failing, cost_usd=0.10)

    run = drive(shared_database, judged(1, budget={"usd": 5.0}), fakes=Fakes(provider=provider))

    assert (run.cost_usd, run.calls, run.reserved_usd) == (0.0, 0, 0.0)


def test_a_recorded_reply_costs_nothing_and_is_shown_as_cached(database: Database) -> None:
    run = drive(database, judged(2, budget={"usd": 0.0}), fakes=Fakes(provider=priced(0.0)))

    with database.read() as connection:
        rows = connection.execute(select(CALL.c.cached, CALL.c.cost_nusd)).all()
    assert [tuple(row) for row in rows] == [(True, 0), (True, 0)]
    assert (run.progress.scored, run.cost_usd, run.calls) == (2, 0.0, 2)


def test_a_provider_that_reports_no_usage_counts_as_a_call_of_unknown_cost(
    sqlite: Database,
) -> None:
    provider = ReplayJudge(lambda request: JudgeReply(text=PASSES), cost_usd=0.01)

    run = drive(sqlite, judged(1, budget={"usd": 5.0}), fakes=Fakes(provider=provider))

    assert (run.cost_usd, run.calls, run.unpriced_calls) == (0.0, 1, 1)


def test_a_trial_that_escalates_costs_both_tiers_though_one_verdict_stands(
    shared_database: Database,
) -> None:
    def reply(request: JudgeRequest) -> JudgeReply:
        primary = request.tier == "primary"
        verdict = "uncertain" if primary else "pass"
        text = json.dumps({"verdict": verdict, "confidence": 0.9, "reason": "r"})
        return JudgeReply(text=text, usage=Usage(cost_usd=0.001 if primary else 0.02))

    tiers = {
        "primary": {"provider": "account", "model": "small"},
        "escalation": {"provider": "account", "model": "large"},
    }
    prompt = {"id": "any", "version": 1, "user": "{{ output }}"}
    chosen = judged(1, judges=[{"name": "quality", "prompt": prompt, **tiers}])

    run = drive(shared_database, chosen, fakes=Fakes(provider=ReplayJudge(reply, cost_usd=0.02)))

    assert (run.cost_usd, run.calls) == (0.021, 2)
    assert scores(shared_database, run.run_id)["quality"].tier == "escalation"
    with shared_database.read() as connection:
        card = queries.scorecard(connection, run.run_id)
    assert card is not None
    by_tier = [(row["tier"], row["usd"]) for row in card["cost"]["by_tier_and_model"]]
    assert by_tier == [("escalation", 0.02), ("primary", 0.001)]


@pytest.mark.parametrize(
    ("budget", "status"),
    [
        pytest.param({"usd": 1.0}, RunStatus.FAILED, id="refused"),
        pytest.param({"usd": 1.0, "allow_unpriced": True}, RunStatus.COMPLETED, id="allowed"),
        pytest.param({"calls": 9}, RunStatus.COMPLETED, id="no-dollars"),
        pytest.param({}, RunStatus.COMPLETED, id="no-limit"),
    ],
)
def test_a_model_without_a_price_is_refused_by_name_under_a_limit_in_dollars(
    budget: dict[str, Any], status: RunStatus, shared_sqlite: Database
) -> None:
    class Unpriced(ReplayJudge):
        def bound_usd(self, request: JudgeRequest) -> float | None:
            return None

    provider = Unpriced(lambda request: JudgeReply(text=PASSES))

    run = drive(shared_sqlite, judged(1, budget=budget), fakes=Fakes(provider=provider))

    assert run.status is status
    if status is RunStatus.FAILED:
        assert "judge 'quality': model 'small' has no known price" in run.reason
        assert (provider.requests, run.progress.executed) == ([], 0)


def test_what_is_missing_for_a_judge_fails_the_run_once_by_name(sqlite: Database) -> None:
    class Missing(ReplayJudge):
        closed = False

        def preflight(self, model: str) -> str | None:
            return f"the secret 'KEY' of model {model!r} is missing"

        async def aclose(self) -> None:
            self.closed = True

    provider = Missing(lambda request: FAILS)

    run = drive(sqlite, judged(2, "one", "two"), fakes=Fakes(provider=provider))

    assert run.status is RunStatus.FAILED
    assert run.reason == (
        "judge 'one': the secret 'KEY' of model 'small' is missing; "
        "judge 'two': the secret 'KEY' of model 'small' is missing"
    )
    assert (run.progress.pending, provider.closed) == (2, True)
