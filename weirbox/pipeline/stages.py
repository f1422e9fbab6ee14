"""From one stage's function to the rows it changes, for one trial in flight."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from weirbox.budget import TrialLedger, total_cost
from weirbox.domain.base import digest
from weirbox.domain.case import Case
from weirbox.domain.policy import POLICIES
from weirbox.domain.score import JudgeCall, Judged, Score
from weirbox.domain.seams import Sink
from weirbox.domain.trace import Observation, StageError
from weirbox.domain.words import Collect, ErrorKind, ExportStatus, Stage, TrialStage
from weirbox.pipeline.collecting import collected, is_due, lacks_trace
from weirbox.pipeline.executing import Executed, execute
from weirbox.pipeline.exporting import export, trial_export
from weirbox.pipeline.judging import Standing, judge, judge_again, unjudged
from weirbox.pipeline.kit import Kit
from weirbox.store import queries
from weirbox.store.engine import Connection, Database, is_trouble
from weirbox.store.rows import (
    MISSING,
    ExportRecord,
    StageResult,
    Ticket,
    pack_observation,
    redo_checks,
)
from weirbox.store.types import utc_now
from weirbox.store.writer import Writer


@dataclass
class Item:
    """A trial in flight: its ticket, and what earlier stages left in memory.

    What is None was done by an earlier driver and is read from its rows when needed.

    Attributes:
        standing: Where some checks only are measured again: what stands of the others.
        sent: The sinks that have the trial already.
        exports: What became of it at those that took it in an attempt before.
    """

    ticket: Ticket
    case: Case
    resumed: bool
    observation: Observation | None = None
    executed_scores: tuple[Score, ...] = ()
    executed_at: datetime | None = None
    standing: Standing | None = None
    judged: Judged | None = None
    sent: frozenset[str] = frozenset()
    exports: tuple[ExportRecord, ...] = ()
    judged_at: datetime | None = None
    cost_usd: float | None = None
    in_window: bool = False
    started: bool = False


@dataclass(frozen=True)
class Stages:
    """The stages of one run, over one kit and one database.

    Attributes:
        hung: The sinks that did not answer last time.
    """

    database: Database
    writer: Writer
    kit: Kit
    hung: set[str] = field(default_factory=set)

    async def run(self, stage: Stage, item: Item) -> StageResult:
        """Take one trial through one stage; a fault of ours becomes an errored trial.

        Raises:
            DatabaseTrouble: When the database is in trouble, which is no trial's fault.
        """
        started = utc_now()
        try:
            return await self._one(stage, item, started)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            return self._broken(stage, item, started, error)
        except Exception as error:
            if is_trouble(error):
                raise
            return self._broken(stage, item, started, error)

    def refused(self, stage: Stage, item: Item, started: datetime, error: Exception) -> StageResult:
        """What a stage comes to whose result the database does not take."""
        return self._broken(stage, item, started, getattr(error, "orig", None) or error)

    async def _one(self, stage: Stage, item: Item, started: datetime) -> StageResult:
        if stage is Stage.EXECUTE:
            return await self._execute(item, started)
        if item.observation is None:
            await asyncio.to_thread(self._load, stage, item)
        if stage is Stage.JUDGE:
            return await self._judge(item, started)
        return await self._export(item, started)

    # --- execute ----------------------------------------------------------------

    async def _execute(self, item: Item, started: datetime) -> StageResult:
        key = self._reuse_key(item) if self.kit.plan.suite.reuse else None
        reused = None
        if key is not None and item.ticket.round == 1:
            reused = await asyncio.to_thread(self._reusable, key)
        executed = reused or await execute(item.case, item.ticket, self.kit)
        error = executed.error
        if error and item.ticket.attempt < POLICIES[error.kind].attempts:
            return _again(Stage.EXECUTE, item, started, error)
        item.observation = executed.observation
        item.executed_scores = executed.scores
        item.executed_at = utc_now()
        return StageResult(
            ticket=item.ticket,
            stage=Stage.EXECUTE,
            started_at=started,
            ended_at=item.executed_at,
            next_stage=TrialStage.JUDGE,
            observation=pack_observation(executed.observation),
            compute_s=executed.compute_s,
            cached=executed.cached,
            error=error,
            scores=executed.scores,
            reuse_key=None if reused or error else key,
        )

    def _reuse_key(self, item: Item) -> str:
        suite = self.kit.plan.suite
        graders = [g.model_dump(mode="json") for g in suite.graders]
        place = suite.compute.model_dump(mode="json")
        entry = item.ticket.entry_digest
        return digest([entry, self.kit.plan.harness_digest, graders, place])

    def _reusable(self, key: str) -> Executed | None:
        def read(connection: Connection) -> Executed | None:
            row = queries.reusable_execution(connection, key)
            if row is None or row.observation is None:
                return None
            scores = queries.load_scores(connection, row.run_id, row.seq)
            return Executed(
                observation=queries.load_observation(connection, row.observation),
                scores=self.kit.of_compute_graders(scores),
                compute_s=None,
                cached=True,
            )

        return self.database.fetch(read)

    # --- judge ------------------------------------------------------------------

    async def _judge(self, item: Item, started: datetime) -> StageResult:
        earlier: list[JudgeCall] = []
        if item.resumed or item.ticket.attempt > 1:
            earlier = await asyncio.to_thread(self._earlier_calls, item)
        ledger = TrialLedger(self.writer, item.ticket, self.kit.plan.suite.budget, earlier)
        observation = item.observation or Observation()
        recollected = lacks_trace(observation) and item.ticket.round > 1
        pulled = recollected or is_due(observation, self.kit, Collect.CONTROL_PLANE)
        if pulled:
            when = Collect.JOB if recollected else Collect.CONTROL_PLANE
            observation = item.observation = await collected(observation, self.kit, when)
        case, ticket = item.case, item.ticket
        if item.standing is not None:
            judged = await judge_again(
                case, ticket, observation, item.standing, kit=self.kit, ledger=ledger
            )
            scores = item.standing.fresh(judged)
        else:
            judged = await judge(
                case, ticket, observation, item.executed_scores, kit=self.kit, ledger=ledger
            )
            scores = judged.scores
        item.judged, item.judged_at = judged, utc_now()
        item.cost_usd = ledger.cost_usd
        if ticket.round > 1:
            item.cost_usd = await asyncio.to_thread(self._cost_of_all_rounds, ticket)
        return StageResult(
            ticket=ticket,
            stage=Stage.JUDGE,
            started_at=started,
            ended_at=item.judged_at,
            observation=pack_observation(observation) if pulled else None,
            recollected=recollected,
            error=observation.error if recollected else None,
            error_stage=Stage.EXECUTE if recollected else None,
            calls=tuple(ledger.free_calls),
            scores=scores,
            **self._decided(judged),
        )

    def _decided(self, judged: Judged) -> dict[str, Any]:
        """The fields of a stage result that say what a trial comes to."""
        return {
            "next_stage": TrialStage.EXPORT if self.kit.sinks else TrialStage.DONE,
            "state": judged.state,
            "verdict": judged.verdict,
            "disposition": judged.disposition,
            "deciding": judged.deciding,
            "proposals": judged.proposals,
        }

    def _earlier_calls(self, item: Item) -> list[JudgeCall]:
        of_round = item.ticket.round
        return self.database.fetch(partial(_calls_of, ticket=item.ticket, of_round=of_round))

    def _cost_of_all_rounds(self, ticket: Ticket) -> float | None:
        return total_cost(self.database.fetch(partial(_calls_of, ticket=ticket)))

    # --- export -----------------------------------------------------------------

    async def _export(self, item: Item, started: datetime) -> StageResult:
        assert item.judged is not None, "a trial is judged before it is exported"
        records = await export(
            trial_export(
                item.case,
                item.ticket,
                item.observation or Observation(),
                item.judged,
                kit=self.kit,
                cost_usd=item.cost_usd,
                executed_at=item.executed_at,
                judged_at=item.judged_at,
            ),
            self._sinks_of(item),
            self.hung,
        )
        failed = [f"{r.sink}: {r.message}" for r in records if r.status is ExportStatus.FAILED]
        if failed and item.ticket.attempt < POLICIES[ErrorKind.SINK].attempts:
            taken = tuple(r for r in records if r.status is not ExportStatus.FAILED)
            item.exports, item.sent = (*item.exports, *taken), item.sent | {r.sink for r in taken}
            error = StageError(kind=ErrorKind.SINK, message="; ".join(failed))
            return _again(Stage.EXPORT, item, started, error)
        return StageResult(
            ticket=item.ticket,
            stage=Stage.EXPORT,
            started_at=started,
            ended_at=utc_now(),
            next_stage=TrialStage.DONE,
            exports=(*item.exports, *records),
        )

    def _sinks_of(self, item: Item) -> tuple[Sink, ...]:
        """Those that the trial is to be sent to."""
        return tuple(sink for sink in self.kit.sinks if sink.name not in item.sent)

    # --- what an earlier driver did -------------------------------------------------

    def _load(self, stage: Stage, item: Item) -> None:
        self.database.fetch(partial(self._read, stage=stage, item=item))

    def _read(self, connection: Connection, *, stage: Stage, item: Item) -> None:
        ticket = item.ticket
        if ticket.observation is not None:
            item.observation = queries.load_observation(connection, ticket.observation)
        scores = queries.load_scores(connection, ticket.run_id, ticket.seq)
        item.executed_at = ticket.executed_at
        rows = queries.proposals_of(connection, ticket.run_id, ticket.seq)
        proposals = tuple(map(queries.proposal_from, rows))
        if stage is Stage.JUDGE:
            item.executed_scores = self.kit.of_compute_graders(scores)
            if ticket.redo is not None:
                item.standing = Standing(self.kit.in_order(scores), proposals)
            return
        row = queries.trial_row(connection, ticket.run_id, ticket.seq)
        calls = _calls_of(connection, ticket)
        if ticket.redo == MISSING:
            item.sent = queries.sinks_with(connection, ticket.run_id, ticket.seq)
        item.judged_at = row.judged_at
        item.cost_usd = total_cost(calls)
        item.judged = Judged(
            scores=self.kit.in_order(scores),
            verdict=row.verdict,
            disposition=row.disposition,
            state=row.state,
            deciding=row.deciding or "",
            proposals=proposals,
        )

    # --- faults -----------------------------------------------------------------

    def _broken(
        self, stage: Stage, item: Item, started: datetime, fault: BaseException
    ) -> StageResult:
        error = StageError(
            kind=ErrorKind.INTERNAL,
            message=f"{stage}: {type(fault).__name__}: {fault}",
            detail="".join(traceback.format_exception(fault)[-5:]),
        )
        if item.ticket.attempt < POLICIES[error.kind].attempts:
            return _again(stage, item, started, error)
        if stage is Stage.EXECUTE:
            item.observation = Observation(error=error)
            return StageResult(
                ticket=item.ticket,
                stage=stage,
                started_at=started,
                ended_at=utc_now(),
                next_stage=TrialStage.JUDGE,
                observation=pack_observation(item.observation),
                error=error,
            )
        return self._given_up(stage, item, started, error)

    def _given_up(
        self, stage: Stage, item: Item, started: datetime, error: StageError
    ) -> StageResult:
        """A judge or export stage that cannot be done: recorded, and the run goes on.

        What was sent in an earlier round is not what stands now, so the export has failed
        at every sink, whatever its row says.
        """
        ended = StageResult(
            ticket=item.ticket,
            stage=stage,
            started_at=started,
            ended_at=utc_now(),
            next_stage=TrialStage.DONE,
            error=error,
        )
        if stage is Stage.EXPORT:
            failed = partial(
                ExportRecord, status=ExportStatus.FAILED, url=None, message=error.message
            )
            return replace(
                ended,
                exports=(*item.exports, *(failed(sink=s.name) for s in self._sinks_of(item))),
            )
        standing = item.standing.scores if item.standing is not None else item.executed_scores
        judged = unjudged(standing, self.kit, error)
        item.judged, item.judged_at = judged, ended.ended_at
        again = redo_checks(item.ticket.redo)
        scores = tuple(s for s in judged.scores if not again or s.name in again)
        return replace(ended, scores=scores, **self._decided(judged))


def _calls_of(
    connection: Connection, ticket: Ticket, of_round: int | None = None
) -> list[JudgeCall]:
    return queries.load_calls(connection, ticket.run_id, ticket.seq, round=of_round)


def _again(stage: Stage, item: Item, started: datetime, error: StageError) -> StageResult:
    return StageResult(
        ticket=item.ticket,
        stage=stage,
        started_at=started,
        ended_at=utc_now(),
        next_stage=TrialStage(stage.value),
        error=error,
    )


def is_being_cancelled() -> bool:
    """Whether a `CancelledError` comes from outside the current task, rather than from
    what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
