"""Results of a run as files: CSV, JSON lines and Parquet, streamed from rows.

All three hold the records of `weirbox.frames`; memory is bounded by its batches.
"""

from __future__ import annotations

import csv
import json
import math
import re
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sqlalchemy import Connection

from weirbox.frames import CheckColumns, check_columns, column_names, stream_results
from weirbox.store import queries

if TYPE_CHECKING:
    import pyarrow as pa

_FORMULA = re.compile(r"\A[=+\-@\t\r]")
_NUMBER = re.compile(r"\A[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")

_INTS = ("seq", "trial")
_MOMENTS = ("executed_at", "judged_at", "exported_at")


def write_csv(connection: Connection, run_id: str, into: IO[str]) -> None:
    """Write a run's results as CSV (RFC 4180).

    A text that a spreadsheet would run as a formula (it begins with ``=``, ``+``, ``-``,
    ``@``, tab or carriage return, and is no number) gets an apostrophe in front: texts come
    from models and datasets, which nobody should have to trust. JSON lines and Parquet
    hold the texts as they are.

    Args:
        into: Opened with ``newline=""``.
    """
    checks = check_columns(connection, run_id)
    names = column_names(checks)
    writer = csv.writer(into, lineterminator="\r\n")
    writer.writerow([_harmless(name) for name in names])
    for batch in stream_results(connection, run_id, checks):
        writer.writerows([_cell(record.get(name)) for name in names] for record in batch)


def write_jsonl(connection: Connection, run_id: str, into: IO[str]) -> None:
    """Write a run's results as JSON lines in pure ASCII; every line has the same keys.

    Values keep their types; what is not a finite number is null, as JSON knows no other.
    """
    checks = check_columns(connection, run_id)
    names = column_names(checks)
    for batch in stream_results(connection, run_id, checks):
        for record in batch:
            line = {name: jsonable(record.get(name)) for name in names}
            into.write(json.dumps(line, allow_nan=False) + "\n")


def write_parquet(connection: Connection, run_id: str, path: Path) -> None:
    """Write a run's results as one Parquet file.

    A check whose values are all of one type has a column of that type (int and float
    together are float); mixed types stand as text.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    checks = check_columns(connection, run_id)
    schema = _schema(checks, queries.value_kinds(connection, run_id))
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in stream_results(connection, run_id, checks):
            arrays = [pa.array(_column(batch, field), type=field.type) for field in schema]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def jsonable(value: Any) -> Any:
    """A value as JSON knows it: moments in ISO 8601, and null for NaN and infinity."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    return _harmless(value) if isinstance(value, str) else value


def _harmless(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.match(text) else text


def _schema(checks: list[CheckColumns], kinds: dict[str, set[str]]) -> pa.Schema:
    import pyarrow as pa

    types = dict.fromkeys(column_names(checks), pa.string())
    types |= dict.fromkeys(_INTS, pa.int64()) | dict.fromkeys(_MOMENTS, pa.timestamp("us", "UTC"))
    types["cached"] = pa.bool_()
    typed = {
        frozenset({"bool"}): pa.bool_(),
        frozenset({"int"}): pa.int64(),
        frozenset({"float"}): pa.float64(),
        frozenset({"int", "float"}): pa.float64(),
    }
    for check in checks:
        types[check.value] = typed.get(frozenset(kinds.get(check.check, ())), pa.string())
    return pa.schema(list(types.items()))


def _column(batch: list[dict[str, Any]], field: pa.Field) -> list[Any]:
    import pyarrow as pa

    values = [record.get(field.name) for record in batch]
    if field.type == pa.string():
        return [None if value is None else _as_text(value) for value in values]
    if field.type == pa.float64():
        return [None if value is None else float(value) for value in values]
    return values


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
