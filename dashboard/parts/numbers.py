"""Numbers, money and times as people read them; what is unknown is a dash, never 0."""

from __future__ import annotations

from datetime import UTC, datetime

DASH = "–"


def percent(part: float | None, whole: float = 1.0) -> str:
    """A share with one decimal."""
    return DASH if part is None or not whole else f"{100 * part / whole:.1f} %"


def money(usd: float | None) -> str:
    """US dollars; small amounts keep four decimals."""
    if usd is None:
        return DASH
    return f"${usd:,.2f}" if usd >= 100 or usd == 0 else f"${usd:,.4f}"


def count(number: int | None) -> str:
    """A whole number with separators."""
    return DASH if number is None else f"{number:,}"


def seconds(value: float | None) -> str:
    """A duration in the two units that matter."""
    if value is None:
        return DASH
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago something was."""
    if moment is None:
        return DASH
    passed = int(((now or datetime.now(UTC)) - moment).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if passed >= length * (2 if unit == "d" else 1):
            return f"{passed // length} {unit} ago"
    return "just now"


def clock(moment: datetime | None) -> str:
    """A moment in UTC, to the second."""
    return DASH if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
