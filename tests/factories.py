"""Suites, runs and what is read of them: the one way in which tests make these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from sqlalchemy import func, select

from weirbox import compute, graders, harnesses, judges, rules, sinks
from weirbox.domain.run import RunSummary
from weirbox.domain.score import Score
from weirbox.domain.seams import Compute, Grader, Harness, Provider, ReadSecret, Rule, Sink
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunStatus
from weirbox.errors import WeirboxError
from weirbox.pipeline import finalizing
from weirbox.pipeline.driver import Driver
from weirbox.pipeline.live import DirectRunner
from weirbox.pipeline.packets import StageRunner
from weirbox.pipeline.planning import FULL, Selection, plan_run
from weirbox.pipeline.running import drive_run
from weirbox.settings import Settings
from weirbox.store import queries
from weirbox.store.base import EVENT, PAYLOAD, RUN, TRIAL
from weirbox.store.engine import Database

PASSES = '{"verdict": "pass", "confidence": 0.9, "reason": "right"}'
FAILS = '{"verdict": "fail", "confidence": 0.9, "reason": "wrong"}'


def records(count: int) -> list[dict[str, Any]]:
    """Records whose answer, as `suite` runs them, is right."""
    return [{"id": f"case-{n}", "input": f"in {n}", "target": f"in {n}"} for n in range(count)]


def suite(cases: int = 3, **changes: Any) -> Suite:
    """A suite of `cases` inline records whose input is the answer, matched with the target."""
    parts: dict[str, Any] = {
        "suite": "tested",
        "dataset": {"records": records(cases)},
        "harness": {"kind": "recorded", "field": "input"},
        "graders": [{"kind": "answer-match", "name": "match"}],
    }
    return Suite.model_validate(parts | changes)


def of_records(given: list[dict[str, Any]], **changes: Any) -> Suite:
    """A suite of these records."""
    return suite(**({"dataset": {"records": given}} | changes))


def judged(cases: int = 3, *names: str, **changes: Any) -> Suite:
    """A suite with judges at one provider, which a fake stands for."""
    prompt = {"id": "any", "version": 1, "user": "Is this right? {{ output }}"}
    primary = {"provider": "account", "model": "small"}
    parts: dict[str, Any] = {
        "providers": {"account": {"kind": "python", "function": "builtins:repr"}},
        "judges": [
            {"name": name, "prompt": prompt, "primary": primary} for name in names or ("quality",)
        ],
    }
    return suite(cases, **(parts | changes))


@dataclass(frozen=True, kw_only=True)
class Fakes:
    """What stands for the families that a suite names; None leaves the real ones."""

    harness: Harness | None = None
    compute: Compute | None = None
    provider: Provider | None = None
    grader: Grader | None = None
    rule: Rule | None = None
    sink: Sink | None = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Have the families' factories give the fakes."""
        places = {
            harnesses: self.harness,
            compute: self.compute,
            judges: self.provider,
            graders: self.grader,
            rules: self.rule,
            sinks: self.sink,
        }
        with ExitStack() as stack:
            for family, fake in places.items():
                if fake is not None:
                    stack.enter_context(_giving(family, fake))
            yield


def _giving(family: Any, fake: Any) -> Any:
    return patch.object(family, "build", lambda *arguments, **options: fake)


def no_secret(name: str) -> str:
    """Tests have none."""
    raise WeirboxError(f"there is no secret {name!r}")


def settings(*, lease_s: float = 30.0, grace_s: float = 5.0) -> Settings:
    """Settings that do not depend on who runs the tests."""
    return Settings(lease_s=lease_s, grace_s=grace_s, dashboard_url="http://127.0.0.1:8501")


def plan(database: Database, planned: Suite, selection: Selection = FULL, **options: Any) -> str:
    """Plan a run; gives its id."""
    return plan_run(database, planned, selection=selection, **({"folder": "/"} | options)).run_id


async def driving(
    database: Database,
    run_id: str,
    *,
    runner: StageRunner | None = None,
    on_driver: Callable[[Driver], None] = lambda driver: None,
    lease_s: float = 30.0,
    grace_s: float = 5.0,
    fakes: Fakes | None = None,
    read_secret: ReadSecret = no_secret,
) -> RunStatus:
    """Drive a run in this event loop, and finalize it where it completes."""
    with (fakes or Fakes()).in_place():
        status = await drive_run(
            database,
            run_id,
            settings=settings(lease_s=lease_s, grace_s=grace_s),
            read_secret=read_secret,
            make_runner=lambda kit: runner or DirectRunner(),
            on_driver=on_driver,
        )
        if status is RunStatus.COMPLETED:
            await finalizing.complete_sinks(database, run_id)
            await asyncio.to_thread(finalizing.finalize, database, run_id)
    return status


def go_on(database: Database, run_id: str, **options: Any) -> RunSummary:
    """Drive a planned run to its end and finalize it."""
    asyncio.run(driving(database, run_id, **options))
    return summary(database, run_id)


def drive(
    database: Database, planned: Suite, *, selection: Selection = FULL, **options: Any
) -> RunSummary:
    """Plan, drive and finalize."""
    return go_on(database, plan(database, planned, selection), **options)


# --- what is read back ------------------------------------------------------------


def summary(database: Database, run_id: str) -> RunSummary:
    """A run at a glance."""
    with database.read() as connection:
        return queries.summary(connection, run_id)


def trials(database: Database, run_id: str) -> list[Any]:
    """A run's trial rows, in the order of the plan."""
    with database.read() as connection:
        return queries.trial_page(connection, run_id, limit=100_000)


def scores(database: Database, run_id: str, seq: int = 0) -> dict[str, Score]:
    """A trial's scores by name."""
    with database.read() as connection:
        return {score.name: score for score in queries.load_scores(connection, run_id, seq)}


def timeline(database: Database, run_id: str) -> list[tuple[str, str]]:
    """The kinds and messages of a run's events, oldest first."""
    with database.read() as connection:
        events = connection.execute(
            select(EVENT).where(EVENT.c.run_id == run_id).order_by(EVENT.c.id)
        )
        return [(event.kind, event.message) for event in events]


def counts(database: Database) -> list[int]:
    """How many runs, trials and contents there are."""
    with database.read() as connection:
        return [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (RUN, TRIAL, PAYLOAD)
        ]


def column(database: Database, run_id: str, name: str) -> list[Any]:
    """One column of a run's trials, in the order of the plan."""
    with database.read() as connection:
        statement = select(TRIAL.c[name]).where(TRIAL.c.run_id == run_id).order_by(TRIAL.c.seq)
        return list(connection.execute(statement).scalars())
