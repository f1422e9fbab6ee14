"""Ends of runs: one transition wins, newer runs supersede older ones, and all come to rest."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, select, update

import weirbox
from tests.factories import (
    PASSES,
    Fakes,
    drive,
    driving,
    go_on,
    judged,
    no_secret,
    plan,
    settings,
    suite,
    summary,
    timeline,
    trials,
)
from tests.fakes import SINK, Harness, limits, number
from tests.results import claimed, decided, executed, write
from weirbox import runtime
from weirbox.cli.origins import Asked
from weirbox.domain.case import Case
from weirbox.domain.run import Origin
from weirbox.domain.seams import ExportOutcome, TrialExport
from weirbox.domain.words import ExportStatus, RunKind, RunStatus
from weirbox.errors import NotPossible, PreflightError
from weirbox.pipeline import ending, finalizing
from weirbox.pipeline.planning import Selection
from weirbox.settings import Settings
from weirbox.store import claims, queries
from weirbox.store.base import CLAIM, EVENT, RUN
from weirbox.store.engine import Database
from weirbox.store.types import utc_now
from weirbox.store.writes import LIVE, change_status
from weirbox.testing import MemorySink, ReplayJudge

ENDS = tuple(status for status in RunStatus if status.terminal)
EARLY = tuple(status for status in RunStatus if status.ended_early)

PULL = Origin(repository="acme/rockets", pull_request="7")


def in_status(database: Database, status: RunStatus) -> str:
    """A run that has this status, however it came to it."""
    run_id = plan(database, suite(1))
    with database.write() as connection:
        connection.execute(update(RUN).where(RUN.c.id == run_id).values(status=status))
    return run_id


def change(database: Database, run_id: str, to: RunStatus, reason: str = "") -> bool:
    """Change a run's status in a transaction of its own."""
    with database.write() as connection:
        return change_status(connection, run_id, to=to, reason=reason)


def kinds(database: Database, run_id: str) -> list[str]:
    """The kinds of a run's events, oldest first."""
    return [kind for kind, _ in timeline(database, run_id)]


# --- one transition wins ----------------------------------------------------------------


@pytest.mark.parametrize("to", RunStatus)
@pytest.mark.parametrize("status", RunStatus)
def test_a_status_changes_only_from_where_it_may_come(
    status: RunStatus, to: RunStatus, shared_database: Database
) -> None:
    allowed = {
        (RunStatus.PENDING, RunStatus.RUNNING),
        *((live, end) for live in LIVE for end in ENDS),
    }
    run_id = in_status(shared_database, status)
    before = len(timeline(shared_database, run_id))

    changed = change(shared_database, run_id, to, "so")

    found = summary(shared_database, run_id)
    assert changed == ((status, to) in allowed)
    assert found.status == (to if changed else status)
    assert len(timeline(shared_database, run_id)) == before + changed
    assert (found.completed_at is not None) == (changed and to.terminal)


def test_of_many_that_end_a_run_at_once_exactly_one_does(database: Database) -> None:
    for _ in range(5):
        run_id = plan(database, suite(1))
        barrier = Barrier(2 * len(ENDS))

        def end(to: RunStatus, run_id: str = run_id, barrier: Barrier = barrier) -> bool:
            barrier.wait()
            return change(database, run_id, to, f"by {to}")

        with ThreadPoolExecutor(2 * len(ENDS)) as pool:
            won = list(pool.map(end, ENDS * 2))

        assert won.count(True) == 1
        winner = (ENDS * 2)[won.index(True)]
        found = summary(database, run_id)
        assert (found.status, found.reason) == (winner, f"by {winner}")
        assert kinds(database, run_id) == ["planned", winner]


# --- supersede --------------------------------------------------------------------------


def test_a_newer_run_of_the_same_pull_request_and_suite_supersedes_the_older(
    database: Database,
) -> None:
    older = plan(database, suite(1), origin=PULL)
    others = [
        plan(database, suite(1, suite="other"), origin=PULL),
        plan(database, suite(1), origin=PULL.model_copy(update={"pull_request": "8"})),
        plan(database, suite(1), origin=PULL.model_copy(update={"repository": "acme/boats"})),
        plan(database, suite(1), origin=Origin(repository="acme/rockets")),
        plan(database, suite(1)),
    ]

    newer = plan(database, suite(1), origin=PULL)

    found = summary(database, older)
    assert (found.status, found.reason) == (RunStatus.SUPERSEDED, f"superseded by {newer}")
    assert timeline(database, newer)[-1] == ("supersedes", older)
    assert {summary(database, run_id).status for run_id in [*others, newer]} == {RunStatus.PENDING}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_has_ended_is_not_superseded(end: RunStatus, shared_sqlite: Database) -> None:
    key = Origin(repository="r", pull_request=end)
    older = plan(shared_sqlite, suite(1), origin=key)
    change(shared_sqlite, older, end, "before")

    plan(shared_sqlite, suite(1), origin=key)

    assert summary(shared_sqlite, older).reason == "before"


