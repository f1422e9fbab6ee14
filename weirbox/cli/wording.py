"""How numbers, moments and tables look on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from weirbox.cli.edge import plain

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

STYLES = {
    "completed": "green",
    "pass": "green",
    "clean": "green",
    "ok": "green",
    "running": "cyan",
    "pending": "dim",
    "none": "dim",
    "review": "yellow",
    "warn": "yellow",
    "cancelled": "yellow",
    "superseded": "yellow",
    "unscored": "yellow",
    "fail": "red",
    "failed": "red",
    "errored": "red",
    "error": "red",
    "quarantined": "red",
}
"""Colours of the closed sets' words; the words are always there, too."""


def word(value: object) -> Text:
    """A word of a closed set, in its colour."""
    from rich.text import Text

    return Text(str(value), style=STYLES.get(str(value), ""))


def text(value: object) -> Text:
    """Untrusted text, as it is."""
    from rich.text import Text

    return Text(plain(value))


def cut(value: str, most: int) -> str:
    """A text that is not too long to show."""
    return value if len(value) <= most else f"{value[:most]}... ({len(value)} characters)"


def grid(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: int = 0) -> Table:
    """A table without frames.

    Args:
        rows: Cells; a `rich.text.Text` stands as it is, all else as untrusted text.
        right: How many of the last columns hold numbers.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for number, name in enumerate(head):
        numeric = number >= len(head) - right
        table.add_column(
            name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold"
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else text(cell) for cell in row))
    return table


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and what they stand for, one pair per line."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=12)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(text(name), value if isinstance(value, Text) else text(value))
    return table


def counted(counts: Mapping[str, int], names: Iterable[str]) -> Text:
    """Words of a closed set with their counts; those that do not occur are dim."""
    from rich.text import Text

    parts = [
        Text.assemble(f"{counts[name]} ", word(name))
        if counts[name]
        else Text(f"0 {name}", style="dim")
        for name in names
    ]
    return Text(", ").join(parts)


def usd(amount: float, unpriced: int = 0) -> str:
    """Money; what could not be priced is said, too."""
    shown = f"${amount:.4f}" if 0 < amount < 1 else f"${amount:.2f}"
    return f"{shown} + {unpriced} unpriced" if unpriced else shown


def span(seconds: float) -> str:
    """A duration."""
    if 0 < seconds < 0.001:
        return "under 1 ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def moment(at: datetime | None) -> str:
    """A moment, in local time."""
    return "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def took(begin: datetime, end: datetime) -> str:
    """From one moment to another."""
    return span((end - begin).total_seconds())


def plural(count: int, noun: str) -> str:
    """A count and its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
