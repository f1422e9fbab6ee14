"""Trials are opened again where they failed: nothing else is done twice, nothing is lost."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import select

from tests.factories import (
    FAILS,
    PASSES,
    Fakes,
    column,
    drive,
    driving,
    go_on,
    judged,
    no_secret,
    plan,
    scores,
    suite,
    summary,
    trials,
)
from tests.fakes import SINK, limits
from tests.results import claimed, decided, executed, write
from weirbox import graders
from weirbox.domain.case import Case
from weirbox.domain.run import RunSummary
from weirbox.domain.score import Score
from weirbox.domain.seams import (
    ExportOutcome,
    Handle,
    JudgeRequest,
    TrialContext,
    TrialExport,
    Workshop,
)
from weirbox.domain.trace import Observation, StageError
from weirbox.domain.words import (
    ErrorKind,
    ExportStatus,
    FailedStage,
    Fault,
    Reason,
    RunStatus,
    ScoreState,
    Stage,
    TrialStage,
)
from weirbox.errors import HarnessError, NotPossible, ProviderError
from weirbox.pipeline import reopening
from weirbox.pipeline.reopening import Checks, Wanted, reentry
from weirbox.pipeline.running import complete_if_done
from weirbox.store import claims, queries
from weirbox.store import history as past
from weirbox.store import reopening as rows
from weirbox.store.base import ATTEMPT, EXPORT, PROPOSAL, SCORE, SCORE_HISTORY, SCORE_TEXT, TRIAL
from weirbox.store.engine import Database
from weirbox.store.reopening import Judged, Mark
from weirbox.store.rows import MISSING, redo_checks
from weirbox.store.spending import ReserveRequest
from weirbox.store.writer import Writer
from weirbox.store.writes import change_status
from weirbox.testing import MemorySink, ReplayJudge, ScriptedHarness

EVERYTHING = Wanted()

ALL_TABLES = (ATTEMPT, EXPORT, PROPOSAL, SCORE, SCORE_HISTORY, SCORE_TEXT, TRIAL)


# --- fakes that fail until they are mended ---------------------------------------------


@dataclass
class Failing(ScriptedHarness):
    """Fails for some cases until it is mended."""

    kinds: dict[str, ErrorKind] = field(default_factory=dict)

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        found = await super().run(case, handle=handle, context=context)
        if case.id in self.kinds:
            raise HarnessError(f"{case.id} broke", kind=self.kinds[case.id])
        return found


@dataclass
class Held(Failing):
    """Holds the last case back until it is told to go on."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        if case.id == "case-1":
            await self.go_on.wait()
        return await super().run(case, handle=handle, context=context)


@dataclass
class Losing(MemorySink):
    """Refuses some cases until it is mended."""

    refused: set[str] = field(default_factory=set)
    sends: list[str] = field(default_factory=list)

    async def send(self, trial: TrialExport) -> ExportOutcome:
        self.sends.append(trial.case_id)
        if trial.case_id in self.refused:
            return ExportOutcome(ExportStatus.FAILED, message="full")
        return await super().send(trial)


def asked(judge: ReplayJudge) -> list[tuple[str, str]]:
    """Judge and case of every request, sorted."""
    return sorted((request.check, request.case_id) for request in judge.requests)


def stood(database: Database, run_id: str) -> list[tuple[Any, ...]]:
    """Where each trial stands."""
    return [
        (row.stage, row.round, row.attempt, row.redo, row.claim, row.state, row.verdict)
        for row in trials(database, run_id)
    ]


def table(database: Database, run_id: str, of: Any) -> list[Any]:
    """The rows of a run in one table, sorted."""
    with database.read() as connection:
        found = connection.execute(select(of).where(of.c.run_id == run_id)).all()
    return sorted(tuple(row) for row in found)


def attempts(database: Database, run_id: str, seq: int = 0) -> list[tuple[Any, ...]]:
    """What is kept of a trial's earlier attempts."""
    with database.read() as connection:
        found = past.attempts_of(connection, run_id, seq)
    return [(one.round, one.stage, one.attempt, one.error_kind) for one in found]


def history(database: Database, run_id: str, seq: int = 0) -> list[tuple[int, str, str]]:
    """The scores that were put aside: round, name and rationale."""
    with database.read() as connection:
        found = past.replaced_scores(connection, run_id, seq)
    return [(one.round, one.name, Score.model_validate(one.body).rationale) for one in found]


def whole(run: RunSummary) -> bool:
    """Whether the counts of a run add up."""
    p = run.progress
    return p.planned == p.scored + p.unscored + p.errored + p.skipped + p.pending


