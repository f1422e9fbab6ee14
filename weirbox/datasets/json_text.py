"""JSON lines and JSON documents, read record by record."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from weirbox.datasets.entries import Entry, kind_of
from weirbox.datasets.source import CHUNK, split_lines
from weirbox.errors import DatasetError

_BLANK = " \t\r\n"
_SPACE = re.compile(f"[{_BLANK}]*")
_DECODER = json.JSONDecoder()


def read_json_lines(pieces: Iterable[str], where: str) -> Iterator[Entry]:
    """One entry per line that is not blank; a bad line is an entry with a problem.

    Raises:
        DatasetError: When the file is one JSON document.
    """
    lines = (
        (number, line.strip(_BLANK))
        for number, line in enumerate(split_lines(pieces), 1)
        if line.strip(_BLANK)
    )
    first = next(lines, None)
    if first is None:
        return
    entry = _line_entry(*first)
    if entry.problem and (first[1] == "{" or first[1].startswith("[")):
        raise _is_document(where, entry.position)
    second = next(lines, None)
    if second is None and isinstance(entry.value, list):
        raise _is_document(where, entry.position)
    yield entry
    if second is not None:
        yield _line_entry(*second)
    for number, line in lines:
        yield _line_entry(number, line)


def _is_document(where: str, line: int) -> DatasetError:
    return DatasetError(
        f"{where}, line {line}: this is one JSON document, not one JSON value per line: "
        "declare 'format: json'"
    )


def _line_entry(number: int, line: str) -> Entry:
    try:
        return Entry(number, json.loads(line))
    except (ValueError, RecursionError) as error:
        return Entry(number, problem=_not_json(error), raw=line)


def _not_json(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg.lower()} (column {error.colno})"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error)


class _Window:
    """The part of a document that is being read; holds little more than one record."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = _single_newlines(pieces)
        self._text = ""
        self._at = 0
        self.line = 1

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            self._advance(_after_space(self._text, self._at))
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip(self) -> None:
        """Pass over the character that `peek` gave."""
        self._at += 1

    def value(self) -> Any:
        """The next JSON value.

        Raises:
            ValueError, RecursionError: As `json.loads` does; `line` is then where.
        """
        while True:
            start = self._at
            try:
                value, end = _DECODER.raw_decode(self._text, start)
            except json.JSONDecodeError as error:
                if not self._more():
                    self.line += error.doc.count("\n", start, error.pos)
                    raise
                continue
            stop = _after_space(self._text, end)
            if self._text[stop : stop + 1] in (",", "]"):
                self._advance(end)
                return value
            if not self._more():
                self._advance(self._at + end - start)
                return value

    def _advance(self, to: int) -> None:
        self.line += self._text.count("\n", self._at, to)
        self._at = to

    def _more(self) -> bool:
        """Double what is held, so that a record of any size costs linear time."""
        held = [self._text[self._at :]]
        wanted = max(len(held[0]), CHUNK)
        while wanted > 0 and (piece := next(self._pieces, None)) is not None:
            held.append(piece)
            wanted -= len(piece)
        self._text, self._at = "".join(held), 0
        return len(held) > 1


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _single_newlines(pieces: Iterable[str]) -> Iterator[str]:
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    for text in pieces:
        yield newlines.decode(text)
    if last := newlines.decode("", final=True):
        yield last


def read_json(pieces: Iterable[str], where: str) -> Iterator[Entry]:
    """One entry per element of the array that the document is.

    An error in the syntax always ends the reading, since nothing tells where the
    next record of a broken document begins.

    Raises:
        DatasetError: When the text is not one JSON array.
    """
    window = _Window(pieces)
    if not (first := window.peek()):
        return
    if first != "[":
        _refuse_other(window, where)
    window.skip()
    closing = window.peek() == "]"
    while not closing:
        window.peek()
        line = window.line
        yield Entry(line, _document_value(window, where))
        follows = window.peek()
        if follows not in (",", "]"):
            raise DatasetError(
                f"{where}, line {window.line}: not JSON: ',' or ']' must follow an element: "
                "mend the file"
            )
        closing = follows == "]"
        if not closing:
            window.skip()
    window.skip()
    if window.peek():
        raise _are_lines(where, window.line)


def _document_value(window: _Window, where: str) -> Any:
    try:
        return window.value()
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"{where}, line {window.line}: {_not_json(error)}: mend the file; "
            "in a JSON document a syntax error cannot be quarantined, in JSON lines it can"
        ) from error


def _refuse_other(window: _Window, where: str) -> None:
    line = window.line
    value = _document_value(window, where)
    if window.peek():
        raise _are_lines(where, window.line)
    raise DatasetError(
        f"{where}, line {line}: the document is {kind_of(value)}, not an array of records: "
        "put the records into one '[...]'"
    )


def _are_lines(where: str, line: int) -> DatasetError:
    return DatasetError(
        f"{where}, line {line}: more than one JSON value: for one JSON value per line declare "
        "'format: jsonl'"
    )


__all__ = ["read_json", "read_json_lines"]
