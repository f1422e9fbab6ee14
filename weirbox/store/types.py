"""Column types that behave the same on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, LargeBinary, Text
from sqlalchemy.types import TypeDecorator

from weirbox.domain.base import canonical_json, storable

NANO = 1_000_000_000
"""Money is kept in integer billionths of a US dollar, so that sums are exact."""


def utc_now() -> datetime:
    """The present moment, with its time zone."""
    return datetime.now(UTC)


def to_nano(usd: float | None) -> int | None:
    """US dollars as integer billionths; None stays unknown."""
    return None if usd is None else round(usd * NANO)


def to_usd(nano: int | None) -> float | None:
    """Integer billionths as US dollars; None stays unknown."""
    return None if nano is None else nano / NANO


class SafeText(TypeDecorator[str]):
    """Text in which NUL and lone surrogates stand escaped: PostgreSQL refuses both."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape on the way in."""
        return None if value is None else storable(value)


class JsonText(TypeDecorator[Any]):
    """A JSON value as canonical ASCII text; NaN, NUL and surrogates survive."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Encode on the way in."""
        return None if value is None else canonical_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Decode on the way out."""
        return None if value is None else json.loads(value)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC, aware on the Python side, on both databases."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC on the way in."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Aware on the way out: SQLite forgets the zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Packed(TypeDecorator[bytes]):
    """Bytes, compressed."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Compress on the way in."""
        return None if value is None else zlib.compress(value, 1)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Decompress on the way out."""
        return None if value is None else zlib.decompress(value)
