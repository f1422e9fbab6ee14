"""CSV and TSV files, read row by row."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from weirbox.datasets.entries import Entry, shown
from weirbox.datasets.source import split_lines
from weirbox.errors import DatasetError

CELL_LIMIT = 100 * 2**20
"""Characters in one cell; Python's own limit of 128 Ki is less than real cells hold."""

_QUOTED = re.compile(r'"[^"]*"?')
_ENDS = "\r\n"
_NOT_DELIMITERS = '"\r\n'


class _Lines:
    """Lines on their way into the parser, which remembers those of the current row."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._taken: list[str] = []
        self.count = 0
        self.ended = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.ended = True
            raise StopIteration
        self.count += 1
        self._taken.append(line)
        return line

    def take(self) -> str:
        """The text since the last call, without the final line end."""
        text = "".join(self._taken).rstrip(_ENDS)
        self._taken.clear()
        return text


def read_table(
    pieces: Iterable[str], where: str, *, delimiter: str | None, comment: str | None
) -> Iterator[Entry]:
    """One entry per row, as a mapping of column name to text.

    Empty lines are passed over. A row with more or fewer fields than the header
    is an entry with a problem.

    Args:
        where: What messages call the file.
        delimiter: What separates fields; by default the one of ``,``, ``;`` and tab
            that the header line has most of.
        comment: Lines before the header that start with it are passed over.

    Raises:
        DatasetError: When the delimiter or the header is unusable, or a quoted cell never closes.
    """
    if delimiter is not None and delimiter in _NOT_DELIMITERS:
        raise DatasetError(f"{where}: {delimiter!r} cannot be the 'delimiter' of a table")
    _allow_large_cells()
    lines = _Lines(split_lines(pieces))
    header_line = _header_line(lines, comment)
    if header_line is None:
        return
    header_at = lines.count
    rows = csv.reader(
        chain([header_line], lines), delimiter=delimiter or _sniff(header_line), strict=True
    )
    header = _header(rows, where, header_at)
    lines.take()
    while True:
        line = lines.count + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if lines.ended:
                raise DatasetError(
                    f"{where}, line {line}: a quoted cell that opens in this row never closes: "
                    "close the quote or double it"
                ) from error
            yield Entry(line, problem=f"not a row: {error}", raw=lines.take())
            continue
        raw = lines.take()
        if row:
            yield _row_entry(line, row, header, raw)


def _row_entry(line: int, row: list[str], header: list[str], raw: str) -> Entry:
    if len(row) != len(header):
        problem = f"{len(row)} fields, but the header has {len(header)}"
        return Entry(line, problem=problem, raw=raw)
    return Entry(line, dict(zip(header, row, strict=True)))


def _allow_large_cells() -> None:
    """The limit is the process's; only ever raising it keeps readers out of each other's way."""
    if csv.field_size_limit() < CELL_LIMIT:
        csv.field_size_limit(CELL_LIMIT)


def _header_line(lines: _Lines, comment: str | None) -> str | None:
    for line in lines:
        if line.strip(_ENDS) and not (comment and line.startswith(comment)):
            return line
    return None


def _sniff(header_line: str) -> str:
    bare = _QUOTED.sub("", header_line)
    return max((",", ";", "\t"), key=bare.count)


def _header(rows: Iterator[list[str]], where: str, line: int) -> list[str]:
    try:
        names = [name.strip() for name in next(rows)]
    except csv.Error as error:
        raise DatasetError(f"{where}, line {line}: the header is not a row: {error}") from error
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise DatasetError(
            f"{where}, line {line}: the header names a column twice: "
            f"{', '.join(map(shown, twins))}: rename one"
        )
    return names


__all__ = ["CELL_LIMIT", "read_table"]
