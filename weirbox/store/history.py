"""What no longer stands of trials: attempts, and scores that were replaced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, and_, case, delete, func, insert, literal, null, select

from weirbox.domain.base import model_json
from weirbox.domain.words import Stage
from weirbox.store.base import ATTEMPT, SCORE, SCORE_HISTORY, SCORE_TEXT, TRIAL
from weirbox.store.rows import score_from
from weirbox.store.types import utc_now

SPANS = {
    Stage.EXECUTE: (TRIAL.c.execute_started_at, TRIAL.c.executed_at),
    Stage.JUDGE: (TRIAL.c.judge_started_at, TRIAL.c.judged_at),
    Stage.EXPORT: (TRIAL.c.export_started_at, TRIAL.c.exported_at),
}
"""Between which moments of a trial its stages lie."""


def keep_attempts(
    connection: Connection, run_id: str, stages: Sequence[Stage], seqs: Sequence[int]
) -> None:
    """Keep the attempts of trials at stages that no longer stand, before they are opened."""
    for ended in stages:
        begin, end = SPANS[ended]
        failed = TRIAL.c.error_stage == ended
        for number, numbered in _attempts(connection, run_id, ended, seqs).items():
            columns = {
                "run_id": TRIAL.c.run_id,
                "seq": TRIAL.c.seq,
                "round": TRIAL.c.round,
                "stage": literal(str(ended)),
                "attempt": literal(number),
                "claim": TRIAL.c.claim,
                "started_at": begin,
                "ended_at": end,
                "observation": TRIAL.c.observation if ended is Stage.EXECUTE else null(),
                "error_kind": case((failed, TRIAL.c.error_kind)),
                "error_message": case((failed, TRIAL.c.error_message)),
            }
            chosen = select(*columns.values()).where(
                TRIAL.c.run_id == run_id, TRIAL.c.seq.in_(numbered), end.is_not(None)
            )
            connection.execute(insert(ATTEMPT).from_select(list(columns), chosen))


def _attempts(
    connection: Connection, run_id: str, stage: Stage, seqs: Sequence[int]
) -> dict[int, list[int]]:
    """Trials by how many attempts at a stage they took in their round; the row of a trial
    has the last, and those before it are kept already."""
    rounds = select(TRIAL.c.seq, TRIAL.c.round).where(
        TRIAL.c.run_id == run_id, TRIAL.c.seq.in_(seqs)
    )
    kept = (
        select(ATTEMPT.c.seq, ATTEMPT.c.round, func.count().label("attempts"))
        .where(ATTEMPT.c.run_id == run_id, ATTEMPT.c.seq.between(min(seqs), max(seqs)))
        .where(ATTEMPT.c.stage == stage)
        .group_by(ATTEMPT.c.seq, ATTEMPT.c.round)
    )
    earlier = {(row.seq, row.round): row.attempts for row in connection.execute(kept)}
    found: dict[int, list[int]] = defaultdict(list)
    for row in connection.execute(rounds):
        found[earlier.get((row.seq, row.round), 0) + 1].append(row.seq)
    return found


def put_scores_aside(
    connection: Connection,
    run_id: str,
    seqs: Sequence[int],
    *,
    replaced: Callable[[int, str], bool],
    why: str,
) -> None:
    """Take scores of trials out of their place, and keep them.

    Args:
        replaced: Whether the score of a trial and a name is one of them.
    """
    same = and_(
        SCORE.c.run_id == SCORE_TEXT.c.run_id,
        SCORE.c.seq == SCORE_TEXT.c.seq,
        SCORE.c.name == SCORE_TEXT.c.name,
    )
    statement = (
        select(SCORE, TRIAL.c.round, SCORE_TEXT.c.rationale, SCORE_TEXT.c.detail)
        .select_from(SCORE.outerjoin(SCORE_TEXT, same))
        .join(TRIAL, and_(TRIAL.c.run_id == SCORE.c.run_id, TRIAL.c.seq == SCORE.c.seq))
        .where(SCORE.c.run_id == run_id, SCORE.c.seq.in_(seqs))
        .order_by(SCORE.c.seq, SCORE.c.name)
    )
    now = utc_now()
    aside = [
        {
            "run_id": run_id,
            "seq": row.seq,
            "round": row.round,
            "name": row.name,
            "body": model_json(score_from(row, row.rationale or "", row.detail)),
            "why": why,
            "replaced_at": now,
        }
        for row in connection.execute(statement)
        if replaced(row.seq, row.name)
    ]
    if not aside:
        return
    connection.execute(insert(SCORE_HISTORY), aside)
    names: dict[str, list[int]] = defaultdict(list)
    for row in aside:
        names[row["name"]].append(row["seq"])
    for table in (SCORE_TEXT, SCORE):
        for name, given in names.items():
            which = (table.c.run_id == run_id, table.c.name == name, table.c.seq.in_(given))
            connection.execute(delete(table).where(*which))


def attempts_of(connection: Connection, run_id: str, seq: int) -> list[Any]:
    """The attempts of a trial that no longer stand, oldest first."""
    of_trial = (ATTEMPT.c.run_id == run_id, ATTEMPT.c.seq == seq)
    return list(connection.execute(select(ATTEMPT).where(*of_trial).order_by(ATTEMPT.c.id)).all())


def replaced_scores(connection: Connection, run_id: str, seq: int) -> list[Any]:
    """The scores of a trial that were put aside, oldest first."""
    of_trial = (SCORE_HISTORY.c.run_id == run_id, SCORE_HISTORY.c.seq == seq)
    statement = select(SCORE_HISTORY).where(*of_trial).order_by(SCORE_HISTORY.c.id)
    return list(connection.execute(statement).all())
