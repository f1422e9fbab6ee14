"""What every reader yields: one entry per record, readable or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue


class RecordProblem(Exception):
    """Why one record cannot become a case; its message is shown to the user."""


@dataclass(frozen=True)
class Entry:
    """One record where it stands.

    Attributes:
        position: The line it starts on, or its row or index, as the reader counts.
        value: The record, when it could be read.
        problem: Why it could not be read.
        raw: The text of a record that could not be read.
    """

    position: int
    value: JsonValue = None
    problem: str | None = None
    raw: str = ""


def shown(value: object, limit: int = 120) -> str:
    """The value as Python writes it, cut to a length that fits a message."""
    text = repr(value[: limit + 1]) if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def kind_of(value: Any) -> str:
    """What a JSON value is called in a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list | tuple) else "an object"


__all__ = ["Entry", "RecordProblem", "kind_of", "shown"]
