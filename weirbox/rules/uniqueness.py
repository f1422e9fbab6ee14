"""Rules of kind unique: the planner finds the twins, the rule reads what it found."""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import JsonValue

from weirbox.domain.ruling import UniqueInRun
from weirbox.domain.template import lookup
from weirbox.domain.values import json_key
from weirbox.rules.base import BrokenBy, is_present, value_at
from weirbox.rules.fields import describe


def unique(spec: UniqueInRun) -> BrokenBy:
    """No other case has the value."""

    def broken_by(document: Any, twin: str | None) -> str | None:
        value = value_at(document, spec.path)
        if value is None:
            return f"{spec.path} is null; it must be a value of its own"
        if twin is None:
            return None
        return f"{spec.path} is {describe(value)}, as in case {twin!r}; no two cases may share it"

    return broken_by


def unique_value(spec: UniqueInRun, record: JsonValue) -> str | None:
    """What two records have in common when they break the rule together.

    The planner calls this for every case; cases with the same text are twins.

    Returns:
        A digest of the value, by which 1 and 1.0 are the same and "1" is not; None
        where the value is missing or null, or `when` leaves the record out.
    """
    if spec.when is not None and not is_present(record, spec.when):
        return None
    if not is_present(record, spec.path):
        return None
    return hashlib.sha256(json_key(lookup(record, spec.path)).encode("ascii")).hexdigest()
