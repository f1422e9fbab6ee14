"""Results of a run as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from weirbox.store import queries
from weirbox.store.rows import column_value

if TYPE_CHECKING:
    import pandas as pd

BATCH = 1000
"""Trials per query."""

COLUMNS = (
    *("seq", "case_id", "trial", "category", "state", "verdict", "disposition", "deciding"),
    *("cached", "error_stage", "error_kind", "error_message"),
    *("executed_at", "judged_at", "exported_at"),
)


def result_rows(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """One record per trial, with ``CHECK`` and ``CHECK.state`` for every check."""
    records: list[dict[str, Any]] = []
    after = -1
    while page := queries.trial_page(connection, run_id, after=after, limit=BATCH):
        first, after = page[0].seq, page[-1].seq
        by_seq: dict[int, dict[str, Any]] = {}
        for row in page:
            by_seq[row.seq] = {name: getattr(row, name) for name in COLUMNS}
        for score in queries.scores_between(connection, run_id, first, after):
            record = by_seq[score.seq]
            record[score.name] = column_value(
                score.value_kind, score.value_number, score.value_text
            )
            record[f"{score.name}.state"] = score.state
        records += by_seq.values()
    return records


def results_frame(connection: Connection, run_id: str) -> pd.DataFrame:
    """`result_rows` as a frame; check columns keep the values' own types."""
    import pandas as pd

    records = result_rows(connection, run_id)
    names = list(COLUMNS)
    for record in records:
        names += [name for name in record if name not in names]
    columns = {
        name: pd.Series([record.get(name) for record in records], dtype="object") for name in names
    }
    return pd.DataFrame(columns)
