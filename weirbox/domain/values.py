"""How JSON values and moments are compared."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from typing import Any

from weirbox.domain.base import canonical_json, storable

Moment = date | datetime
"""A day, or a point in time."""

_SHOWN = 80


class NotJson(ValueError):
    """A text is not JSON."""


def parse_json(text: str) -> Any:
    """Read a text as JSON.

    Raises:
        NotJson: When it is none, is nested too deeply, or has a number too long to read.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from error


def json_key(value: Any) -> str:
    """A text that is the same for equal JSON values and for no others.

    Numbers are equal by value, so 1 and 1.0 have one key; true and 1 have two.
    """
    return canonical_json(_plain_numbers(value))


def json_equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; types count, so 1 is neither "1" nor true."""
    return json_key(one) == json_key(other)


def is_number(value: Any) -> bool:
    """Whether a value is a JSON number: no boolean, no NaN, no infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def plain_text(value: Any) -> str:
    """A JSON value as text: texts as they stand, the rest as JSON without ASCII escapes."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def show(value: Any) -> str:
    """A JSON value for a message, cut to a readable length."""
    text = storable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def parse_moment(text: str) -> Moment:
    """Read an ISO 8601 date or date and time.

    Raises:
        ValueError: When it is neither, or names a day that does not exist.
    """
    if any(separator in text for separator in "Tt "):
        return datetime.fromisoformat(text)
    return date.fromisoformat(text)


def earlier(one: Moment, other: Moment) -> bool:
    """Whether a moment lies before another.

    A day is compared with a point in time by that point's own calendar day, so
    noon is not after the day it lies in. A time without a zone counts as UTC.
    """
    if isinstance(one, datetime) and isinstance(other, datetime):
        return _aware(one) < _aware(other)
    return _day(one) < _day(other)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _day(moment: Moment) -> date:
    return moment.date() if isinstance(moment, datetime) else moment


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(item) for item in value]
    return value
