"""Texts and values as platforms can hold them: whole up to a limit, then marked as cut."""

from __future__ import annotations

import json
import math
from typing import Any

from weirbox.domain.base import storable

FIELD = 32_000
"""The most characters of one field."""

TRIAL = 2_000_000
"""The most characters of one trial, over all fields; requests stay below what servers take."""

SHORT = 200
"""What is kept of a field, however much the others are."""


class Texts:
    """The fields of one trial; those that come first have the room.

    Args:
        whole: Where a person finds what is cut off.
    """

    def __init__(self, whole: str) -> None:
        self._whole = whole
        self._room = TRIAL

    def text(self, value: str) -> str:
        """A text, without what databases refuse, cut at the limit and marked so."""
        most = max(min(FIELD, self._room), SHORT)
        kept = storable(value[:most])
        self._room -= len(kept)
        if len(value) <= most:
            return kept
        return (
            f"{kept}\n[weirbox: cut after {most:,} of {len(value):,} characters; "
            f"the whole: {self._whole}]"
        )

    def json(self, value: Any) -> str:
        """Any JSON value as text: texts as they are, others as strictly valid JSON, as long
        as they are not cut."""
        if isinstance(value, str):
            return self.text(value)
        return self.text(json.dumps(plain(value), ensure_ascii=False))


def plain(value: Any) -> Any:
    """A JSON value that every strict reader takes: no NUL, no lone surrogates, and the
    numbers that JSON lacks as texts."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {storable(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
