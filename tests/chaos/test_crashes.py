"""Every point between two writes is died at once, and the life that follows loses nothing."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from tests.chaos.crashes import CASES, CRASHED, DONE
from tests.chaos.world import exported, money, outcome, unfinished
from tests.processes import ROOT
from weirbox.store import queries
from weirbox.store.engine import Database
from weirbox.store.tables import SQLModel

STEP = 8
"""Each of how many commits is died at, from a random one on; with ``WEIRBOX_CHAOS_FULL=1`` each."""

MOST = 200
"""More commits than a life has: a life that never ends is a finding."""


class Lives:
    """A process that forks one life after the other over one database."""

    def __init__(self, process: subprocess.Popen[str], database: Database, folder: Path) -> None:
        self._process, self._database, self._folder = process, database, folder

    def live(self, when: str, number: int) -> int:
        """Live to a commit, or to the end; gives the exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{when} {number}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def forget(self) -> None:
        """An empty store, as before the first life."""
        with self._database.write() as connection:
            if self._database.sqlite:
                connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
            for table in reversed(SQLModel.metadata.sorted_tables):
                connection.execute(delete(table))
        shutil.rmtree(self._folder / "out", ignore_errors=True)


@contextmanager
def lives(database: Database, folder: Path) -> Iterator[Lives]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.crashes", str(folder), database.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
        )
        try:
            yield Lives(process, database, folder)
        finally:
            process.kill()
            process.communicate()


def came_to(database: Database, folder: Path) -> dict[str, Any]:
    """What the one run in the store came to, with all that must hold of it."""
    with database.read() as connection:
        (run,) = queries.summaries(connection)
    assert unfinished(database, run.run_id) == 0
    assert set(exported(folder, run.run_id).values()) == {1}
    spent = money(database, run.run_id)
    assert spent["spent"] == spent["of_calls"] <= spent["budget"]
    assert (spent["calls"], spent["reserved"]) == (spent["call_rows"], 0)
    found = outcome(database, run.run_id)
    assert len(found["trials"]) == CASES
    return found | {"exported": exported(folder, run.run_id)}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_commit_loses_nothing(database: Database, tmp_path: Path, when: str) -> None:
    step = 1 if os.environ.get("WEIRBOX_CHAOS_FULL") else STEP
    first = random.randrange(step) + 1
    print(f"died {when} every commit" if step == 1 else f"died {when} commit {first} + n * {step}")
    with lives(database, tmp_path) as living:
        assert living.live(when, 0) == DONE, (tmp_path / "log").read_text()
        expected = came_to(database, tmp_path)
        for number in range(first, MOST, step):
            living.forget()
            ended = living.live(when, number)
            assert ended in (CRASHED, DONE), (tmp_path / "log").read_text()
            if ended == DONE:
                break
            assert living.live(when, 0) == DONE, (tmp_path / "log").read_text()
            assert came_to(database, tmp_path) == expected, f"crashed {when} commit {number}"

    print(f"{when}: a life has {number - 1} commits")
    assert 20 < number < MOST - step
