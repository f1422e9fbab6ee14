"""The columns that tables are made of, the same on both databases."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Integer
from sqlmodel import Field

from weirbox.store.types import JsonText, SafeText, UtcDateTime


def text_column(**options: Any) -> Any:
    """Text that both databases take."""
    return Field(sa_type=SafeText, **options)


def moment(**options: Any) -> Any:
    """A moment in UTC."""
    return Field(sa_type=UtcDateTime, **options)


def nano(**options: Any) -> Any:
    """A large whole number: a token, or billionths of a dollar."""
    return Field(sa_type=BigInteger, **options)


def whole(default: int) -> Any:
    """A whole number that rows from before the column was there have, too."""
    return Field(
        default=default, sa_type=Integer, sa_column_kwargs={"server_default": str(default)}
    )


def flag() -> Any:
    """False, for rows from before the column was there, too."""
    return Field(default=False, sa_type=Boolean, sa_column_kwargs={"server_default": "0"})


def json_column() -> Any:
    """A JSON value, or nothing."""
    return Field(default=None, sa_type=JsonText, nullable=True)


def number() -> Any:
    """An automatic key that SQLite accepts and that never runs out on PostgreSQL."""
    return Field(
        default=None,
        sa_column=Column(
            BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
        ),
    )
