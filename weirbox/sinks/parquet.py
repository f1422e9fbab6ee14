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

BATCH_ROWS = 5_000
"""Trials per row group."""

BATCH_BYTES = 4 * 2**20
"""Bytes of lines per row group; what bounds memory when trials have long traces."""

_LARGEST = sys.float_info.max

TRIALS = {
    "run_id": "text",
    "suite": "text",
    "entry_digest": "text",
    "case_id": "text",
    "trial": "int",
    "category": "text",
    "state": "text",
    "verdict": "text",
    "disposition": "text",
    "deciding": "text",
    "input": "text",
    "target": "text",
    "output": "text",
    "error": "text",
    "cost_usd": "float",
    "model": "text",
    "duration": "float",
    "input_tokens": "int",
    "output_tokens": "int",
    "executed_at": "text",
    "judged_at": "text",
    "proposals": "text",
    "observation": "text",
}
"""The columns of ``trials.parquet``; texts stand as they are, other JSON values as JSON."""

SCORES = {
    "run_id": "text",
    "entry_digest": "text",
    "case_id": "text",
    "trial": "int",
    "name": "text",
    "source": "text",
    "authority": "text",
    "required": "bool",
    "state": "text",
    "reason": "text",
    "value": "text",
    "value_type": "text",
    "value_number": "float",
    "value_bool": "bool",
    "passed": "bool",
    "confidence": "float",
    "tier": "text",
    "model": "text",
    "outcome": "text",
    "judgement": "text",
    "rationale": "text",
    "detail": "text",
    "duration": "float",
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
                trials_writer.write_batch(_columns(rows, trials))
                rows = [row for record in records for row in _score_rows(record)]
                scores_writer.write_batch(_columns(rows, scores))


def _schema(columns: dict[str, str]) -> pa.Schema:
    import pyarrow as pa

    types = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _columns(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The rows column by column; a value that does not fit a typed column is null there."""
    import pyarrow as pa

    arrays = [_array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.record_batch(arrays, schema=schema)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column; most are texts throughout, which need no look at each."""
    import pyarrow as pa

    if kind == pa.string():
        try:
            return pa.array(values, kind)
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            return pa.array([_text(value) for value in values], kind)
    fit = {pa.int64(): _int, pa.float64(): _float, pa.bool_(): _bool}[kind]
    return pa.array([fit(value) for value in values], kind)


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
    return record | {
        "model": observation.get("model"),
        "duration": observation.get("duration", 0.0),
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
    }


def _score_rows(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    trial = {key: record[key] for key in ("run_id", "entry_digest", "case_id", "trial")}
    for score in record["scores"]:
        value = score.get("value")
        typed = {"value_type": _type_of(value), "value_number": value, "value_bool": value}
        yield score | trial | typed


def _type_of(value: Any) -> str | None:
    if isinstance(value, str) and value in NOT_FINITE:
        return "float"
    return {bool: "bool", int: "int", float: "float", str: "text"}.get(type(value))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else encoded(value).decode()


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _int(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 2**63 else None


def _float(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) <= _LARGEST else None
