"""Where id, input and target stand in a record."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import JsonValue

from weirbox.datasets.entries import RecordProblem, kind_of, shown
from weirbox.domain.spec import FieldMap, Preset
from weirbox.domain.template import Missing, lookup

Getter = Callable[[JsonValue], JsonValue]
"""Takes one value out of a record, or raises `RecordProblem`."""


def _required(path: str) -> Getter:
    def get(record: JsonValue) -> JsonValue:
        try:
            found: JsonValue = lookup(record, path)
        except Missing:
            raise RecordProblem(f"there is no field {path!r}; {_has(record)}") from None
        return found

    return get


def _optional(*paths: str) -> Getter:
    def get(record: JsonValue) -> JsonValue:
        for path in paths:
            try:
                found: JsonValue = lookup(record, path)
            except Missing:
                continue
            return found
        return None

    return get


def _has(record: JsonValue) -> str:
    if not isinstance(record, Mapping):
        return f"the record is {kind_of(record)}"
    return f"the record has {', '.join(map(shown, list(record)[:30])) or 'no fields'}"


def _input_or_whole(record: JsonValue) -> JsonValue:
    return record["input"] if isinstance(record, Mapping) and "input" in record else record


def _promptfoo_input(record: JsonValue) -> JsonValue:
    """The variables: every column that is not one of promptfoo's own."""
    if not isinstance(record, Mapping):
        raise RecordProblem(f"a promptfoo record is an object; {_has(record)}")
    return {key: value for key, value in record.items() if not key.startswith("__")}


_EXPECTED = re.compile(r"__expected\d*")


def _promptfoo_target(record: JsonValue) -> JsonValue:
    """The assertions as written; a list where several columns hold one."""
    if not isinstance(record, Mapping):
        return None
    found: list[JsonValue] = [
        value for key, value in record.items() if _EXPECTED.fullmatch(key) and value
    ]
    if len(found) > 1:
        return found
    return found[0] if found else None


@dataclass(frozen=True)
class Shape:
    """How a record is read.

    A path that the suite declares must be in every record. A preset demands what its
    source always has, and takes the rest where it is there. With neither, id, input
    and target are the fields of that name; a record without ``input`` is the input
    itself.
    """

    id: Getter
    input: Getter
    target: Getter

    def id_of(self, record: JsonValue) -> str | None:
        """The id as written; None where the record has none.

        A number in JSON is written as Python writes it: 1 is ``1`` and 1.0 is ``1.0``.

        Raises:
            RecordProblem: When what stands there cannot be an id.
        """
        found = self.id(record)
        if found is None:
            return None
        usable = isinstance(found, str | int | float) and not isinstance(found, bool)
        if not usable or (isinstance(found, float) and not math.isfinite(found)):
            what = shown(found) if isinstance(found, float) else kind_of(found)
            raise RecordProblem(f"the id is {what}: an id is a string or a number")
        text = found if isinstance(found, str) else str(found)
        if not text.strip():
            raise RecordProblem(
                f"the id {shown(text)} is empty: write one, or leave the field out of all records"
            )
        return text


_PLAIN = Shape(_optional("id"), _input_or_whole, _optional("target"))

_PRESETS: Mapping[Preset, Shape] = MappingProxyType(
    {
        Preset.OPENAI_EVALS: Shape(_optional("id"), _required("input"), _optional("ideal")),
        Preset.INSPECT: Shape(_optional("id"), _required("input"), _optional("target")),
        Preset.PROMPTFOO: Shape(_optional("id"), _promptfoo_input, _promptfoo_target),
        Preset.SWE_BENCH: Shape(
            _required("instance_id"), _required("problem_statement"), _optional("patch")
        ),
        Preset.HUMANEVAL: Shape(
            _required("task_id"), _required("prompt"), _optional("canonical_solution")
        ),
        Preset.MLFLOW: Shape(_optional("id"), _required("inputs"), _optional("expectations")),
        Preset.LANGFUSE: Shape(
            _optional("id"), _required("input"), _optional("expected_output", "expectedOutput")
        ),
    }
)


def shape_of(fields: FieldMap, preset: Preset | None) -> Shape:
    """The shape that a suite declares: its own paths first, then the preset's."""
    base = _PRESETS[preset] if preset else _PLAIN
    return Shape(
        _required(fields.id) if fields.id else base.id,
        _required(fields.input) if fields.input else base.input,
        _required(fields.target) if fields.target else base.target,
    )


__all__ = ["Shape", "shape_of"]
