"""A rule of this suite, as plain Python."""

from __future__ import annotations

from datetime import datetime
from typing import Any

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def weekday_fits(record: dict[str, Any]) -> str | None:
    """Say when the record's date is another day of the week than the listing names."""
    try:
        starts_at = datetime.fromisoformat(record["event"]["starts_at"])
    except (TypeError, ValueError):
        return None  # another rule's business
    day = DAYS[starts_at.weekday()]
    named = [name for name in DAYS if name in record["listing"]]
    if not named or day in named:
        return None
    return f"the listing says {' and '.join(named)}, but {starts_at:%Y-%m-%d} is a {day}"
