"""A judge's provider or a sink breaks while a run goes on: it ends as designed, and says why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import select

import weirbox
from tests import factories
from tests.chaos.outages import command
from tests.chaos.provider import HANG_S, Provider, Trouble, provider
from tests.chaos.suite import suite
from tests.chaos.world import (
    exported,
)
from tests.factories import Fakes, drive, go_on, judged, timeline, trials
from weirbox.domain.seams import ExportOutcome, RunHeader, TrialExport
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunStatus, TrialStage
from weirbox.judges import asking
from weirbox.limiter import AdaptiveLimiter
from weirbox.pipeline import exporting, finalizing, kit, reopening, running
from weirbox.pipeline.kit import account_limiters
from weirbox.settings import Settings
from weirbox.store import base, queries
from weirbox.store.engine import Database
from weirbox.testing import MemorySink

# --- a judge's provider -----------------------------------------------------------------


TROUBLES = {
    "429": ("anthropic", Trouble(429)),
    "429-retry-after": ("openai", Trouble(429, retry_after="1")),
    "529": ("anthropic", Trouble(529)),
    "500": ("openai", Trouble(500)),
    "hangs": ("anthropic", Trouble(None)),
}

JUDGED = 80

LIMIT = 8


def judged_by(server: Provider) -> Suite:
    """A suite that asks the server one question for each case."""
    return judged(
        JUDGED,
        providers={
            "account": {
                "kind": server.kind,
                "base_url": server.url,
                "secret": None,
                "concurrency": LIMIT,
                "timeout_s": 1.0,
                "prices": {"small": {"input": 1.0, "output": 5.0}},
            }
        },
        concurrency={"judge": LIMIT},
        budget={"usd": 10},
    )


def unmeasured(database: Database, run_id: str) -> list[dict[str, Any]]:
    """What the scorecard says about scores without a value."""
    card = database.fetch(partial(queries.scorecard, run_id=run_id))
    assert card is not None
    found: list[dict[str, Any]] = card["unmeasured"]
    return found


@contextmanager
def watched_limits(server: Provider) -> Iterator[list[int]]:
    """What the account's limit is at each request."""
    made: list[AdaptiveLimiter] = []
    limits: list[int] = []
    count = server.on_request

    def limiters(specs: Any) -> dict[str, AdaptiveLimiter]:
        given = account_limiters(specs)
        made.extend(given.values())
        return given

    def see() -> None:
        limits.extend(limiter.state.current for limiter in made)
        count()

    server.on_request = see
    with patch.object(kit, "account_limiters", limiters):
        yield limits


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "trouble"), TROUBLES.values(), ids=TROUBLES)
def test_a_provider_that_is_out_of_order_for_a_while_costs_no_score(
    sqlite: Database, kind: Any, trouble: Trouble
) -> None:
    with provider(kind) as server:
        server.trouble = trouble
        server.heal_after(6.0)
        with watched_limits(server) as limits:
            run = drive(sqlite, judged_by(server))

    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, JUDGED)
    assert run.verdicts.passed == JUDGED
    assert server.answered == JUDGED
    assert unmeasured(sqlite, run.run_id) == []
    if trouble.status in (429, 529):
        assert min(limits) == 1
        assert limits[-1] > LIMIT // 2


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "trouble"), TROUBLES.values(), ids=TROUBLES)
def test_a_provider_that_stays_out_of_order_leaves_every_trial_to_a_person(
    sqlite: Database, kind: Any, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "OUTAGE_S", 3.0)
    begun = time.monotonic()
    with provider(kind) as server:
        server.trouble = trouble
        run = drive(sqlite, judged_by(server))
        assert time.monotonic() - begun < 60
        assert (run.status, run.dispositions.review) == (RunStatus.COMPLETED, JUDGED)
        assert run.progress.judged == run.progress.exported == JUDGED
        assert run.finalized_at is not None
        (told, *_) = unmeasured(sqlite, run.run_id)
        reason = "timeout" if trouble.status is None else "provider_error"
        assert (told["name"], told["state"], told["reason"]) == ("quality", "errored", reason)
        assert "no answer within 1 s" in told["message"] or "come later" in told["message"]
        shown = command(sqlite, "show", run.run_id).stdout
        assert "provider 'account' (small)" in shown

        server.trouble = None
        reopening.retry(sqlite, run.run_id, reopening.Wanted())
        again = go_on(sqlite, run.run_id)
    assert (again.status, again.verdicts.passed) == (RunStatus.COMPLETED, JUDGED)
    assert unmeasured(sqlite, run.run_id) == []
    assert {row.attempt for row in trials(sqlite, run.run_id)} == {1}