def test_runs_that_are_planned_at_once_leave_the_newest_alone_standing(database: Database) -> None:
    barrier = Barrier(4)

    def planning(_: int) -> str:
        barrier.wait()
        return plan(database, suite(1), origin=PULL)

    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(planning, range(4)))

    runs = [summary(database, run_id) for run_id in ids]
    newest = max(runs, key=lambda run: (run.created_at, run.run_id))
    assert [run.run_id for run in runs if not run.status.terminal] == [newest.run_id]
    assert {run.status for run in runs} == {RunStatus.PENDING, RunStatus.SUPERSEDED}


def test_of_two_live_runs_the_newer_wins_whichever_is_looked_at(database: Database) -> None:
    first, second = (plan(database, suite(1), origin=PULL) for _ in range(2))
    with database.write() as connection:
        connection.execute(update(RUN).where(RUN.c.id == first).values(status=RunStatus.RUNNING))

        found = [ending.supersede_older(connection, run) for run in (first, second, first)]

    assert found == [[first], [], []]
    assert summary(database, second).status is RunStatus.PENDING


def test_a_run_that_was_superseded_is_not_what_a_delta_compares_with(database: Database) -> None:
    base = plan(database, suite(2))
    for end in EARLY:
        change(database, plan(database, suite(3)), end)

    run_id = plan(database, suite(4), Selection(kind=RunKind.DELTA, since="latest"))

    assert [trial.case_id for trial in trials(database, run_id)] == ["case-2", "case-3"]
    with database.read() as connection:
        assert queries.find_run_id(connection, "latest", suite="tested") == run_id
    assert summary(database, base).status is RunStatus.PENDING


# --- cancel and come to rest --------------------------------------------------------------


def stopped(database: Database, end: RunStatus, **changes: Any) -> str:
    """Drive a run of 8 trials that is ended from outside at its third."""
    run_id = plan(database, suite(8, concurrency=limits(1, 1, 1, window=1), **changes))

    def answering(case: Case) -> str:
        if number(case) == 2:
            change(database, run_id, end, "enough")
        return str(case.input)

    harness = Harness(answer=answering, delay_of=lambda case: 0.6)
    asyncio.run(driving(database, run_id, fakes=Fakes(harness=harness)))
    return run_id


@pytest.mark.parametrize("end", EARLY)
def test_what_ended_early_comes_to_rest_with_what_it_came_to(
    end: RunStatus, shared_database: Database, tmp_path: Path
) -> None:
    sinks = [
        {"kind": "jsonl", "name": "lines", "path": str(tmp_path / "lines")},
        {"kind": "parquet", "name": "tables", "path": str(tmp_path / "tables")},
    ]
    run_id = stopped(shared_database, end, sinks=sinks)

    found = summary(shared_database, run_id)
    done = found.progress.exported
    assert (found.status, found.finalizing) == (end, False)
    assert found.settled_at is not None
    assert 0 < done < 8
    assert found.exports == {name: {"succeeded": done} for name in ("lines", "tables")}
    assert kinds(shared_database, run_id) == ["planned", "running", end, "settled"]
    assert f"{done} exported of 8 trials" in timeline(shared_database, run_id)[-1][1]
    complete = json.loads((tmp_path / "lines" / run_id / "complete.json").read_text())
    assert complete["trials"] == done
    assert pq.read_table(tmp_path / "tables" / run_id / "trials.parquet").num_rows == done
    with pytest.raises(NotPossible, match=f"is {end}"):
        finalizing.finalize(shared_database, run_id)


