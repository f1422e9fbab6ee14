"""Results of stages, made and written by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from weirbox.domain.score import JudgeCall
from weirbox.domain.trace import Observation, Usage
from weirbox.domain.words import Disposition, ScoreState, Stage, TrialStage, Verdict
from weirbox.store import claims
from weirbox.store.engine import Database
from weirbox.store.rows import StageResult, Ticket, pack_observation
from weirbox.store.writes import write_stage_results

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def claimed(database: Database, run_id: str, limit: int = 100) -> list[Ticket]:
    """Claim trials as a driver would."""
    with database.write() as connection:
        token = claims.open_claim(connection, run_id, driver="here:1:1", lease_s=30)
        return claims.claim_trials(connection, run_id, token, limit)


def executed(ticket: Ticket, **changes: Any) -> StageResult:
    """The end of an execute stage."""
    found = StageResult(
        ticket=ticket,
        stage=Stage.EXECUTE,
        started_at=NOW,
        ended_at=NOW + timedelta(seconds=1),
        next_stage=TrialStage.JUDGE,
        observation=pack_observation(Observation(output=f"of {ticket.seq}")),
    )
    return replace(found, **changes)


def decided(ticket: Ticket, **changes: Any) -> StageResult:
    """The end of a judge stage that leaves nothing to do."""
    found = StageResult(
        ticket=ticket,
        stage=Stage.JUDGE,
        started_at=NOW,
        ended_at=NOW + timedelta(seconds=1),
        next_stage=TrialStage.DONE,
        state=ScoreState.SCORED,
        verdict=Verdict.PASS,
        disposition=Disposition.CLEAN,
        deciding="objective",
    )
    return replace(found, **changes)


def write(database: Database, *results: StageResult) -> list[bool]:
    """Write results in one transaction."""
    with database.write() as connection:
        return write_stage_results(connection, results)


def paid(usd: float | None, **changes: Any) -> JudgeCall:
    """A judge call that cost this much."""
    made = JudgeCall(
        check="quality",
        tier="primary",
        model="small",
        provider="account",
        request_digest="d",
        usage=Usage(cost_usd=usd),
    )
    return made.model_copy(update=changes)
