"""The base of every frozen model, and the one canonical JSON encoding."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Frozen(BaseModel):
    """An immutable value that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Count = Annotated[int, Field(le=2**31 - 1)]
"""A number of things that a suite declares; every database and system call can hold it."""

Seconds = Annotated[float, Field(le=366 * 86400.0, allow_inf_nan=False)]
"""A span of time that a suite declares, up to a year."""

Dollars = Annotated[float, Field(le=1e9, allow_inf_nan=False)]
"""An amount in US dollars that a suite declares."""


def canonical_json(value: Any) -> str:
    """Encode a JSON value so that equal values give equal text.

    The text is pure ASCII: NUL and lone surrogates stand as ``\\uXXXX``
    escapes and NaN as the literal ``NaN``, so every database can hold it and
    `json.loads` gives the original back.
    """
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    """The SHA-256 of a JSON value's canonical encoding, as 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def model_json(model: BaseModel) -> JsonValue:
    """A model as JSON values that `canonical_json` can encode without loss.

    Args:
        model: Any pydantic model; lone surrogates and NaN inside survive.
    """
    dumped: JsonValue = _plain(model.model_dump(mode="python", exclude_defaults=True))
    return dumped


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def storable(text: str) -> str:
    """Escape what a database or a terminal cannot hold: NUL and lone surrogates."""
    if "\0" not in text and text.isascii():
        return text
    escaped = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return escaped.replace("\0", "\\x00")
