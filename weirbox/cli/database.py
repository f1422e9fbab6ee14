"""Bring a database's schema up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weirbox.cli.edge import Screen
from weirbox.store.engine import migrate
from weirbox.store.views.opening import shown_url

if TYPE_CHECKING:
    from weirbox.settings import Settings


def migrate_database(screen: Screen, settings: Settings) -> None:
    """Apply the migrations that a database lacks, and say from which to which version."""
    shown = shown_url(settings.store_url)
    before, after = migrate(settings.store_url)
    if before is None:
        screen.tell(f"{shown} was empty; it has schema {after} now")
    elif before == after:
        screen.tell(f"{shown} has schema {after} already: nothing to do")
    else:
        screen.tell(
            f"{shown} went from schema {before} to {after}; older versions of weirbox refuse "
            "it from now on: keep the backup from before until you are content"
        )
    screen.json({"before": before, "after": after})