# --- a sink -------------------------------------------------------------------------------


def messages(database: Database, run_id: str) -> list[str]:
    """What the rows say about exports."""
    with database.read() as connection:
        rows = select(base.EXPORT.c.message).where(base.EXPORT.c.run_id == run_id)
        return list(connection.execute(rows).scalars())


class Down(MemorySink):
    """A sink that raises, or hangs, until it is mended."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__(name="jsonl")
        self.hangs, self.mended = hangs, False

    async def _fail(self) -> None:
        if not self.mended:
            await asyncio.sleep(HANG_S if self.hangs else 0)
            raise ConnectionError("nobody is there")

    async def set_up(self, run: RunHeader) -> None:
        await self._fail()

    async def send(self, trial: TrialExport) -> ExportOutcome:
        await self._fail()
        return await super().send(trial)

    async def complete(self) -> None:
        await self._fail()
        await super().complete()

    async def aclose(self) -> None:
        await self._fail()


@pytest.mark.parametrize("hangs", [False, True], ids=["raises", "hangs"])
def test_a_sink_that_is_down_for_the_whole_run_is_sent_all_once_it_is_back(
    database: Database, tmp_path: Path, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (exporting, "SEND_S"),
        (running, "SET_UP_S"),
        (kit, "CLOSE_S"),
        (finalizing, "COMPLETE_S"),
    ):
        monkeypatch.setattr(module, name, 1.0)
    monkeypatch.setattr(exporting, "HUNG_S", 0.05)
    sink = Down(hangs=hangs)
    planned = factories.suite(20, sinks=[{"kind": "jsonl", "path": str(tmp_path / "out")}])

    run = drive(database, planned, fakes=Fakes(sink=sink))

    assert (run.status, run.verdicts.passed) == (RunStatus.COMPLETED, 20)
    assert run.finalized_at is not None
    assert run.exports == {"jsonl": {"failed": 20}}
    said = "has not answered within" if hangs else "ConnectionError: nobody is there"
    assert {said in message for message in messages(database, run.run_id)} == {True}
    warned = [text for kind, text in timeline(database, run.run_id) if kind == "warning"]
    assert {"sink 'jsonl' cannot be set up", "sink 'jsonl' is not complete"} <= {
        text.partition(":")[0] for text in warned
    }

    sink.mended = True
    opened = reopening.export_retry(database, run.run_id)
    assert opened.opened == {TrialStage.EXPORT: 20}
    again = go_on(database, run.run_id, fakes=Fakes(sink=sink))
    assert (again.status, again.exports) == (RunStatus.COMPLETED, {"jsonl": {"succeeded": 20}})
    assert again.finalized_at is not None
    assert len(sink.sent) == 20
    assert sink.completed >= 1


def test_a_folder_that_cannot_be_written_is_filled_once_it_can(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    out.write_text("a file where the folder should be")
    settings = Settings(home=home, database_url=None)
    planned = suite(tmp_path, cases=20, drivers=1, usd=10)

    run = weirbox.run(planned, engine="direct", settings=settings)

    assert run.summary().status is RunStatus.COMPLETED
    assert run.summary().exports == {"jsonl": {"failed": 20}}
    out.unlink()
    weirbox.export_retry(run.id, engine="direct", settings=settings)
    assert run.summary().exports == {"jsonl": {"succeeded": 20}}
    assert set(exported(tmp_path, run.id).values()) == {1}
    assert len(exported(tmp_path, run.id)) == 20
    assert (out / run.id / "complete.json").exists()