# --- executions -------------------------------------------------------------------------


def test_a_failed_execution_is_executed_again_and_the_rest_is_left_alone(
    database: Database,
) -> None:
    harness = Failing(kinds={"case-1": ErrorKind.HARNESS_ERROR})
    run = drive(database, judged(3), fakes=Fakes(harness=harness, provider=passing()))
    before = stood(database, run.run_id)
    others = [row for row in table(database, run.run_id, SCORE) if row[1] != 1]
    assert before[1][5:] == ("errored", "none")
    harness.kinds.clear()

    opened = reopening.retry(database, run.run_id, EVERYTHING)

    assert (opened.run_id, opened.going) == (run.run_id, True)
    assert opened.opened == {TrialStage.EXECUTE: 1}
    after = stood(database, run.run_id)
    assert after[1] == ("execute", 2, 1, None, None, "pending", "none")
    assert [after[0], after[2]] == [before[0], before[2]]
    found = summary(database, run.run_id)
    assert (found.status, found.reason) == (RunStatus.RUNNING, "")
    assert (found.completed_at, found.finalized_at) == (None, None)
    assert found.started_at == run.started_at
    assert whole(found)
    assert (found.progress.executed, found.progress.pending) == (2, 1)
    with database.read() as connection:
        assert queries.scorecard(connection, run.run_id) is not None

    done = go_on(database, run.run_id, fakes=Fakes(harness=harness, provider=passing()))

    assert harness.runs == {"case-0": 1, "case-1": 2, "case-2": 1}
    assert (done.status, done.progress.scored, done.progress.errored) == ("completed", 3, 0)
    assert [row for row in table(database, run.run_id, SCORE) if row[1] != 1] == others
    assert attempts(database, run.run_id, 1) == [
        (1, "execute", 1, "harness_error"),
        (1, "judge", 1, None),
    ]
    assert {name for _, name, _ in history(database, run.run_id, 1)} == {"match", "quality"}
    assert done.finalized_at is not None
    with database.read() as connection:
        card = queries.scorecard(connection, run.run_id)
    assert card is not None
    assert card["errors"] == []
    assert card["verdicts"] == {"pass": 3, "fail": 0, "none": 0}


def passing() -> ReplayJudge:
    return ReplayJudge(lambda request: PASSES)


def test_a_second_retry_finds_nothing_until_something_fails_again(database: Database) -> None:
    harness = Failing(kinds={"case-0": ErrorKind.HARNESS_ERROR})
    run = drive(database, suite(2), fakes=Fakes(harness=harness))

    first = reopening.retry(database, run.run_id, EVERYTHING)
    stands = stood(database, run.run_id)
    second = reopening.retry(database, run.run_id, Wanted(errored=True))

    assert first.opened.total() == 1
    assert (second.opened.total(), second.going) == (0, False)
    assert stood(database, run.run_id) == stands
    go_on(database, run.run_id, fakes=Fakes(harness=harness))
    again = reopening.retry(database, run.run_id, EVERYTHING)
    assert again.opened == {TrialStage.EXECUTE: 1}
    assert column(database, run.run_id, "round") == [3, 1]
    assert attempts(database, run.run_id) == [
        (1, "execute", 1, "harness_error"),
        (1, "judge", 1, None),
        (2, "execute", 1, "harness_error"),
        (2, "judge", 1, None),
    ]


def test_the_attempts_that_a_stage_took_by_itself_are_numbered_through(sqlite: Database) -> None:
    harness = Failing(kinds={"case-0": ErrorKind.HARNESS_TRANSIENT})
    run = drive(sqlite, suite(1), fakes=Fakes(harness=harness))

    reopening.retry(sqlite, run.run_id, EVERYTHING)

    executions = [one for one in attempts(sqlite, run.run_id) if one[1] == "execute"]
    assert executions == [(1, "execute", n, "harness_transient") for n in (1, 2, 3)]


def test_nothing_is_opened_in_a_run_in_which_nothing_failed(database: Database) -> None:
    run = drive(database, suite(2))

    opened = reopening.retry(database, run.run_id, EVERYTHING)

    assert (opened.going, opened.opened.total()) == (False, 0)
    assert summary(database, run.run_id) == run


