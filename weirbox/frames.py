"""Results of a run as flat records: one per trial, streamed, and as a data frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weirbox.store import queries
from weirbox.store.engine import Connection
from weirbox.store.rows import column_value

if TYPE_CHECKING:
    import pandas as pd

BATCH = 1000
"""Trials per query: bounds the memory of streaming."""

COLUMNS = (
    *("seq", "case_id", "trial", "category", "state", "verdict", "disposition", "deciding"),
    *("cached", "error_stage", "error_kind", "error_message"),
    *("executed_at", "judged_at", "exported_at"),
)
"""What every record has, before its checks."""


@dataclass(frozen=True)
class CheckColumns:
    """Where one check's value and state stand in a record."""

    check: str
    value: str
    state: str


def check_columns(connection: Connection, run_id: str) -> list[CheckColumns]:
    """The columns of a run's checks: those of the plan in its order, then any others.

    They are called ``CHECK`` and ``CHECK.state``; a check whose name is taken by another
    column stands as ``check.CHECK``.
    """
    suite = queries.load_plan(connection, run_id).suite
    planned = [check.name for check in (*suite.graders, *suite.rules, *suite.judges)]
    names = dict.fromkeys([*planned, *queries.check_names(connection, run_id)])
    taken = set(COLUMNS)
    columns = []
    for name in names:
        label = name
        while label in taken or f"{label}.state" in taken:
            label = f"check.{label}"
        taken |= {label, f"{label}.state"}
        columns.append(CheckColumns(name, label, f"{label}.state"))
    return columns


def column_names(checks: Sequence[CheckColumns]) -> list[str]:
    """All columns of a record, in order."""
    return [*COLUMNS, *(name for check in checks for name in (check.value, check.state))]


def stream_results(
    connection: Connection, run_id: str, checks: Sequence[CheckColumns]
) -> Iterator[list[dict[str, Any]]]:
    """Records of all trials in the order of the plan, in batches of `BATCH`.

    A check that has no score on a trial is absent from its record.
    """
    by_check = {columns.check: columns for columns in checks}
    after = -1
    while page := queries.trial_page(connection, run_id, after=after, limit=BATCH):
        first, after = page[0].seq, page[-1].seq
        records = {row.seq: {name: getattr(row, name) for name in COLUMNS} for row in page}
        for score in queries.scores_between(connection, run_id, first, after):
            columns = by_check.get(score.name)
            if columns is not None:
                record = records[score.seq]
                record[columns.value] = column_value(
                    score.value_kind, score.value_number, score.value_text
                )
                record[columns.state] = score.state
        yield list(records.values())


def results_frame(connection: Connection, run_id: str) -> pd.DataFrame:
    """All records as a frame; check columns keep the values' own types."""
    import pandas as pd

    checks = check_columns(connection, run_id)
    records = [record for batch in stream_results(connection, run_id, checks) for record in batch]
    columns = {
        name: pd.Series([record.get(name) for record in records], dtype="object")
        for name in column_names(checks)
    }
    return pd.DataFrame(columns)
