"""The Parquet sink: lines while the run goes, two tables when it is completed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from weirbox.sinks.folder import FolderSink, RunFolder
from weirbox.sinks.lines import NOT_FINITE, encoded
from weirbox.sinks.parts import replacement

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 10_000
"""Trials per row group."""

BATCH_BYTES = 8 * 2**20
"""Bytes of lines per row group; what bounds memory when trials have long traces."""

_LARGEST = sys.float_info.max

TRIALS = {
    "run_id": "string",
    "suite": "string",
    "entry_digest": "string",
    "case_id": "string",
    "trial": "int64",
    "category": "string",
    "state": "string",
    "verdict": "string",
    "disposition": "string",
    "deciding": "string",
    "input": "string",
    "target": "string",
    "output": "string",
    "error": "string",
    "cost_usd": "float64",
    "model": "string",
    "duration": "float64",
    "input_tokens": "int64",
    "output_tokens": "int64",
    "executed_at": "string",
    "judged_at": "string",
    "proposals": "string",
    "observation": "string",
}
"""The columns of ``trials.parquet``; texts stand as they are, other JSON values as JSON."""

SCORES = {
    "run_id": "string",
    "entry_digest": "string",
    "case_id": "string",
    "trial": "int64",
    "name": "string",
    "source": "string",
    "authority": "string",
    "required": "bool",
    "state": "string",
    "reason": "string",
    "value": "string",
    "value_type": "string",
    "value_number": "float64",
    "value_bool": "bool",
    "passed": "bool",
    "confidence": "float64",
    "tier": "string",
    "model": "string",
    "outcome": "string",
    "judgement": "string",
    "rationale": "string",
    "detail": "string",
    "duration": "float64",
}
"""The columns of ``scores.parquet``, one row per score.

``value`` is the value as text, ``value_type`` one of bool, int, float and text;
``value_number`` and ``value_bool`` hold it typed, and are null for other types and
for what was not measured.
"""


class ParquetFolder(FolderSink):
    """``<path>/<run id>/trials.parquet`` and ``scores.parquet``, joined by ``entry_digest``.

    While the run goes, trials are staged as lines in ``_staging``, which stays: the
    tables are made from it alone, so completing again gives the same tables.
    """

    parts_in: ClassVar[str] = "_staging"

    def _finish(self, folder: RunFolder) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        trials, scores = _schema(TRIALS), _schema(SCORES)
        with (
            replacement(folder.path / "trials.parquet") as trials_path,
            replacement(folder.path / "scores.parquet") as scores_path,
            pq.ParquetWriter(trials_path, trials, compression="zstd") as trials_writer,
            pq.ParquetWriter(scores_path, scores, compression="zstd") as scores_writer,
        ):
            for batch in _batches(folder.parts.lines()):
                records = [json.loads(line) for line in batch]
                rows = [_trial_row(record) for record in records]
                trials_writer.write_table(pa.Table.from_pylist(rows, trials))
                rows = [row for record in records for row in _score_rows(record)]
                scores_writer.write_table(pa.Table.from_pylist(rows, scores))


def _schema(columns: dict[str, str]) -> pa.Schema:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _batches(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _trial_row(record: dict[str, Any]) -> dict[str, Any]:
    observation = record["observation"]
    usage = observation.get("usage", {})
    return _typed(
        {
            **record,
            "model": observation.get("model"),
            "duration": observation.get("duration", 0.0),
            "input_tokens": usage.get("input_tokens"),
            "output_tokens": usage.get("output_tokens"),
        },
        TRIALS,
    )


def _score_rows(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    trial = {key: record[key] for key in ("run_id", "entry_digest", "case_id", "trial")}
    for score in record["scores"]:
        value = score.get("value")
        columns = {"value_type": _type_of(value), "value_number": value, "value_bool": value}
        yield _typed(score | trial | columns, SCORES)


def _type_of(value: Any) -> str | None:
    if isinstance(value, str) and value in NOT_FINITE:
        return "float"
    return {bool: "bool", int: "int", float: "float", str: "text"}.get(type(value))


def _typed(row: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    """The columns of a row; a value that does not fit a typed column is null there."""
    return {name: _fit(row.get(name), kind) for name, kind in columns.items()}


def _fit(value: Any, kind: str) -> str | bool | int | float | None:
    if kind == "string":
        return value if value is None or isinstance(value, str) else encoded(value).decode()
    if kind == "bool":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind == "int64":
        return value if isinstance(value, int) and abs(value) < 2**63 else None
    return float(value) if abs(value) <= _LARGEST else None
