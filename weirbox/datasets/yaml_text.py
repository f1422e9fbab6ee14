"""YAML files, read record by record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from weirbox.datasets.entries import Entry
from weirbox.errors import DatasetError

NODES = 1_000_000
"""The most values in one record once its aliases are written out."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    ".nan": float("nan"),
    ".inf": float("inf"),
    "-.inf": float("-inf"),
}
_TEXT = "tag:yaml.org,2002:str"


class _Broken(Exception):
    """What is wrong with the document, at the builder's line."""


class _Stream:
    """Pieces of text as the file that the parser reads from."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = iter(pieces)

    def read(self, _size: int = -1) -> str:
        return next(self._pieces, "")


class _Builder:
    """Builds JSON values from the parser's events, one record at a time.

    Plain words mean what they mean in JSON: ``001``, ``no`` and ``2024-01-01``
    stay the text they are, so that ids are kept as written.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Iterator[Any] = yaml.parse(_Stream(pieces), Loader=loader)
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._nodes = 0
        self.line = 1
        self.event: Any = None

    def step(self) -> str:
        """Go on to the next event and give its name."""
        self.event = next(self._events)
        self.line = self.event.start_mark.line + 1
        return type(self.event).__name__

    def record(self) -> Any:
        """The value that starts with the current event."""
        self._nodes = 0
        return self._value()

    def _value(self) -> Any:
        event = self.event
        before = self._nodes
        kind = type(event).__name__
        if kind == "AliasEvent":
            if event.anchor not in self._anchors:
                raise _Broken(f"the alias *{event.anchor} has no anchor before it")
            value, nodes = self._anchors[event.anchor]
            self._count(nodes)
            return value
        self._count(1)
        if kind == "ScalarEvent":
            value = self._scalar(event)
        elif kind == "SequenceStartEvent":
            self._refuse_tag(event.tag)
            value = []
            while self.step() != "SequenceEndEvent":
                value.append(self._value())
        else:
            self._refuse_tag(event.tag)
            value = self._mapping()
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._nodes - before)
        return value

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > NODES:
            raise _Broken(f"a record of more than {NODES} values, aliases written out")

    def _mapping(self) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while (kind := self.step()) != "MappingEndEvent":
            if kind != "ScalarEvent":
                raise _Broken("a mapping's key must be text")
            key, plain = self.event.value, self.event.implicit[0]
            self.step()
            if key == "<<" and plain:
                merged = self._merged() | merged
            elif key in own:
                raise _Broken(f"the key {key!r} stands twice in one mapping")
            else:
                own[key] = self._value()
        return merged | own

    def _merged(self) -> dict[str, Any]:
        value = self._value()
        parts = value if isinstance(value, list) else [value]
        merged: dict[str, Any] = {}
        for part in parts:
            if not isinstance(part, dict):
                raise _Broken("'<<' takes a mapping or a list of mappings")
            merged = part | merged
        return merged

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        plain, quoted = event.implicit
        if not plain:
            if not quoted and event.tag != _TEXT:
                self._refuse_tag(event.tag)
            return text
        if text in _WORDS:
            return _WORDS[text]
        number = _NUMBER.fullmatch(text)
        if number is None:
            return text
        return float(text) if number.group(2) or number.group(3) else int(text)

    def _refuse_tag(self, tag: str | None) -> None:
        if tag is not None:
            raise _Broken(f"the tag {tag!r} has no meaning in a dataset: remove it")


def read_yaml(pieces: Iterable[str], where: str) -> Iterator[Entry]:
    """One entry per item of the list that the document is.

    Raises:
        DatasetError: When the text is not YAML, or not one list.
    """
    import yaml

    builder = _Builder(pieces)
    try:
        yield from _items(builder)
    except _Broken as problem:
        raise DatasetError(f"{where}, line {builder.line}: {problem}") from problem
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else builder.line
        raise DatasetError(f"{where}, line {line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DatasetError(f"{where}, after line {builder.line}: not YAML: {error}") from error


def _items(builder: _Builder) -> Iterator[Entry]:
    builder.step()
    if builder.step() == "StreamEndEvent":
        return
    if builder.step() != "SequenceStartEvent":
        raise _Broken("the document is not a list of records: start each record with '- '")
    while builder.step() != "SequenceEndEvent":
        yield Entry(builder.line, builder.record())
    builder.step()
    if builder.step() != "StreamEndEvent":
        raise _Broken("more than one document: put all records into one list")


__all__ = ["NODES", "read_yaml"]