def test_a_malformed_record_is_not_tried_again(sqlite: Database, tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_text('{"id": "a", "input": "x", "target": "x"}\n{"id": \n')
    dataset = {"path": str(tmp_path / "cases.jsonl"), "on_error": "quarantine"}
    run = drive(sqlite, suite(dataset=dataset))
    assert run.progress.errored == 1

    assert not reopening.retry(sqlite, run.run_id, EVERYTHING).going


def test_an_execution_that_was_reusable_is_not_reused_once_it_is_opened_again(
    sqlite: Database,
) -> None:
    harness = Failing(kinds={})
    run = drive(sqlite, suite(1, reuse=True), fakes=Fakes(harness=harness))
    with sqlite.write() as connection:
        [page] = rows.judged_trials(connection, run.run_id, sinks=())
        chosen = [rows.Reentry(seq=page[0].seq, stage=TrialStage.EXECUTE)]
        everything = lambda entry, name: True  # noqa: E731
        rows.open_again(connection, run.run_id, chosen, replaced=everything, why="by hand")
        rows.set_going(connection, run.run_id)

    go_on(sqlite, run.run_id, fakes=Fakes(harness=harness))

    assert harness.runs == {"case-0": 2}
    assert column(sqlite, run.run_id, "cached") == [False]


# --- judging -----------------------------------------------------------------------------


def flaky(replies: dict[tuple[str, str], Any]) -> ReplayJudge:
    """A judge that passes, but for (check, case) that have another reply or an error."""

    def reply(request: JudgeRequest) -> str:
        found = replies.get((request.check, request.case_id), PASSES)
        if isinstance(found, Exception):
            raise found
        return str(found)

    return ReplayJudge(reply, cost_usd=0.01)


DOWN = ProviderError("down", reason=Reason.PROVIDER_ERROR)
UNREADABLE = "no verdict at all"


def test_only_the_judges_that_gave_nothing_are_asked_again(database: Database) -> None:
    replies: dict[tuple[str, str], Any] = {
        ("tone", "case-0"): DOWN,
        ("tone", "case-1"): UNREADABLE,
    }
    judge = flaky(replies)
    harness = ScriptedHarness()
    fakes = Fakes(harness=harness, provider=judge)
    run = drive(database, judged(3, "tone", "facts"), fakes=fakes)
    kept = [row for row in table(database, run.run_id, SCORE) if row[2] != "tone"]
    replies.clear()
    judge.requests.clear()

    opened = reopening.retry(database, run.run_id, EVERYTHING)

    assert opened.opened == {TrialStage.JUDGE: 2}
    assert [redo_checks(redo) for redo in column(database, run.run_id, "redo")] == [
        {"tone"},
        {"tone"},
        set(),
    ]
    assert [row for row in table(database, run.run_id, SCORE) if row[2] != "tone"] == kept
    done = go_on(database, run.run_id, fakes=fakes)
    assert asked(judge) == [("tone", "case-0"), ("tone", "case-1")]
    assert set(harness.runs.values()) == {1}
    assert [row for row in table(database, run.run_id, SCORE) if row[2] != "tone"] == kept
    assert (done.dispositions.clean, done.verdicts.passed) == (3, 3)
    assert column(database, run.run_id, "redo") == [None] * 3


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (Wanted(errored=True), ["case-0"]),
        (Wanted(unscored=True), ["case-1"]),
        (Wanted(errored=True, unscored=True), ["case-0", "case-1"]),
        (Wanted(stage=FailedStage.JUDGE), ["case-0", "case-1"]),
        (Wanted(fault=Fault.INFRA), ["case-0"]),
        (Wanted(fault=Fault.CONFIG), []),
        (Wanted(stage=FailedStage.EXPORT), []),
        (Wanted(stage=FailedStage.COLLECT), []),
    ],
    ids=str,
)
def test_a_selector_opens_what_it_names(
    shared_database: Database, wanted: Wanted, chosen: list[str]
) -> None:
    judge = flaky({("quality", "case-0"): DOWN, ("quality", "case-1"): UNREADABLE})
    run = drive(shared_database, judged(3), fakes=Fakes(provider=judge))

    reopening.retry(shared_database, run.run_id, wanted)

    opened = [row.case_id for row in trials(shared_database, run.run_id) if row.stage != "done"]
    assert opened == chosen
    finalized = summary(shared_database, run.run_id).finalized_at
    assert (finalized is None) == bool(chosen)


def test_a_new_round_pays_for_its_calls_under_the_one_budget(database: Database) -> None:
    judge = flaky({("quality", "case-0"): UNREADABLE})
    limited = judged(2, budget={"calls": 3})
    run = drive(database, limited, fakes=Fakes(provider=judge))
    assert (run.calls, round(run.cost_usd, 9)) == (2, 0.02)

    for _ in range(2):
        reopening.retry(database, run.run_id, EVERYTHING)
        run = go_on(database, run.run_id, fakes=Fakes(provider=judge))

    assert run.calls == 3
    assert scores(database, run.run_id)["quality"].reason is Reason.BUDGET
    with database.read() as connection:
        calls = {r: len(queries.load_calls(connection, run.run_id, 0, round=r)) for r in (1, 2, 3)}
    assert calls == {1: 1, 2: 1, 3: 0}


