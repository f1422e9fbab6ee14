"""A run that carries over what another has of the same plan, copied within the database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, case, insert, literal, null, select, text

from weirbox.domain.words import RunStatus, Stage, TrialStage
from weirbox.store.base import PROPOSAL, RUN, SCORE, SCORE_TEXT, TRIAL
from weirbox.store.types import utc_now

_KEPT = (
    *("suite", "kind", "plan", "dataset_name", "dataset_digest", "planned", "drivers"),
    *("budget_nusd", "budget_calls", "tags", "managed", "origin"),
)
"""The columns of a run that its plan, or what asked for it, gives."""


def one_state(connection: Connection) -> None:
    """Let all that the transaction reads be of one moment; call it first."""
    if connection.dialect.name != "sqlite":
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))


def carry_over(connection: Connection, parent: str, run_id: str, *, exports: bool) -> None:
    """Insert a run of the parent's plan, with what the parent has of every trial.

    Nothing is copied through this process. Calls stay with the parent, which paid them;
    the new run has the plan's whole budget. It supersedes nobody, and nobody it.

    Args:
        exports: Whether the plan has sinks: they are sent what is carried over, too.
    """
    row = connection.execute(select(RUN).where(RUN.c.id == parent)).one()
    fresh = {"status": RunStatus.PENDING, "reason": "", "spent_nusd": 0, "calls": 0, "stalls": 0}
    values = {name: getattr(row, name) for name in _KEPT} | fresh
    connection.execute(
        insert(RUN), values | {"id": run_id, "parent": parent, "created_at": utc_now()}
    )
    _copy(connection, TRIAL, parent, run_id, _carried(exports=exports))
    for table in (SCORE, SCORE_TEXT, PROPOSAL):
        _copy(connection, table, parent, run_id, {})


def _carried(*, exports: bool) -> dict[str, Any]:
    """The columns of a trial that are not the parent's."""
    at_judge = TRIAL.c.stage == TrialStage.JUDGE
    failed = TRIAL.c.error_stage == Stage.EXPORT
    after = TrialStage.EXPORT if exports else TrialStage.DONE
    columns: dict[str, Any] = {
        "stage": case(
            (TRIAL.c.stage.in_((TrialStage.EXPORT, TrialStage.DONE)), literal(str(after))),
            else_=TRIAL.c.stage,
        ),
        "redo": case((at_judge, TRIAL.c.redo)),
        "cached": TRIAL.c.executed_at.is_not(None),
        "attempt": literal(1),
    }
    columns |= {
        name: case((failed, null()), else_=TRIAL.c[name])
        for name in ("error_stage", "error_kind", "error_message")
    }
    none = ("claim", "compute_s", "export_started_at", "exported_at")
    return columns | dict.fromkeys(none, null())


def _copy(
    connection: Connection, table: Any, parent: str, run_id: str, changed: dict[str, Any]
) -> None:
    columns = {column.name: changed.get(column.name, column) for column in table.columns}
    columns["run_id"] = literal(run_id)
    chosen = select(*columns.values()).where(table.c.run_id == parent)
    connection.execute(insert(table).from_select(list(columns), chosen))
