"""Rules about one field: required, type, range, regex, allowed."""

from __future__ import annotations

import math
from typing import Any

from weirbox.domain.patterns import found
from weirbox.domain.ruling import Allowed, InRange, Matches, OfType, Required
from weirbox.domain.template import Missing, lookup
from weirbox.domain.values import is_number, json_equal, show
from weirbox.rules.base import BrokenBy, value_at

SHOWN_CHOICES = 10
"""How many of the allowed values a message lists."""


def required(spec: Required) -> BrokenBy:
    """Every path is there, and not null or blank."""

    def broken_by(document: Any, twin: str | None) -> str | None:
        faults = [fault for path in spec.paths if (fault := _absence(document, path))]
        return "; ".join(faults) or None

    return broken_by


def of_type(spec: OfType) -> BrokenBy:
    """The value has the JSON type."""

    def broken_by(document: Any, twin: str | None) -> str | None:
        value = value_at(document, spec.path)
        if _has_type(value, spec.type):
            return None
        return f"{spec.path} is {describe(value)}; it must be of type {spec.type}"

    return broken_by


def in_range(spec: InRange) -> BrokenBy:
    """The value is a number within the bounds."""

    def broken_by(document: Any, twin: str | None) -> str | None:
        value = value_at(document, spec.path)
        low = -math.inf if spec.at_least is None else spec.at_least
        high = math.inf if spec.at_most is None else spec.at_most
        if is_number(value) and low <= value <= high:
            return None
        bounds = []
        if spec.at_least is not None:
            bounds.append(f"at least {spec.at_least:.15g}")
        if spec.at_most is not None:
            bounds.append(f"at most {spec.at_most:.15g}")
        return f"{spec.path} is {describe(value)}; it must be a number, {' and '.join(bounds)}"

    return broken_by


def matches(spec: Matches) -> BrokenBy:
    """The whole text matches the pattern."""

    def broken_by(document: Any, twin: str | None) -> str | None:
        value = value_at(document, spec.path)
        if isinstance(value, str) and found(spec.pattern, value, whole=True):
            return None
        return f"{spec.path} is {describe(value)}; the whole text must match {spec.pattern!r}"

    return broken_by


def allowed(spec: Allowed) -> BrokenBy:
    """The value is one of the list."""

    def broken_by(document: Any, twin: str | None) -> str | None:
        value = value_at(document, spec.path)
        if any(json_equal(value, choice) for choice in spec.values):
            return None
        choices = ", ".join(show(choice) for choice in spec.values[:SHOWN_CHOICES])
        more = len(spec.values) - SHOWN_CHOICES
        listed = f"{choices} and {more} more" if more > 0 else choices
        return f"{spec.path} is {describe(value)}; allowed: {listed}"

    return broken_by


def describe(value: Any) -> str:
    """A value with its type, so that "12" and 12 differ in a message."""
    if value is None:
        return "null"
    kind = next(
        (kind for kind in ("boolean", "number", "string", "array") if _has_type(value, kind)), ""
    )
    return f"{show(value)} ({kind})" if kind else show(value)


def _absence(document: Any, path: str) -> str:
    try:
        value = lookup(document, path)
    except Missing:
        return f"{path} is missing"
    if value is None:
        return f"{path} is null"
    if isinstance(value, str) and not value.strip():
        return f"{path} is empty"
    return ""


def _has_type(value: Any, kind: str) -> bool:
    match kind:
        case "number":
            return is_number(value)
        case "integer":
            return is_number(value) and value == math.floor(value)
        case "null":
            return value is None
        case _:
            return isinstance(value, _PYTHON_TYPES[kind])


_PYTHON_TYPES = {"string": str, "boolean": bool, "object": dict, "array": list}