def test_a_run_is_not_at_rest_while_a_driver_holds_a_claim(database: Database) -> None:
    run_id = plan(database, suite(2))
    tickets = claimed(database, run_id)
    ending.cancel(database, run_id, reason="enough")

    assert not asyncio.run(ending.come_to_rest(database, run_id))
    assert summary(database, run_id).settled_at is None
    assert write(database, *(executed(ticket) for ticket in tickets)) == [True, True]
    with database.write() as connection:
        claims.release_claim(connection, tickets[0].token)

    assert asyncio.run(ending.come_to_rest(database, run_id))
    assert not asyncio.run(ending.come_to_rest(database, run_id))
    assert summary(database, run_id).settled_at is not None
    assert timeline(database, run_id)[-1] == (
        "settled",
        "2 executed, 0 judged, 0 exported of 2 trials",
    )


def test_a_driver_that_died_keeps_a_run_from_rest_for_its_lease_only(database: Database) -> None:
    run_id = plan(database, suite(2))
    [ticket] = claimed(database, run_id, limit=1)
    ending.cancel(database, run_id, reason="enough")
    with database.write() as connection:
        assert not ending.settle(connection, run_id)
        past = utc_now() - timedelta(seconds=1)
        connection.execute(update(CLAIM).values(lease_until=past))

        assert ending.settle(connection, run_id)

    assert write(database, decided(ticket)) == [False]


@pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.RUNNING, RunStatus.COMPLETED])
def test_what_did_not_end_early_does_not_come_to_rest(
    status: RunStatus, shared_database: Database
) -> None:
    run_id = in_status(shared_database, status)

    assert not asyncio.run(ending.come_to_rest(shared_database, run_id))
    assert summary(shared_database, run_id).settled_at is None


def test_of_many_that_settle_a_run_at_once_one_does(database: Database) -> None:
    run_id = in_status(database, RunStatus.FAILED)

    def settling(_: int) -> bool:
        with database.write() as connection:
            return ending.settle(connection, run_id)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(settling, range(4))).count(True) == 1
    assert kinds(database, run_id).count("settled") == 1


