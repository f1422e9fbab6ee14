"""What the tests of outages have in common: runs that go on while something is broken."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.chaos.world import World
from weirbox.domain.run import RunSummary
from weirbox.store import queries
from weirbox.store.engine import Database

PATIENCE_S = 300.0
"""After how long a run that does not end is a finding."""

ROOT = Path(__file__).parents[2]

_OVER = object()


def live_through(
    database: Database, place: World, run_id: str, outage: Iterator[None]
) -> tuple[RunSummary, float]:
    """Let a run come to its end while something happens; gives it, and the seconds.

    Args:
        outage: Is gone on with again and again, the world with it.
    """
    begun = time.monotonic()
    over = False
    while True:
        place.step()
        over = over or next(outage, _OVER) is _OVER
        seconds = time.monotonic() - begun
        assert seconds < PATIENCE_S, f"not at its end: {log(place)[-3000:]}"
        if over:
            found = database.fetch(partial(queries.summary, run_id=run_id))
            if found.status.terminal and not found.finalizing:
                return found, seconds
        time.sleep(0.05)


def pause(seconds: float) -> Iterator[None]:
    """Let an outage go on."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def executed(database: Database, run_id: str) -> int:
    """How many trials have been executed."""
    return database.fetch(partial(queries.progress, run_id=run_id)).executed


def until(condition: Callable[[], bool], *, seconds: float = PATIENCE_S) -> None:
    """Wait for something that other processes do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come in time"
        time.sleep(0.02)


def log(place: World) -> str:
    """What the processes of a world have said."""
    file = place.folder / "log"
    return file.read_text() if file.exists() else ""


def command(
    database: Database, *arguments: str, pages: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command on a database that may not grow beyond so many pages, where given."""
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos.full", str(pages), *arguments],
        env={**os.environ, "WEIRBOX_DATABASE_URL": database.url, "COLUMNS": "200"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
