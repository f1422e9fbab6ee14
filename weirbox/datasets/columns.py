"""Parquet files, read in batches of rows."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from weirbox.datasets.entries import Entry, RecordProblem
from weirbox.datasets.source import open_binary
from weirbox.errors import DatasetError

BATCH = 64
"""Rows held at a time; real records reach tens of megabytes."""


def read_parquet(file: Path, where: str) -> Iterator[Entry]:
    """One entry per row, counted from 1, as a mapping of column name to value.

    Dates and times become ISO 8601 text, decimals their digits, bytes base64 text,
    and maps lists of pairs.

    Raises:
        DatasetError: When the file is not Parquet or names a column twice.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    with open_binary(file) as stream:
        try:
            table = pq.ParquetFile(stream)
            _refuse_twins(table.schema_arrow.names, where)
            for batch in table.iter_batches(batch_size=BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield _row_entry(number, row)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise DatasetError(f"{where}: not a readable Parquet file: {error}") from error


def _refuse_twins(names: list[str], where: str) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise DatasetError(
            f"{where}: the schema names a column twice: {', '.join(map(repr, twins))}: rename one"
        )


def _row_entry(number: int, row: dict[str, Any]) -> Entry:
    try:
        return Entry(number, _json_value(row))
    except RecordProblem as problem:
        return Entry(number, problem=str(problem), raw=repr(row))


def _json_value(value: Any) -> JsonValue:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal | datetime.timedelta):
        return str(value)
    raise RecordProblem(f"there is no JSON value for {type(value).__name__}")


__all__ = ["BATCH", "read_parquet"]
