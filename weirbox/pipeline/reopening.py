"""Open trials again: retry what failed, ask a judge anew, send what is missing.

Each of these is one transaction, so a process that dies leaves all of it or nothing, and
each is safe to run twice: what was opened is not chosen again until it has failed again.
The run goes on from its rows then, like any other (`weirbox.pipeline.running`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from weirbox.domain.plan import Plan
from weirbox.domain.policy import JUDGE_FAULTS, POLICIES
from weirbox.domain.words import (
    ErrorKind,
    FailedStage,
    Fault,
    Reason,
    RunStatus,
    ScoreState,
    Source,
    Stage,
    TrialStage,
)
from weirbox.errors import NotPossible
from weirbox.pipeline.kit import check_of
from weirbox.pipeline.planning import new_run_id
from weirbox.store import carrying, queries, reopening
from weirbox.store.engine import Connection, Database
from weirbox.store.reopening import Judged, Mark, Reentry
from weirbox.store.writes import note


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which trials are tried again: those that any of the selectors fits; without one, what
    is errored or unscored.

    Attributes:
        errored: What broke on our side or a provider's, exports included.
        unscored: Checks that were tried, and gave nothing usable.
        stage: What failed at this stage.
        fault: What failed by this fault.
    """

    errored: bool = False
    unscored: bool = False
    stage: FailedStage | None = None
    fault: Fault | None = None

    @property
    def everything(self) -> bool:
        """Whether no selector narrows it, so that what is not finished is wanted, too."""
        return self == Wanted()

    @property
    def effective(self) -> Wanted:
        """The same with the selectors that hold where none is named."""
        return replace(self, errored=True, unscored=True) if self.everything else self

    def at(self, stage: FailedStage | None, kind: ErrorKind) -> bool:
        """Whether an error of a kind is wanted, at a stage that can be named, or at another."""
        named = stage is not None and self.stage is stage
        return self.errored or named or self.fault is POLICIES[kind].fault


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """What was opened again.

    Attributes:
        run_id: The run that goes on.
        opened: Trials by the stage they go on from.
        going: Whether the run is live now, and to be driven.
    """

    run_id: str
    opened: Counter[TrialStage] = field(default_factory=Counter)
    going: bool


# --- which trials, and from where: pure decisions -------------------------------------


@dataclass(frozen=True)
class Checks:
    """The checks of a plan, as far as opening needs them."""

    all: tuple[str, ...]
    of_execute: frozenset[str]

    @classmethod
    def of(cls, plan: Plan) -> Checks:
        """The checks of a plan; some graders measure in the execute stage."""
        suite = plan.suite
        return cls(
            tuple(check.name for check in (*suite.graders, *suite.rules, *suite.judges)),
            frozenset(one.name for one in suite.graders if one.needs_compute),
        )

    def owner(self, name: str) -> str | None:
        """The check that gave a score."""
        return check_of(name, self.all)

    def replaced(self, reentry: Reentry, name: str) -> bool:
        """Whether a re-entry measures a score again."""
        check = self.owner(name)
        if reentry.stage is TrialStage.EXECUTE:
            return True
        if reentry.checks:
            return check in reentry.checks
        return check not in self.of_execute


def reentry(trial: Judged, wanted: Wanted, checks: Checks) -> Reentry | None:
    """Decide from which stage a judged trial is tried again, if at all.

    A malformed record never is: the plan holds it as it is.
    """
    if trial.error_kind == ErrorKind.PARSE:
        return None
    failed = [
        mark
        for mark in trial.marks
        if not _follows_from_execution(trial, mark) and _wants_score(wanted, mark, checks)
    ]
    measured_first = any(checks.owner(mark.name) in checks.of_execute for mark in failed)
    if measured_first or _wants_execution(wanted, trial):
        lacks_trace = trial.error_kind == ErrorKind.COLLECT and not measured_first
        stage = TrialStage.JUDGE if lacks_trace else TrialStage.EXECUTE
        return Reentry(seq=trial.seq, stage=stage)
    if trial.error_stage == Stage.JUDGE and wanted.at(FailedStage.JUDGE, ErrorKind.INTERNAL):
        return Reentry(seq=trial.seq, stage=TrialStage.JUDGE)
    if failed:
        return _judge_again(trial, failed, checks)
    if trial.unsent and wanted.at(FailedStage.EXPORT, ErrorKind.SINK):
        return Reentry(seq=trial.seq, stage=TrialStage.EXPORT)
    return None


