"""Executions of earlier runs are reused when asked for, by content and trial number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.factories import Fakes, column, drive, scores, suite
from tests.fakes import Harness
from weirbox.domain.case import Case
from weirbox.domain.run import RunSummary
from weirbox.domain.spec import Suite
from weirbox.domain.trace import Observation
from weirbox.errors import HarnessError
from weirbox.store import queries
from weirbox.store.engine import Database
from weirbox.testing import MemoryCompute, ScriptedHarness


def reusing(**changes: Any) -> Suite:
    """A suite that reuses executions of earlier runs."""
    return suite(3, **({"reuse": True, "repeats": 2} | changes))


def outputs(database: Database, run_id: str) -> list[Any]:
    """What each trial's execution gave."""
    with database.read() as connection:
        return [
            queries.load_observation(connection, row.observation).output
            for row in queries.trial_page(connection, run_id)
        ]


@dataclass
class Counting(ScriptedHarness):
    """Gives another answer each time."""

    given: int = 0

    async def run(self, case: Case, **options: Any) -> Observation:
        self.given += 1
        return Observation(output=f"answer {self.given}")


def cached(run: RunSummary) -> int:
    """How many trials were not executed again."""
    return run.progress.cached


def test_an_execution_is_reused_by_case_and_trial_number(database: Database) -> None:
    harness = Counting()
    fakes = Fakes(harness=harness)

    first = drive(database, reusing(), fakes=fakes)
    second = drive(database, reusing(), fakes=fakes)

    assert (cached(first), cached(second), harness.given) == (0, 6, 6)
    answers = outputs(database, first.run_id)
    assert len(set(answers)) == 6
    assert outputs(database, second.run_id) == answers


OTHERS = {
    "not-asked-for": {"reuse": False},
    "another-harness": {"harness": {"kind": "recorded", "field": "target"}},
    "another-version": {"harness": {"kind": "recorded", "field": "input", "version": "2"}},
    "another-grader": {"graders": [{"kind": "answer-match", "name": "match", "mode": "contains"}]},
    "another-content": {
        "dataset": {
            "records": [{"id": f"case-{n}", "input": "new", "target": "new"} for n in range(3)]
        }
    },
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
def test_an_execution_is_not_reused_for_anything_else(
    changes: dict[str, Any], sqlite: Database
) -> None:
    harness = Counting()
    drive(sqlite, reusing(), fakes=Fakes(harness=harness))

    run = drive(sqlite, reusing(**changes), fakes=Fakes(harness=harness))

    assert (cached(run), harness.given) == (0, 12)


def test_more_repeats_reuse_the_trials_that_are_there(sqlite: Database) -> None:
    harness = Counting()
    drive(sqlite, reusing(), fakes=Fakes(harness=harness))

    run = drive(sqlite, reusing(repeats=3), fakes=Fakes(harness=harness))

    assert (cached(run), harness.given) == (6, 9)
    assert column(sqlite, run.run_id, "cached") == [True, True, False] * 3


def test_an_execution_that_failed_is_not_reused(sqlite: Database) -> None:
    def raising(case: Case) -> str:
        raise HarnessError("no luck")

    drive(sqlite, reusing(), fakes=Fakes(harness=Harness(answer=raising)))

    run = drive(sqlite, reusing(), fakes=Fakes(harness=Counting()))

    assert (cached(run), run.progress.scored) == (0, 6)


def test_scores_that_needed_compute_are_reused_with_their_execution(
    sqlite: Database,
) -> None:
    grader = {"kind": "command", "name": "tests.unit", "argv": ["true"]}
    chosen = reusing(graders=[grader])
    fakes = Fakes(harness=Counting(), compute=MemoryCompute())
    drive(sqlite, chosen, fakes=fakes)

    run = drive(sqlite, chosen, fakes=fakes)

    assert (cached(run), run.verdicts.passed) == (6, 6)
    assert scores(sqlite, run.run_id)["tests.unit"].passed is True
