"""A command of weirbox on a SQLite database that cannot grow: ``python -m tests.chaos.full
PAGES ARGUMENTS``. What SQLite says then is what it says on a full disk."""

from __future__ import annotations

import sys
from typing import Any

from sqlalchemy import Engine, event

from weirbox import cli
from weirbox.store import engine


def main() -> None:
    """Run the command; the database is waited for shortly only."""
    pages = int(sys.argv.pop(1))

    def limit(raw: Any, record: Any) -> None:
        raw.execute(f"PRAGMA max_page_count={pages}")

    if pages:
        event.listen(Engine, "connect", limit)
    engine.ATTEMPTS = 4
    cli.main()


if __name__ == "__main__":
    main()
