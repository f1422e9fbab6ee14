"""One record of results: which trial it is, what its case says, and what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from weirbox.datasets.entries import Entry, RecordProblem, kind_of, shown
from weirbox.datasets.shapes import shape_of
from weirbox.domain.base import digest, storable
from weirbox.domain.recording import Recording, first_mistake
from weirbox.domain.spec import FieldMap

MOST_TRIALS = 1000
"""The highest trial number: as many repeats as a suite may have."""

LONGEST_NAME = 100
"""Characters of a score's name: as many as a check's name may have."""

DERIVED_ID = 16
"""Hex digits of an id that is derived from the input: 64 bits."""

CASE = ("input", "target")
"""What a record says of its case, besides the id."""

_RECORDED = tuple(name for name in Recording.model_fields if name not in ("id", "trial"))
_KNOWN = frozenset({"id", "trial", *CASE, *_RECORDED})
_SHAPE = shape_of(FieldMap(), None)
_JSON: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


@dataclass(frozen=True)
class Pushed:
    """One record, read.

    Attributes:
        position: Where it stands.
        derived: Whether its id is derived from its input.
        case: Its input and target, as far as it says them.
        further: Whatever else it says.
    """

    position: int
    derived: bool
    case: dict[str, JsonValue]
    further: dict[str, JsonValue]
    recording: Recording

    @property
    def case_id(self) -> str:
        """The case's id, as the store keeps it."""
        return self.recording.id

    @property
    def trial(self) -> int:
        """Which trial it is."""
        return self.recording.trial or 1


def read_pushed(entry: Entry) -> Pushed:
    """Read a record.

    Raises:
        RecordProblem: Saying what is wrong with it.
    """
    value = _checked(entry.value)
    given = _SHAPE.id_of(value)
    if given is None and value.get("input") is None:
        raise RecordProblem("there is neither an 'id' nor an 'input' to derive one from")
    said: dict[str, Any] = {name: value[name] for name in _RECORDED if name in value}
    said["id"] = storable(given) if given is not None else digest(value["input"])[:DERIVED_ID]
    said["trial"] = _trial(value.get("trial"))
    if said.get("scores") is not None:
        said["scores"] = _named(said["scores"])
    try:
        recording = Recording.model_validate(said)
    except ValidationError as error:
        raise RecordProblem(first_mistake(error)) from None
    return Pushed(
        position=entry.position,
        derived=given is None,
        case={name: value[name] for name in CASE if name in value},
        further={key: item for key, item in value.items() if key not in _KNOWN},
        recording=recording,
    )


def _checked(value: Any) -> dict[str, JsonValue]:
    if not isinstance(value, Mapping):
        raise RecordProblem(f"a record is an object, not {kind_of(value)}")
    try:
        return _JSON.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        if first["type"].startswith("recursion"):
            raise RecordProblem("nested too deeply: more than about 250 levels") from None
        where = ".".join(str(part) for part in first["loc"][:1])
        raise RecordProblem(f"{shown(where)} is not JSON: {first['msg']}") from None


def _trial(value: JsonValue) -> int:
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TRIALS:
        raise RecordProblem(
            f"'trial' is {shown(value)}: a trial is a whole number from 1 to {MOST_TRIALS}"
        )
    return value


def _named(scores: JsonValue) -> dict[str, JsonValue]:
    """Scores by the names that the store can hold."""
    if not isinstance(scores, dict):
        raise RecordProblem(f"'scores' is {kind_of(scores)}: it is an object, a value per name")
    named: dict[str, JsonValue] = {}
    for written, value in scores.items():
        name = storable(written)
        if not name.strip() or len(name) > LONGEST_NAME:
            raise RecordProblem(
                f"the score name {shown(written, 60)} has {len(name)} characters: a name has 1 "
                f"to {LONGEST_NAME}, and is not blank"
            )
        if name in named:
            raise RecordProblem(f"two score names are kept alike, as {shown(name)}: rename one")
        named[name] = value
    return named
