"""Rules about how one field stands to another, or to a moment: date, reference."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from weirbox.domain.ruling import FIELD, NOW, DateSanity, Reference
from weirbox.domain.values import Moment, earlier, is_number, json_equal, parse_moment
from weirbox.rules.base import Broken, BrokenBy, value_at
from weirbox.rules.fields import describe


def date_sanity(spec: DateSanity) -> BrokenBy:
    """The value is an ISO date or time between the bounds, both inclusive."""

    def broken_by(document: Any, twin: str | None) -> str | None:
        moment = _moment_at(document, spec.path)
        if spec.not_before is not None and earlier(moment, _bound(document, spec.not_before)):
            return f"{spec.path} is {moment}, before {_name(document, spec.not_before)}"
        if spec.not_after is not None and earlier(_bound(document, spec.not_after), moment):
            return f"{spec.path} is {moment}, after {_name(document, spec.not_after)}"
        return None

    return broken_by


def reference(spec: Reference) -> BrokenBy:
    """The value stands in the relation to another field's value."""

    def broken_by(document: Any, twin: str | None) -> str | None:
        value, other = value_at(document, spec.path), value_at(document, spec.to)
        if _RELATIONS[spec.relation](value, other):
            return None
        wanted = spec.relation.replace("-", " ")
        return (
            f"{spec.path} is {describe(value)}; it must be {wanted} "
            f"{_PREPOSITIONS.get(spec.relation, '')}{spec.to}, which is {describe(other)}"
        )

    return broken_by


def _moment_at(document: Any, path: str) -> Moment:
    value = value_at(document, path)
    if not isinstance(value, str):
        raise Broken(f"{path} is {describe(value)}; it must be an ISO date or time")
    try:
        return parse_moment(value)
    except ValueError as error:
        raise Broken(
            f"{path} is {describe(value)}, which is no ISO date or time: {error}"
        ) from error


def _bound(document: Any, bound: str) -> Moment:
    if bound == NOW:
        return datetime.now(UTC)
    if bound.startswith(FIELD):
        return _moment_at(document, bound.removeprefix(FIELD))
    return parse_moment(bound)


def _name(document: Any, bound: str) -> str:
    if bound.startswith(FIELD):
        path = bound.removeprefix(FIELD)
        return f"{path}, which is {_moment_at(document, path)}"
    return bound


def _is_less(one: Any, other: Any) -> bool:
    """Whether a value stands before another.

    Raises:
        Broken: When the two have no order.
    """
    if is_number(one) and is_number(other):
        return bool(one < other)
    if isinstance(one, str) and isinstance(other, str):
        try:
            moments = parse_moment(one), parse_moment(other)
        except ValueError:
            return one < other
        return earlier(*moments)
    raise Broken(f"{describe(one)} and {describe(other)} have no order")


def _is_in(value: Any, collection: Any) -> bool:
    if isinstance(collection, list):
        return any(json_equal(value, item) for item in collection)
    if isinstance(value, str) and isinstance(collection, dict | str):
        return value in collection
    return False


_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": json_equal,
    "different": lambda one, other: not json_equal(one, other),
    "less": _is_less,
    "less-or-equal": lambda one, other: not _is_less(other, one),
    "greater": lambda one, other: _is_less(other, one),
    "greater-or-equal": lambda one, other: not _is_less(one, other),
    "in": _is_in,
}

_PREPOSITIONS = {
    "equal": "to ",
    "different": "from ",
    "less": "than ",
    "greater": "than ",
    "less-or-equal": "to ",
    "greater-or-equal": "to ",
}
