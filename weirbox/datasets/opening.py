"""Open what a suite's ``dataset`` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from pydantic import JsonValue

from weirbox.datasets.columns import read_parquet
from weirbox.datasets.entries import Entry
from weirbox.datasets.json_text import read_json, read_json_lines
from weirbox.datasets.scan import Dataset
from weirbox.datasets.shapes import shape_of
from weirbox.datasets.source import check_encoding, find_file, read_text, to_path
from weirbox.datasets.tabular import read_table
from weirbox.datasets.yaml_text import read_yaml
from weirbox.domain.spec import DatasetFormat, DatasetSpec
from weirbox.errors import DatasetError

_SUFFIXES = {
    ".jsonl": DatasetFormat.JSONL,
    ".ndjson": DatasetFormat.JSONL,
    ".json": DatasetFormat.JSON,
    ".csv": DatasetFormat.CSV,
    ".tsv": DatasetFormat.TSV,
    ".parquet": DatasetFormat.PARQUET,
    ".yaml": DatasetFormat.YAML,
    ".yml": DatasetFormat.YAML,
}


def open_dataset(spec: DatasetSpec, *, folder: str) -> Dataset:
    """Find a dataset and decide how it is read; its records are read by `Dataset.scan`.

    Args:
        folder: The folder of the suite file, which relative paths start from.

    Raises:
        DatasetError: When there is no such file, or its format or encoding is unknown.
    """
    shape = shape_of(spec.fields, spec.preset)
    quarantine = spec.on_error == "quarantine"
    path = to_path(spec, folder)
    if path is None:
        records = spec.records or ()
        return Dataset(
            name="inline",
            where="the suite's inline records",
            unit="record",
            entries=lambda: _inline(records),
            shape=shape,
            quarantine=quarantine,
            limit=spec.limit,
        )
    file = find_file(path)
    format_ = spec.format or _infer_format(path)
    check_encoding(spec.encoding)
    where = f"dataset {path!r}"
    return Dataset(
        name=file.name,
        where=where,
        unit="row" if format_ is DatasetFormat.PARQUET else "line",
        entries=_reader(spec, format_, file, where),
        shape=shape,
        quarantine=quarantine,
        limit=spec.limit,
    )


def _inline(records: tuple[JsonValue, ...]) -> Iterator[Entry]:
    return (Entry(index, record) for index, record in enumerate(records))


def _infer_format(path: str) -> DatasetFormat:
    suffixes = [suffix.lower() for suffix in PurePath(path).suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in _SUFFIXES:
        raise DatasetError(
            f"dataset {path!r}: the end {suffix!r} of the name tells no format: declare 'format' "
            f"as one of {', '.join(DatasetFormat)}"
        )
    return _SUFFIXES[suffix]


def _reader(
    spec: DatasetSpec, format_: DatasetFormat, file: Path, where: str
) -> Callable[[], Iterator[Entry]]:
    def read() -> Iterator[Entry]:
        if format_ is DatasetFormat.PARQUET:
            return read_parquet(file, where)
        pieces = read_text(file, spec.encoding)
        match format_:
            case DatasetFormat.JSONL:
                return read_json_lines(pieces, where)
            case DatasetFormat.JSON:
                return read_json(pieces, where)
            case DatasetFormat.YAML:
                return read_yaml(pieces, where)
            case DatasetFormat.CSV | DatasetFormat.TSV:
                fixed = "\t" if format_ is DatasetFormat.TSV else None
                return read_table(
                    pieces, where, delimiter=spec.delimiter or fixed, comment=spec.comment
                )

    return read


__all__ = ["open_dataset"]