def _wants_execution(wanted: Wanted, trial: Judged) -> bool:
    """Whether an execution is tried again; one that counts as a measurement, only where its
    fault is named."""
    if trial.error_stage != Stage.EXECUTE or trial.error_kind is None:
        return False
    kind = ErrorKind(trial.error_kind)
    if POLICIES[kind].count:
        return wanted.fault is POLICIES[kind].fault
    return wanted.at(FailedStage.COLLECT if kind is ErrorKind.COLLECT else None, kind)


def _follows_from_execution(trial: Judged, mark: Mark) -> bool:
    return trial.error_stage == Stage.EXECUTE and mark.reason == Reason.STAGE_ERROR


def _wants_score(wanted: Wanted, mark: Mark, checks: Checks) -> bool:
    if wanted.errored if mark.state == ScoreState.ERRORED else wanted.unscored:
        return True
    if wanted.stage is FailedStage.JUDGE and checks.owner(mark.name) not in checks.of_execute:
        return True
    if mark.source != Source.JUDGE or mark.reason is None or wanted.fault is None:
        return False
    return JUDGE_FAULTS.get(Reason(mark.reason)) is wanted.fault


def _judge_again(trial: Judged, failed: Iterable[Mark], checks: Checks) -> Reentry:
    """Measure again what failed; all of the stage where a rule did, since rules decide
    which judges are asked."""
    names = {checks.owner(mark.name) for mark in failed}
    known = frozenset(name for name in names if name is not None) | trial.redo
    whole = None in names or any(mark.source == Source.RULE for mark in failed)
    return Reentry(seq=trial.seq, stage=TrialStage.JUDGE, checks=frozenset() if whole else known)


def rejudged(trial: Judged, judge: str) -> Reentry | None:
    """Decide whether a judge is asked about a trial again: not where routing had left it
    out, nor where there was nothing to judge."""
    [mark] = trial.marks or (None,)
    if mark is None or mark.state == ScoreState.SKIPPED or mark.reason == Reason.STAGE_ERROR:
        return None
    return Reentry(seq=trial.seq, stage=TrialStage.JUDGE, checks=trial.redo | {judge})


# --- in one transaction each ----------------------------------------------------------


def retry(database: Database, run_id: str, wanted: Wanted, *, new: bool = False) -> Reopened:
    """Try again what failed in a run, and go on with what is not finished.

    Args:
        new: Leave the run as it is, and make one that carries over what it has.

    Raises:
        NotPossible: When the run was ended on purpose, or, for a new one, has not ended.
    """
    return database.persist(partial(_retry_anew if new else _retry, run_id=run_id, wanted=wanted))


def rejudge(database: Database, run_id: str, judge: str) -> Reopened:
    """Have one judge asked anew about every judged trial that it was asked about.

    Raises:
        NotPossible: When the run has no such judge, or was ended on purpose.
    """

    def work(connection: Connection) -> Reopened:
        plan = queries.load_plan(connection, run_id)
        _refuse_unknown_judge(plan, run_id, judge)
        _refuse_ended(connection, run_id)
        why = f"judge {judge!r} is asked anew"
        choose = partial(rejudged, judge=judge)
        opened = _open(connection, run_id, plan, choose, why=why, check=judge)
        return _set_going(connection, run_id, opened, why)

    return database.persist(work)


def export_retry(database: Database, run_id: str) -> Reopened:
    """Have trials sent to the sinks that do not have them.

    Raises:
        NotPossible: When the run was ended on purpose.
    """

    def work(connection: Connection) -> Reopened:
        _refuse_ended(connection, run_id)
        plan = queries.load_plan(connection, run_id)
        why = "exports are sent that are missing"
        opened = _open(connection, run_id, plan, _unsent, why=why)
        return _set_going(connection, run_id, opened, why)

    return database.persist(work)


def _unsent(trial: Judged) -> Reentry | None:
    return Reentry(seq=trial.seq, stage=TrialStage.EXPORT) if trial.unsent else None