def test_a_grader_that_broke_is_run_again_without_asking_any_judge(sqlite: Database) -> None:
    grader = Breaking()
    judge = passing()
    fakes = Fakes(grader=grader, provider=judge)
    run = drive(sqlite, judged(2), fakes=fakes)
    assert scores(sqlite, run.run_id)["match"].state is ScoreState.ERRORED
    grader.broken = False
    judge.requests.clear()

    reopening.retry(sqlite, run.run_id, Wanted(errored=True))
    done = go_on(sqlite, run.run_id, fakes=fakes)

    assert judge.requests == []
    assert scores(sqlite, run.run_id)["match"].passed is True
    assert done.verdicts.passed == 2


@dataclass
class Breaking:
    """A grader that raises until it is mended."""

    name: str = "match"
    needs_compute: bool = False
    broken: bool = True

    async def grade(
        self, case: Case, observation: Observation, *, handle: Handle | None
    ) -> list[Score]:
        if self.broken:
            raise ValueError("broken")
        return [Score(name="match", value=True, passed=True)]


# --- rejudge -----------------------------------------------------------------------------


def test_rejudging_replaces_one_judge_s_scores_and_keeps_the_others_and_the_old(
    database: Database,
) -> None:
    replies: dict[tuple[str, str], Any] = {("tone", "case-0"): FAILS}
    judge = flaky(replies)
    run = drive(database, judged(2, "tone", "facts"), fakes=Fakes(provider=judge))
    kept = [row for row in table(database, run.run_id, SCORE) if row[2] != "tone"]
    texts = [row for row in table(database, run.run_id, SCORE_TEXT) if row[2] != "tone"]
    assert [row[2] for row in table(database, run.run_id, PROPOSAL)] == ["tone"]
    assert run.dispositions.quarantined == 1
    replies.clear()
    replies["tone", "case-1"] = FAILS
    judge.requests.clear()

    opened = reopening.rejudge(database, run.run_id, "tone")
    twice = reopening.rejudge(database, run.run_id, "tone")

    assert opened.opened == {TrialStage.JUDGE: 2}
    assert not twice.going
    done = go_on(database, run.run_id, fakes=Fakes(provider=judge))
    assert asked(judge) == [("tone", "case-0"), ("tone", "case-1")]
    assert [row for row in table(database, run.run_id, SCORE) if row[2] != "tone"] == kept
    assert [row for row in table(database, run.run_id, SCORE_TEXT) if row[2] != "tone"] == texts
    assert history(database, run.run_id, 0) == [(1, "tone", "wrong")]
    assert history(database, run.run_id, 1) == [(1, "tone", "right")]
    assert scores(database, run.run_id, 0)["tone"].rationale == "right"
    assert [row[1:3] for row in table(database, run.run_id, PROPOSAL)] == [(1, "tone")]
    assert column(database, run.run_id, "disposition") == ["clean", "quarantined"]
    assert (done.calls, done.dispositions.quarantined) == (6, 1)
    assert attempts(database, run.run_id) == [(1, "judge", 1, None)]


def test_two_judges_that_are_to_be_asked_anew_are_both_asked(sqlite: Database) -> None:
    judge = passing()
    run = drive(sqlite, judged(1, "tone", "facts", "style"), fakes=Fakes(provider=judge))
    judge.requests.clear()

    reopening.rejudge(sqlite, run.run_id, "tone")
    reopening.rejudge(sqlite, run.run_id, "style")
    go_on(sqlite, run.run_id, fakes=Fakes(provider=judge))

    assert asked(judge) == [("style", "case-0"), ("tone", "case-0")]
    assert len(scores(sqlite, run.run_id)) == 4


def test_a_judge_that_routing_left_out_is_left_out_still(sqlite: Database) -> None:
    rules = [
        {"kind": "regex", "name": "form", "path": "input", "pattern": "in 1", "otherwise": "review"}
    ]
    planned = judged(2, rules=rules, routing={"clean_sample_rate": 0})
    judge = passing()
    run = drive(sqlite, planned, fakes=Fakes(provider=judge))
    assert asked(judge) == [("quality", "case-0")]

    opened = reopening.rejudge(sqlite, run.run_id, "quality")
    go_on(sqlite, run.run_id, fakes=Fakes(provider=judge))

    assert opened.opened.total() == 1
    assert asked(judge) == [("quality", "case-0")] * 2
    assert scores(sqlite, run.run_id, 1)["quality"].reason is Reason.POLICY_SKIP