def test_what_dies_before_the_stamp_is_made_up_for_by_the_next(sqlite: Database) -> None:
    sink = MemorySink()
    run_id = plan(sqlite, suite(2, sinks=SINK))
    [ticket, _] = claimed(sqlite, run_id)
    write(sqlite, executed(ticket))
    write(sqlite, decided(ticket))
    with sqlite.write() as connection:
        claims.release_claim(connection, ticket.token)
    ending.cancel(sqlite, run_id, reason="enough")

    with Fakes(sink=sink).in_place():
        with (
            patch.object(ending, "settle", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            asyncio.run(ending.come_to_rest(sqlite, run_id))
        assert (sink.completed, summary(sqlite, run_id).settled_at) == (1, None)
        assert asyncio.run(ending.come_to_rest(sqlite, run_id))

    assert sink.completed == 2
    assert summary(sqlite, run_id).settled_at is not None


def test_what_went_wrong_at_sinks_and_what_was_spent_is_in_the_outcome(sqlite: Database) -> None:
    class Moody(MemorySink):
        async def send(self, trial: TrialExport) -> ExportOutcome:
            if trial.case_id == "case-1":
                return ExportOutcome(ExportStatus.PARTIAL, message="half of it")
            return await super().send(trial)

    def reply(request: Any) -> str:
        if request.check == "quality" and len(judge.requests) == 3:
            ending.cancel(sqlite, run_id, reason="enough")
        return PASSES

    judge = ReplayJudge(reply, delay_s=0.4, cost_usd=0.25)
    run_id = plan(sqlite, judged(8, sinks=SINK, concurrency=limits(1, 1, 1, window=1)))
    go_on(sqlite, run_id, fakes=Fakes(provider=judge, sink=Moody()))

    found = summary(sqlite, run_id)
    [message] = [text for kind, text in timeline(sqlite, run_id) if kind == "settled"]
    assert found.exports["memory"]["partial"] == 1
    assert f"{found.exports['memory']['succeeded']} succeeded" in message
    assert f"{found.cost_usd} USD spent on {found.calls} judge calls" in message


def test_a_run_that_cannot_start_is_failed_and_at_rest(sqlite: Database) -> None:
    run_id = plan(sqlite, judged(2))

    with patch("weirbox.pipeline.running.preflight", side_effect=PreflightError("no price")):
        asyncio.run(driving(sqlite, run_id))

    found = summary(sqlite, run_id)
    assert (found.status, found.reason) == (RunStatus.FAILED, "no price")
    assert found.settled_at is not None


# --- through the API and the command line ---------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", database_url=None)


def test_a_run_is_cancelled_from_python_and_at_rest_where_nobody_drives_it(home: Settings) -> None:
    run = weirbox.plan(suite(2), settings=home, origin={"repository": "r", "pull_request": 3})

    weirbox.cancel(run.id, settings=home)

    found = run.summary()
    assert (found.status, found.reason) == (RunStatus.CANCELLED, "cancelled through the API")
    assert found.settled_at is not None
    assert found.origin == Origin(repository="r", pull_request="3")
    with pytest.raises(NotPossible, match="is cancelled already, and cannot be cancelled"):
        run.cancel()


async def test_a_run_is_cancelled_while_an_event_loop_runs(home: Settings) -> None:
    first, second = [await weirbox.aplan(suite(1), settings=home) for _ in range(2)]

    first.cancel(reason="one")
    await weirbox.acancel(second.id, settings=home)

    assert (first.summary().reason, second.summary().reason) == ("one", "cancelled through the API")


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_has_ended_cannot_be_cancelled(
    end: RunStatus, shared_database: Database
) -> None:
    run_id = in_status(shared_database, end)
    opened = runtime.Runtime(settings(), shared_database, no_secret)

    with pytest.raises(NotPossible, match=f"{run_id} is {end} already, and cannot be cancelled"):
        asyncio.run(runtime.cancel(opened, run_id, reason="late"))

    assert summary(shared_database, run_id).status is end
    assert kinds(shared_database, run_id) == ["planned"]


def test_an_origin_with_an_unknown_part_is_refused_by_name(home: Settings) -> None:
    with pytest.raises(NotPossible, match=r"origin\.repo: .*an origin has repository, pull"):
        weirbox.plan(suite(1), settings=home, origin={"repo": "x"})


def asked(**given: str) -> Asked:
    """Options of the command line."""
    parts = dict.fromkeys(("repository", "pull_request", "commit", "branch"))
    return Asked(**(parts | given))  # type: ignore[arg-type]


GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_REPOSITORY": "acme/rockets",
    "GITHUB_REF": "refs/pull/12/merge",
    "GITHUB_SHA": "abc",
    "GITHUB_HEAD_REF": "faster",
    "GITHUB_ACTOR": "ann",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_RUN_ID": "99",
}
GITLAB = {
    "GITLAB_CI": "true",
    "CI_PROJECT_PATH": "acme/boats",
    "CI_MERGE_REQUEST_IID": "4",
    "CI_COMMIT_SHA": "def",
    "CI_COMMIT_REF_NAME": "main",
    "GITLAB_USER_LOGIN": "bob",
    "CI_PIPELINE_URL": "https://gitlab.com/p/1",
}
JOBS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "github": (
        GITHUB,
        {
            **{"repository": "acme/rockets", "pull_request": "12", "commit": "abc"},
            **{"branch": "faster", "actor": "ann"},
            "url": "https://github.com/acme/rockets/actions/runs/99",
        },
    ),
    "github-push": (
        GITHUB
        | {"GITHUB_REF": "refs/heads/main", "GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "main"},
        {
            **{"repository": "acme/rockets", "commit": "abc", "branch": "main", "actor": "ann"},
            "url": "https://github.com/acme/rockets/actions/runs/99",
        },
    ),
    "gitlab": (
        GITLAB,
        {
            **{"repository": "acme/boats", "pull_request": "4", "commit": "def"},
            **{"branch": "main", "actor": "bob", "url": "https://gitlab.com/p/1"},
        },
    ),
}


@pytest.mark.parametrize(("environ", "expected"), JOBS.values(), ids=JOBS)
def test_a_ci_job_says_what_asks_for_its_run(
    environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert asked().origin(environ).model_dump(exclude_none=True) == expected
    assert asked(commit="mine").origin(environ).commit == "mine"
    assert asked().origin(None) == Origin()


def test_what_could_supersede_nothing_is_refused() -> None:
    with pytest.raises(NotPossible, match="'3' is of no repository: give --repository"):
        asked(pull_request="3").origin(None)
    with pytest.raises(NotPossible, match="--ci reads the environment of GitHub"):
        asked().origin({})


# --- events -----------------------------------------------------------------------------


def test_a_completed_run_has_one_end_on_its_timeline(sqlite: Database) -> None:
    run = drive(sqlite, suite(2))

    with sqlite.read() as connection:
        ends = connection.execute(
            select(func.count()).where(EVENT.c.run_id == run.run_id, EVENT.c.kind.in_(ENDS))
        ).scalar_one()
    assert (ends, run.settled_at) == (1, None)
