"""Where results come from: a file of JSON lines, an Inspect log, or records at hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weirbox.datasets.entries import Entry
from weirbox.datasets.source import open_binary, read_text, split_lines
from weirbox.domain.values import NotJson, parse_json
from weirbox.errors import UserError
from weirbox.ingesting.inspect_log import open_log

Results = str | Path | Iterable[Mapping[str, Any]]
"""A file, or the records themselves."""

INSPECT = (".eval", ".json")
"""How the names of Inspect's logs end."""

_BLANK = " \t\r\n"


@dataclass(frozen=True)
class Source:
    """Results that were found; they are read once.

    Attributes:
        name: What the dataset is called where the results are the dataset.
        where: What messages call it.
        unit: What positions count.
        title: What the suite is called where there is none.
        entries: The records; those of a file that cannot be read are a `UserError`.
        warnings: What a user should know of it.
    """

    name: str
    where: str
    unit: str
    title: str
    entries: Callable[[], Iterator[Entry]]
    warnings: tuple[str, ...] = ()


def open_source(results: Results) -> Source:
    """Find results, and decide how they are read.

    Raises:
        UserError: When there is no such file, or what reads it is not installed.
    """
    if not isinstance(results, str | Path):
        return _at_hand(results)
    file, where = Path(results), f"results {str(results)!r}"
    try:
        exists, folder = file.exists(), file.is_dir()
    except (OSError, ValueError) as error:
        raise UserError(f"{where} cannot be read: {error}") from None
    if not exists:
        raise UserError(f"{where}: there is no such file")
    if folder:
        raise UserError(f"{where} is a folder: name a file in it")
    if file.suffix.lower() in INSPECT:
        log = open_log(file, where)
        return Source(
            name=file.name,
            where=where,
            unit="sample",
            title=log.task,
            entries=log.entries,
            warnings=log.warnings,
        )
    open_binary(file).close()
    name = file.name.removesuffix(".gz")
    return Source(
        name=name,
        where=where,
        unit="line",
        title=Path(name).stem,
        entries=lambda: _lines(file, where),
    )


def _at_hand(records: Iterable[Mapping[str, Any]]) -> Source:
    if isinstance(records, Mapping) or not isinstance(records, Iterable):
        raise UserError(
            f"results are a file or a list of records, not {type(records).__name__}: "
            "put a single record into a list"
        )
    return Source(
        name="records",
        where="the given records",
        unit="record",
        title="ingested",
        entries=lambda: (
            Entry(index, dict(record) if isinstance(record, Mapping) else record)
            for index, record in enumerate(records)
        ),
    )


def _lines(file: Path, where: str) -> Iterator[Entry]:
    """One entry per line that is not blank; only LF, CR LF and CR end a line."""
    for number, line in enumerate(split_lines(read_text(file, "utf-8")), 1):
        text = line.strip(_BLANK)
        if not text:
            continue
        try:
            yield Entry(number, parse_json(text))
        except NotJson as error:
            raise UserError(
                f"{where}, line {number}: not JSON: {_why(error)}: each line is one JSON object"
            ) from None


def _why(error: NotJson) -> str:
    cause = error.__cause__
    if isinstance(cause, json.JSONDecodeError):
        return f"{cause.msg.lower()} (column {cause.colno})"
    return "nested too deeply" if isinstance(cause, RecursionError) else str(error)