def _retry(connection: Connection, run_id: str, wanted: Wanted) -> Reopened:
    status = _refuse_ended(connection, run_id)
    plan = queries.load_plan(connection, run_id)
    choose = partial(reentry, wanted=wanted.effective, checks=Checks.of(plan))
    opened = _open(connection, run_id, plan, choose, why="retry")
    if not opened and wanted.everything and status is not RunStatus.COMPLETED:
        if status is RunStatus.FAILED:
            reopening.set_going(connection, run_id)
            note(connection, run_id, kind="reopened", message="what is not finished goes on")
        return Reopened(run_id=run_id, going=True)
    return _set_going(connection, run_id, opened, "retry")


def _retry_anew(connection: Connection, run_id: str, wanted: Wanted) -> Reopened:
    carrying.one_state(connection)
    status = queries.status_of(connection, run_id)
    if not status.terminal:
        raise NotPossible(
            f"run {run_id} is {status}: retry it as it is, without a new run, or cancel it first"
        )
    plan = queries.load_plan(connection, run_id)
    choose = partial(reentry, wanted=wanted.effective, checks=Checks.of(plan))
    if not queries.open_trials(connection, run_id) and not _any(connection, run_id, plan, choose):
        return Reopened(run_id=run_id, going=False)
    fresh = new_run_id(plan.suite.suite)
    carrying.carry_over(connection, run_id, fresh, exports=bool(plan.suite.sinks))
    opened = _open(connection, fresh, plan, choose, why="retry")
    note(connection, fresh, kind="planned", message=f"carries over run {run_id}{_told(opened)}")
    return Reopened(run_id=fresh, opened=opened, going=True)


def _any(
    connection: Connection, run_id: str, plan: Plan, choose: Callable[[Judged], Reentry | None]
) -> bool:
    pages = reopening.judged_trials(connection, run_id, sinks=_sinks(plan))
    return any(choose(trial) is not None for page in pages for trial in page)


def _sinks(plan: Plan) -> list[str]:
    return [sink.name for sink in plan.suite.sinks]


def _open(
    connection: Connection,
    run_id: str,
    plan: Plan,
    choose: Callable[[Judged], Reentry | None],
    *,
    why: str,
    check: str | None = None,
) -> Counter[TrialStage]:
    """Open the trials that a decision chooses; memory is bounded by a page of them."""
    checks = Checks.of(plan)
    opened: Counter[TrialStage] = Counter()
    for page in reopening.judged_trials(connection, run_id, sinks=_sinks(plan), check=check):
        chosen = [found for trial in page if (found := choose(trial)) is not None]
        if chosen:
            reopening.open_again(connection, run_id, chosen, replaced=checks.replaced, why=why)
        opened.update(found.stage for found in chosen)
    return opened


def _set_going(
    connection: Connection, run_id: str, opened: Counter[TrialStage], why: str
) -> Reopened:
    """Set the run going where trials were opened; its status may have changed meanwhile."""
    if not opened:
        return Reopened(run_id=run_id, going=False)
    if not reopening.set_going(connection, run_id):
        _refuse_ended(connection, run_id)
    note(connection, run_id, kind="reopened", message=f"{why}{_told(opened)}")
    return Reopened(run_id=run_id, opened=opened, going=True)


def _told(opened: Counter[TrialStage]) -> str:
    stages = [f"{opened[stage]} from {stage}" for stage in TrialStage if opened[stage]]
    return f": {', '.join(stages)}" if stages else ""


def _refuse_ended(connection: Connection, run_id: str) -> RunStatus:
    status = queries.status_of(connection, run_id)
    if status in (RunStatus.CANCELLED, RunStatus.SUPERSEDED):
        raise NotPossible(
            f"run {run_id} is {status}, which somebody meant: what it has is carried over into "
            f"a new run with: weirbox retry {run_id} --new"
        )
    return status


def _refuse_unknown_judge(plan: Plan, run_id: str, judge: str) -> None:
    if judge in plan.skipped_judges:
        why = plan.skipped_judges[judge]
        raise NotPossible(f"judge {judge!r} was skipped when run {run_id} was planned: {why}")
    names = [one.name for one in plan.suite.judges if one.name not in plan.skipped_judges]
    if judge not in names:
        there_are = f"it has {', '.join(map(repr, names))}" if names else "it has none"
        raise NotPossible(f"run {run_id} has no judge {judge!r}; {there_are}")