def test_a_judge_that_is_not_there_is_named_with_those_that_are(sqlite: Database) -> None:
    run = drive(sqlite, judged(1, "tone", "facts"), fakes=Fakes(provider=passing()))

    with pytest.raises(NotPossible, match="no judge 'style'; it has 'tone', 'facts'"):
        reopening.rejudge(sqlite, run.run_id, "style")

    assert summary(sqlite, run.run_id) == run


# --- exports -----------------------------------------------------------------------------

TWO_SINKS = (
    {"kind": "jsonl", "name": "good", "path": "/nowhere"},
    {"kind": "jsonl", "name": "bad", "path": "/nowhere"},
)


def test_only_what_is_missing_is_sent(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Losing("good"), Losing("bad", refused={"case-1", "case-2"})
    from weirbox import sinks

    by_name = {"good": good, "bad": bad}
    monkeypatch.setattr(sinks, "build", lambda spec, read_secret: by_name[spec.name])
    run = drive(database, suite(3, sinks=TWO_SINKS))
    kept = [row for row in table(database, run.run_id, EXPORT) if row[2] == "good"]
    bad.refused = {"case-2"}
    good.sends.clear()
    bad.sends.clear()

    opened = reopening.export_retry(database, run.run_id)

    assert opened.opened == {TrialStage.EXPORT: 2}
    assert column(database, run.run_id, "redo") == [None, MISSING, MISSING]
    assert column(database, run.run_id, "verdict") == ["pass"] * 3
    done = go_on(database, run.run_id)
    assert (good.sends, sorted(set(bad.sends))) == ([], ["case-1", "case-2"])
    assert [row for row in table(database, run.run_id, EXPORT) if row[2] == "good"] == kept
    statuses = [row[3] for row in table(database, run.run_id, EXPORT) if row[2] == "bad"]
    assert statuses == ["succeeded", "succeeded", "failed"]
    assert done.status == "completed"
    assert done.verdicts == run.verdicts
    bad.refused.clear()
    assert reopening.retry(database, run.run_id, Wanted(stage=FailedStage.EXPORT)).opened == {
        TrialStage.EXPORT: 1
    }
    go_on(database, run.run_id)
    before = summary(database, run.run_id)
    assert not reopening.export_retry(database, run.run_id).going
    assert summary(database, run.run_id) == before


def test_a_file_has_the_latest_round_of_a_trial(sqlite: Database, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    kinds = ("jsonl", "parquet")
    to = [{"kind": kind, "name": kind, "path": str(tmp_path / kind)} for kind in kinds]
    judge = flaky({("quality", "case-0"): FAILS})
    run = drive(sqlite, judged(2, sinks=to), fakes=Fakes(provider=judge))

    reopening.rejudge(sqlite, run.run_id, "quality")
    go_on(sqlite, run.run_id, fakes=Fakes(provider=passing()))

    table = pq.read_table(tmp_path / "parquet" / run.run_id / "trials.parquet").to_pylist()
    assert sorted((row["case_id"], row["disposition"]) for row in table) == [
        ("case-0", "clean"),
        ("case-1", "clean"),
    ]
    folder = tmp_path / "jsonl" / run.run_id
    lines = [json.loads(line) for part in folder.glob("trials-*") for line in part.open()]
    latest = {line["case_id"]: line for line in sorted(lines, key=lambda line: line["round"])}
    assert {name: line["disposition"] for name, line in latest.items()} == {
        "case-0": "clean",
        "case-1": "clean",
    }
    assert json.loads((folder / "complete.json").read_text())["trials"] == 2


# --- status, claims, rounds -----------------------------------------------------------------


@pytest.mark.parametrize("status", [RunStatus.CANCELLED, RunStatus.SUPERSEDED])
def test_a_run_that_was_ended_on_purpose_is_refused_with_the_way_out(
    shared_database: Database, status: RunStatus
) -> None:
    run_id = plan(shared_database, suite(1, sinks=SINK))
    with shared_database.write() as connection:
        change_status(connection, run_id, to=status)
    before = stood(shared_database, run_id)

    for again in (
        partial(reopening.retry, wanted=EVERYTHING),
        reopening.export_retry,
    ):
        with pytest.raises(NotPossible, match=f"is {status}.*weirbox retry {run_id} --new"):
            again(shared_database, run_id)

    assert stood(shared_database, run_id) == before


def test_a_run_that_failed_before_it_began_goes_on(database: Database) -> None:
    run_id = plan(database, suite(2))
    with database.write() as connection:
        change_status(connection, run_id, to=RunStatus.FAILED, reason="no secret")

    assert not reopening.retry(database, run_id, Wanted(errored=True)).going
    opened = reopening.retry(database, run_id, EVERYTHING)

    assert (opened.going, opened.opened.total()) == (True, 0)
    done = go_on(database, run_id)
    assert (done.status, done.reason, done.progress.scored) == ("completed", "", 2)


def test_a_result_from_before_the_opening_changes_nothing_under_the_same_claim(
    database: Database,
) -> None:
    run_id = plan(database, suite(1, sinks=SINK))
    with database.write() as connection:
        change_status(connection, run_id, to=RunStatus.RUNNING)
    [ticket] = claimed(database, run_id)
    write(database, executed(ticket))
    bad = decided(
        ticket,
        state=ScoreState.ERRORED,
        scores=(Score(name="match", state="errored", reason="grader_error"),),
    )
    write(database, bad)

    opened = reopening.retry(database, run_id, EVERYTHING)

    assert opened.opened == {TrialStage.JUDGE: 1}
    assert column(database, run_id, "claim") == [None]
    with database.write() as connection:
        [again] = claims.claim_trials(connection, run_id, ticket.token, 1)
    assert (again.token, again.round) == (ticket.token, 2)
    assert write(database, bad) == [False]
    assert column(database, run_id, "state") == ["pending"]
    assert table(database, run_id, SCORE) == []
    assert write(database, decided(again)) == [True]


def test_nothing_is_paid_for_a_trial_that_was_opened_again_meanwhile(database: Database) -> None:
    run_id = plan(database, judged(2, "first", "second", budget={"usd": 1.0}))
    with database.write() as connection:
        change_status(connection, run_id, to=RunStatus.RUNNING)
    tickets = claimed(database, run_id)
    write(database, *(executed(ticket) for ticket in tickets))
    score = Score(name="first", state="scored", value="pass", source="judge", authority="judge")
    write(database, *(decided(ticket, scores=(score,)) for ticket in tickets[:1]))
    writer = Writer(database)
    requests = [ReserveRequest(ticket, 1) for ticket in tickets]

    reopening.rejudge(database, run_id, "first")
    granted = [writer.submit(request).result() is not None for request in requests]
    writer.close()

    assert granted == [False, True]


def test_an_opening_that_is_cut_off_leaves_everything_as_it_was(database: Database) -> None:
    harness = Failing(kinds={"case-0": ErrorKind.HARNESS_ERROR})
    run = drive(database, suite(2, sinks=SINK), fakes=Fakes(harness=harness, sink=MemorySink()))
    before = [table(database, run.run_id, one) for one in ALL_TABLES]

    steps = ((past, "put_scores_aside"), (rows, "_drop_proposals"), (rows, "_move"))
    for module, step in (*steps, (rows, "set_going")):
        cut_off = patch.object(module, step, side_effect=KeyboardInterrupt)
        with cut_off, pytest.raises(KeyboardInterrupt):
            reopening.retry(database, run.run_id, EVERYTHING)
        assert [table(database, run.run_id, one) for one in ALL_TABLES] == before, step

    assert summary(database, run.run_id) == run
    assert reopening.retry(database, run.run_id, EVERYTHING).going


async def test_what_is_opened_while_a_driver_works_is_taken_up_by_it(database: Database) -> None:
    harness = Held(kinds={"case-0": ErrorKind.HARNESS_ERROR})
    run_id = plan(database, suite(2, concurrency=limits(2)))
    work = asyncio.create_task(driving(database, run_id, fakes=Fakes(harness=harness)))
    async with asyncio.timeout(30):
        while column(database, run_id, "stage") != ["done", "execute"]:  # noqa: ASYNC110 - rows
            await asyncio.sleep(0.02)
    assert column(database, run_id, "claim")[0] is not None
    harness.kinds.clear()

    opened = await asyncio.to_thread(reopening.retry, database, run_id, Wanted(errored=True))
    harness.go_on.set()

    assert opened.opened == {TrialStage.EXECUTE: 1}
    assert await asyncio.wait_for(work, 30) is RunStatus.COMPLETED
    assert harness.runs == {"case-0": 2, "case-1": 1}
    assert summary(database, run_id).progress.scored == 2


def test_trials_that_are_opened_while_the_run_completes_are_not_left_behind(
    database: Database,
) -> None:
    run_id = plan(database, suite(1))
    with database.write() as connection:
        change_status(connection, run_id, to=RunStatus.RUNNING)
    [ticket] = claimed(database, run_id)
    error = StageError(kind=ErrorKind.HARNESS_ERROR, message="broke")
    write(database, executed(ticket, error=error))
    write(database, decided(ticket, state=ScoreState.ERRORED))

    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            opening = pool.submit(reopening.retry, database, run_id, EVERYTHING)
            pool.submit(complete_if_done, database, run_id).result()
            opening.result()

            assert summary(database, run_id).status is RunStatus.RUNNING
            assert column(database, run_id, "stage") == ["execute"]
            with database.write() as connection:
                claims.release_claim(connection, ticket.token)
            [ticket] = claimed(database, run_id)
            write(database, executed(ticket, error=error))
            write(database, decided(ticket, state=ScoreState.ERRORED))


def test_a_run_is_not_completed_over_trials_that_are_opened_meanwhile(database: Database) -> None:
    run = drive(
        database, suite(1), fakes=Fakes(harness=Failing(kinds={"case-0": ErrorKind.HARNESS_ERROR}))
    )
    reopening.retry(database, run.run_id, EVERYTHING)

    assert complete_if_done(database, run.run_id) is RunStatus.RUNNING


# --- a new run ---------------------------------------------------------------------------------


def test_a_new_run_carries_over_what_is_done_and_does_the_rest(database: Database) -> None:
    harness = Failing(kinds={"case-1": ErrorKind.HARNESS_ERROR})
    judge = flaky({("quality", "case-2"): DOWN, ("quality", "case-0"): FAILS})
    sink = Losing()
    planned = judged(4, sinks=SINK)
    fakes = Fakes(harness=harness, provider=judge, sink=sink)
    parent = drive(database, planned, fakes=fakes)
    before = [table(database, parent.run_id, one) for one in (SCORE, SCORE_TEXT, EXPORT)]
    harness.kinds.clear()
    harness.runs.clear()
    judge.requests.clear()
    sink.sends.clear()
    mended = flaky({("quality", "case-0"): FAILS})

    opened = reopening.retry(database, parent.run_id, EVERYTHING, new=True)

    assert opened.run_id != parent.run_id
    assert opened.opened == {TrialStage.EXECUTE: 1, TrialStage.JUDGE: 1}
    begun = summary(database, opened.run_id)
    assert (begun.status, begun.parent, begun.calls) == ("pending", parent.run_id, 0)
    assert whole(begun)
    assert [(row.stage, row.cached) for row in trials(database, opened.run_id)] == [
        ("export", True),
        ("execute", False),
        ("judge", True),
        ("export", True),
    ]
    done = go_on(database, opened.run_id, fakes=Fakes(harness=harness, provider=mended, sink=sink))
    assert harness.runs == {"case-1": 1}
    assert asked(mended) == [("quality", "case-1"), ("quality", "case-2")]
    assert sorted(sink.sends) == [f"case-{n}" for n in range(4)]
    assert (done.status, done.progress.scored, done.progress.cached) == ("completed", 4, 3)
    assert done.dispositions.quarantined == 1
    assert [row[1:3] for row in table(database, done.run_id, PROPOSAL)] == [(0, "quality")]
    assert scores(database, done.run_id, 0) == scores(database, parent.run_id, 0)
    assert summary(database, parent.run_id) == parent
    assert [table(database, parent.run_id, one) for one in (SCORE, SCORE_TEXT, EXPORT)] == before


def test_a_cancelled_run_is_carried_over_as_far_as_it_had_come(database: Database) -> None:
    run_id = plan(database, suite(3))
    with database.write() as connection:
        change_status(connection, run_id, to=RunStatus.RUNNING)
    first, second, _ = claimed(database, run_id)
    write(database, executed(first), executed(second))
    write(database, decided(first, scores=(Score(name="match", value=True, passed=True),)))
    with database.write() as connection:
        change_status(connection, run_id, to=RunStatus.CANCELLED)
    harness = ScriptedHarness()

    opened = reopening.retry(database, run_id, EVERYTHING, new=True)

    assert column(database, opened.run_id, "stage") == ["done", "judge", "execute"]
    done = go_on(database, opened.run_id, fakes=Fakes(harness=harness))
    assert harness.runs == {"case-2": 1}
    assert (done.progress.scored, done.progress.cached) == (3, 2)


def test_a_live_run_is_not_carried_over(sqlite: Database) -> None:
    run_id = plan(sqlite, suite(1))

    with pytest.raises(NotPossible, match="is pending: retry it as it is"):
        reopening.retry(sqlite, run_id, EVERYTHING, new=True)


# --- the decision -------------------------------------------------------------------------------

CHECKS = Checks(all=("tests", "match", "rule", "tone"), of_execute=frozenset({"tests"}))


def trial(*marks: Mark, **changes: Any) -> Judged:
    fields: dict[str, Any] = {
        "seq": 0,
        "redo": frozenset(),
        "error_stage": None,
        "error_kind": None,
        "marks": marks,
        "unsent": False,
    }
    return Judged(**(fields | changes))


def mark(
    name: str, state: str = "errored", reason: str = "grader_error", source: str = "grader"
) -> Mark:
    return Mark(name, state, reason, source)


def failed(stage: Stage, kind: ErrorKind, *marks: Mark) -> Judged:
    return trial(*marks, error_stage=stage, error_kind=kind)


TONE = mark("tone", reason="provider_error", source="judge")
ALL = Wanted().effective

DECISIONS: dict[str, tuple[Judged, Wanted, tuple[str, set[str]] | None]] = {
    "nothing failed": (trial(), ALL, None),
    "a lost sandbox": (
        failed(Stage.EXECUTE, ErrorKind.COMPUTE_LOST, mark("tone", reason="stage_error")),
        ALL,
        ("execute", set()),
    ),
    "what follows from it is not of the judges": (
        failed(Stage.EXECUTE, ErrorKind.COMPUTE_LOST, mark("tone", reason="stage_error")),
        Wanted(stage=FailedStage.JUDGE),
        None,
    ),
    "a time-out of the agent is a measurement": (
        failed(Stage.EXECUTE, ErrorKind.HARNESS_TIMEOUT),
        ALL,
        None,
    ),
    "unless its fault is named": (
        failed(Stage.EXECUTE, ErrorKind.HARNESS_TIMEOUT),
        Wanted(fault=Fault.AGENT),
        ("execute", set()),
    ),
    "a judge failed on a timed-out agent": (
        failed(Stage.EXECUTE, ErrorKind.HARNESS_TIMEOUT, TONE),
        ALL,
        ("judge", {"tone"}),
    ),
    "infra is not the harness": (
        failed(Stage.EXECUTE, ErrorKind.HARNESS_ERROR),
        Wanted(fault=Fault.INFRA),
        None,
    ),
    "infra": (
        failed(Stage.EXECUTE, ErrorKind.PROVISION),
        Wanted(fault=Fault.INFRA),
        ("execute", set()),
    ),
    "a trace that could not be pulled": (
        failed(Stage.EXECUTE, ErrorKind.COLLECT),
        Wanted(stage=FailedStage.COLLECT),
        ("judge", set()),
    ),
    "collect is nothing else": (
        failed(Stage.EXECUTE, ErrorKind.PROVISION),
        Wanted(stage=FailedStage.COLLECT),
        None,
    ),
    "a grader that ran in compute": (trial(mark("tests.one")), ALL, ("execute", set())),
    "a grader of observations": (trial(mark("match.f1")), ALL, ("judge", {"match"})),
    "a rule decides who is asked": (
        trial(mark("rule", source="rule"), TONE),
        ALL,
        ("judge", set()),
    ),
    "judging broke": (
        failed(Stage.JUDGE, ErrorKind.INTERNAL, mark("tone", reason="stage_error")),
        ALL,
        ("judge", set()),
    ),
    "what is to be measured again already stays so": (
        trial(TONE, redo=frozenset({"match"})),
        ALL,
        ("judge", {"match", "tone"}),
    ),
    "an export": (trial(unsent=True), ALL, ("export", set())),
    "an export is of infra": (trial(unsent=True), Wanted(fault=Fault.INFRA), ("export", set())),
    "an export is not unscored": (trial(unsent=True), Wanted(unscored=True), None),
    "a malformed record": (failed(Stage.EXECUTE, ErrorKind.PARSE), ALL, None),
}


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "tests-pass", "target": ["test_it.py"]},
        {"kind": "command", "argv": ["true"]},
        {"kind": "answer-match"},
        {"kind": "latency"},
    ],
    ids=lambda spec: str(spec["kind"]),
)
def test_a_suite_says_which_graders_measure_in_compute(spec: dict[str, Any]) -> None:
    [declared] = suite(1, graders=[spec | {"name": "it"}]).graders
    workshop = Workshop(folder="/", read_file=lambda path: b"", read_secret=no_secret)

    assert graders.build(declared, workshop).needs_compute is declared.needs_compute


@pytest.mark.parametrize("case", DECISIONS)
def test_where_a_trial_goes_on_from(case: str) -> None:
    given, wanted, expected = DECISIONS[case]

    found = reentry(given, wanted, CHECKS)

    assert (found and (str(found.stage), set(found.checks))) == expected
