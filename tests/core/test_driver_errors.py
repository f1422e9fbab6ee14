"""Whatever a part of a trial does, it is one trial's trouble and a state with a reason."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from tests.factories import PASSES, Fakes, column, drive, judged, scores, suite, timeline, trials
from tests.fakes import SINK, Harness, number, passing
from weirbox.domain.case import Case
from weirbox.domain.policy import POLICIES
from weirbox.domain.score import Score
from weirbox.domain.seams import ExportOutcome, Handle, RuleResult, TrialExport
from weirbox.domain.spec import ComputeSpec
from weirbox.domain.trace import Observation, StageError
from weirbox.domain.words import ErrorKind, ExportStatus, Reason, RuleOutcome, RunStatus, ScoreState
from weirbox.errors import HarnessError, ProviderError, ProvisionError
from weirbox.store import queries
from weirbox.store.engine import Database
from weirbox.testing import MemoryCompute, MemorySink, ReplayJudge

HARNESS_KINDS = [kind for kind in ErrorKind if kind not in (ErrorKind.PARSE, ErrorKind.SINK)]


@pytest.mark.parametrize("kind", HARNESS_KINDS)
def test_an_execution_is_tried_as_often_as_its_error_allows(
    kind: ErrorKind, shared_sqlite: Database
) -> None:
    def raising(case: Case) -> str:
        raise HarnessError("no luck", kind=kind, detail="the stack")

    harness = Harness(answer=raising)

    run = drive(shared_sqlite, suite(1), fakes=Fakes(harness=harness))

    policy = POLICIES[kind]
    [trial] = trials(shared_sqlite, run.run_id)
    assert harness.runs == {"case-0": policy.attempts}
    assert (trial.error_stage, trial.error_kind) == ("execute", kind)
    assert trial.error_message == "no luck"
    assert run.status is RunStatus.COMPLETED
    assert (run.progress.errored, run.progress.scored) == ((0, 1) if policy.count else (1, 0))
    assert run.dispositions.review == 1


def test_compute_that_cannot_be_had_is_asked_for_three_times(shared_sqlite: Database) -> None:
    class Full(MemoryCompute):
        asked = 0

        async def provision(self, spec: ComputeSpec, *, correlation: str) -> Handle:
            Full.asked += 1
            raise ProvisionError("no room")

    run = drive(
        shared_sqlite, suite(1), fakes=Fakes(compute=Full(), harness=Harness(needs_compute=True))
    )

    assert Full.asked == 3
    assert (run.progress.errored, run.verdicts.none) == (1, 1)
    [score] = scores(shared_sqlite, run.run_id).values()
    assert (score.state, score.reason) == (ScoreState.ERRORED, Reason.STAGE_ERROR)


def test_compute_that_is_had_at_the_third_attempt_leaves_no_error(shared_sqlite: Database) -> None:
    class Scarce(MemoryCompute):
        asked = 0

        async def provision(self, spec: ComputeSpec, *, correlation: str) -> Handle:
            Scarce.asked += 1
            if Scarce.asked < 3:
                raise ProvisionError("no room")
            return await super().provision(spec, correlation=correlation)

    place = Scarce()

    run = drive(
        shared_sqlite, suite(1), fakes=Fakes(compute=place, harness=Harness(needs_compute=True))
    )

    [trial] = trials(shared_sqlite, run.run_id)
    assert (run.verdicts.passed, trial.error_kind, trial.error_message) == (1, None, None)
    assert [handle.released for handle in place.handles] == [1]
    assert trial.compute_s > 0


def test_a_harness_that_exits_badly_is_graded_on_what_it_left(shared_sqlite: Database) -> None:
    class Exits(Harness):
        async def run(self, case: Case, **options: Any) -> Observation:
            error = StageError(kind=ErrorKind.HARNESS_EXIT, message="exit status 7")
            return Observation(output=case.target, error=error)

    run = drive(shared_sqlite, suite(1), fakes=Fakes(harness=Exits()))

    [trial] = trials(shared_sqlite, run.run_id)
    assert (run.progress.scored, run.verdicts.passed, run.dispositions.review) == (1, 1, 1)
    assert (trial.error_stage, trial.error_message) == ("execute", "exit status 7")


FAULTS: dict[str, BaseException] = {
    "any": RuntimeError("boom"),
    "key": KeyError("boom"),
    "os": OSError("boom"),
    "cancelled-from-inside": asyncio.CancelledError("boom"),
    "stop": StopAsyncIteration("boom"),
    "nul": RuntimeError("a\0b\ud800"),
}


@pytest.mark.parametrize("needs_compute", [False, True], ids=["bare", "in-compute"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_whatever_a_harness_raises_is_an_errored_trial_and_no_more(
    fault: BaseException, needs_compute: bool, shared_sqlite: Database
) -> None:
    def answer(case: Case) -> str:
        if number(case) == 1:
            raise fault
        return str(case.input)

    place = MemoryCompute()
    fakes = Fakes(harness=Harness(answer=answer, needs_compute=needs_compute), compute=place)

    run = drive(shared_sqlite, suite(3), fakes=fakes)

    states = column(shared_sqlite, run.run_id, "state")
    assert states == ["scored", "errored", "scored"]
    assert run.status is RunStatus.COMPLETED
    assert {handle.released for handle in place.handles} <= {1}


def test_a_value_that_no_database_can_hold_is_an_errored_trial_and_no_more(
    shared_database: Database,
) -> None:
    class Grader:
        name, needs_compute = "match", False

        async def grade(self, case: Case, observation: Observation, *, handle: Any) -> list[Score]:
            return [Score(name="match", value=10**5000 if number(case) == 1 else 1)]

    run = drive(shared_database, suite(3), fakes=Fakes(grader=Grader()))

    assert column(shared_database, run.run_id, "state") == ["scored", "errored", "scored"]
    assert run.status is RunStatus.COMPLETED
    assert column(shared_database, run.run_id, "error_stage") == [None, "judge", None]


def test_an_exploding_grader_is_an_errored_score(shared_sqlite: Database) -> None:
    class Grader:
        name, needs_compute = "match", False

        async def grade(self, case: Case, observation: Observation, *, handle: Any) -> list[Score]:
            raise ZeroDivisionError("by nothing")

    run = drive(shared_sqlite, suite(2), fakes=Fakes(grader=Grader()))

    score = scores(shared_sqlite, run.run_id)["match"]
    assert (score.state, score.reason) == (ScoreState.ERRORED, Reason.GRADER_ERROR)
    assert "by nothing" in score.rationale
    assert (run.progress.errored, run.dispositions.review) == (2, 2)


def test_an_exploding_rule_goes_to_the_judges_and_to_review(shared_sqlite: Database) -> None:
    class Rule:
        name, check = "plausible", None

        def apply(self, case: Case, observation: Observation, twin: str | None) -> RuleResult:
            raise ZeroDivisionError("by nothing")

    provider = passing()
    rule = {"kind": "required", "name": "plausible", "paths": ["id"]}

    run = drive(shared_sqlite, judged(2, rules=[rule]), fakes=Fakes(rule=Rule(), provider=provider))

    found = scores(shared_sqlite, run.run_id)
    assert found["plausible"].state is ScoreState.ERRORED
    assert found["quality"].passed is True
    assert len(provider.requests) == 2
    assert (run.progress.scored, run.dispositions.review) == (2, 2)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (RuntimeError("boom"), Reason.PROVIDER_ERROR),
        (ProviderError("gone"), Reason.PROVIDER_ERROR),
        (ProviderError("slow", reason=Reason.TIMEOUT), Reason.TIMEOUT),
    ],
)
def test_a_judge_that_fails_is_an_errored_score_and_no_fail(
    fault: Exception, reason: Reason, shared_sqlite: Database
) -> None:
    def raising(request: Any) -> str:
        raise fault

    run = drive(shared_sqlite, judged(2, graders=[]), fakes=Fakes(provider=ReplayJudge(raising)))

    score = scores(shared_sqlite, run.run_id)["quality"]
    assert (score.state, score.reason) == (ScoreState.ERRORED, reason)
    assert (run.verdicts.failed, run.verdicts.none) == (0, 2)
    assert (run.progress.errored, run.dispositions.review) == (2, 2)


def test_a_rule_that_fails_pays_for_no_judge(shared_sqlite: Database) -> None:
    class Rule:
        name, check = "plausible", None

        def apply(self, case: Case, observation: Observation, twin: str | None) -> RuleResult:
            return RuleResult(RuleOutcome.FAIL, "wrong")

    provider = passing()
    rule = {"kind": "required", "name": "plausible", "paths": ["id"]}

    run = drive(shared_sqlite, judged(2, rules=[rule]), fakes=Fakes(rule=Rule(), provider=provider))

    assert provider.requests == []
    assert run.dispositions.quarantined == 2


def test_an_exploding_sink_fails_exports_and_nothing_else(shared_sqlite: Database) -> None:
    class Sink(MemorySink):
        calls = 0

        async def send(self, trial: TrialExport) -> ExportOutcome:
            Sink.calls += 1
            raise ConnectionError("no route")

    run = drive(shared_sqlite, suite(3, sinks=SINK), fakes=Fakes(sink=Sink()))

    with shared_sqlite.read() as connection:
        rows = [queries.exports_of(connection, run.run_id, seq) for seq in range(3)]
    assert [[(row.status, row.message) for row in exports] for exports in rows] == [
        [("failed", "ConnectionError: no route")]
    ] * 3
    assert Sink.calls == 3 * POLICIES[ErrorKind.SINK].attempts
    assert (run.status, run.verdicts.passed) == (RunStatus.COMPLETED, 3)
    assert column(shared_sqlite, run.run_id, "error_kind") == [None, None, None]


def test_a_sink_that_fails_once_is_sent_the_trial_again(shared_sqlite: Database) -> None:
    failed: set[str] = set()

    class Sink(MemorySink):
        async def send(self, trial: TrialExport) -> ExportOutcome:
            if trial.case_id not in failed:
                failed.add(trial.case_id)
                return ExportOutcome(ExportStatus.FAILED, message="busy")
            return await super().send(trial)

    sink = Sink()

    run = drive(shared_sqlite, suite(3, sinks=SINK), fakes=Fakes(sink=sink))

    assert len(sink.sent) == 3
    with shared_sqlite.read() as connection:
        rows = [queries.exports_of(connection, run.run_id, seq) for seq in range(3)]
    assert [[row.status for row in exports] for exports in rows] == [["succeeded"]] * 3


def test_a_sink_that_cannot_be_set_up_is_a_warning_of_the_run(shared_sqlite: Database) -> None:
    class Sink(MemorySink):
        async def set_up(self, run: Any) -> None:
            raise PermissionError("read-only")

    run = drive(shared_sqlite, suite(1, sinks=SINK), fakes=Fakes(sink=Sink()))

    assert run.status is RunStatus.COMPLETED
    warnings = [
        message for kind, message in timeline(shared_sqlite, run.run_id) if kind == "warning"
    ]
    assert "sink 'memory' cannot be set up: PermissionError: read-only" in warnings


def test_a_fault_in_judging_is_tried_again_and_calls_are_not_paid_twice(
    shared_sqlite: Database,
) -> None:
    provider = ReplayJudge(lambda request: PASSES, cost_usd=0.01)
    faults = [RuntimeError("boom")]

    def decide(*arguments: Any, **options: Any) -> Any:
        if faults:
            raise faults.pop()
        return real(*arguments, **options)

    from weirbox.pipeline import deciding

    real = deciding.decide
    with patch.object(deciding, "decide", decide):
        run = drive(shared_sqlite, judged(1), fakes=Fakes(provider=provider))

    assert (run.progress.scored, run.verdicts.passed) == (1, 1)
    assert (len(provider.requests), run.calls, run.cost_usd) == (1, 1, 0.01)
    assert column(shared_sqlite, run.run_id, "error_kind") == [None]


def test_a_judging_that_always_breaks_is_exported_as_errored(shared_sqlite: Database) -> None:
    from weirbox.pipeline import deciding

    sink = MemorySink()
    fakes = Fakes(provider=passing(), sink=sink)

    with patch.object(deciding, "decide", side_effect=RuntimeError("boom")):
        run = drive(shared_sqlite, judged(2, sinks=SINK), fakes=fakes)

    assert (run.status, run.progress.errored, run.dispositions.review) == (
        RunStatus.COMPLETED,
        2,
        2,
    )
    assert {export.state for export in sink.sent.values()} == {ScoreState.ERRORED}
    assert len(sink.sent) == 2
    found = scores(shared_sqlite, run.run_id)
    assert {(name, score.state) for name, score in found.items()} == {
        ("match", ScoreState.ERRORED),
        ("quality", ScoreState.ERRORED),
    }
    assert column(shared_sqlite, run.run_id, "error_stage") == ["judge", "judge"]
