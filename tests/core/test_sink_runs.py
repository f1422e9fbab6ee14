"""Runs that send to platforms: every outcome has its row, and nothing else is kept."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests.core.sink_cases import CANARY, PLATFORMS, SECRETS, held, reading
from tests.factories import Fakes, driving, plan, suite, summary, timeline, trials
from tests.fakes import Harness
from weirbox.domain.words import ExportStatus, RunStatus
from weirbox.pipeline.reopening import export_retry
from weirbox.sinks import wire
from weirbox.store.base import EXPORT
from weirbox.store.engine import Database
from weirbox.store.tables import SQLModel
from weirbox.testing.platform import Reply, Request
from weirbox.testing.receivers import OtlpReceiver, Receiver

SUCCEEDED, PARTIAL, FAILED = ExportStatus


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
def receivers() -> Iterator[dict[str, Receiver]]:
    """A fake of each platform, up."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(platform.receiver()) for name, platform in PLATFORMS.items()
        }


def sinks_at(receivers: dict[str, Receiver]) -> list[dict[str, Any]]:
    return [
        PLATFORMS[name].at(receiver).model_dump(mode="json") for name, receiver in receivers.items()
    ]


def go(database: Database, run_id: str, secrets: dict[str, str] = SECRETS, **options: Any) -> None:
    """Drive a run to its end."""
    status = asyncio.run(driving(database, run_id, read_secret=reading(secrets), **options))
    assert status is RunStatus.COMPLETED


def exports(database: Database, run_id: str) -> list[Any]:
    with database.read() as connection:
        found = connection.execute(
            select(EXPORT).where(EXPORT.c.run_id == run_id).order_by(EXPORT.c.seq, EXPORT.c.sink)
        )
        return list(found)


def statuses(database: Database, run_id: str) -> Counter[tuple[str, str]]:
    return Counter((row.sink, row.status) for row in exports(database, run_id))


def test_every_trial_is_at_every_platform_with_a_link(
    database: Database, receivers: dict[str, Receiver]
) -> None:
    run_id = plan(database, suite(6, sinks=sinks_at(receivers)))
    go(database, run_id)
    rows = exports(database, run_id)
    assert statuses(database, run_id) == {(name, SUCCEEDED): 6 for name in PLATFORMS}
    assert all(row.url.startswith("http") for row in rows)
    assert len({row.url for row in rows}) == 30
    assert {name: held(receiver) for name, receiver in receivers.items()} == {
        "mlflow": (6, 0, 6),
        "phoenix": (6, 0, 6),
        "langfuse": (6, 0, 6),
        "langsmith": (0, 6, 6),
        "otel": (12, 0, 0),
    }


def test_secrets_are_in_no_row_log_line_or_file(
    sqlite: Database,
    receivers: dict[str, Receiver],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "out"
    lines = {"kind": "jsonl", "name": "lines", "path": str(folder)}
    receivers["phoenix"].troubles += [Reply(400, f"bad key {CANARY}")] * 50
    run_id = plan(sqlite, suite(3, sinks=[*sinks_at(receivers), lines]))
    go(sqlite, run_id)

    assert statuses(sqlite, run_id)["phoenix", FAILED] == 3
    assert any("[secret KEY]" in row.message for row in exports(sqlite, run_id))
    with sqlite.read() as connection:
        rows = [
            repr(tuple(row)) if not isinstance(row, bytes) else row.decode()
            for table in SQLModel.metadata.tables.values()
            for row in connection.execute(select(table))
        ]
    assert len(rows) > 20
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 2
    assert not any(CANARY in row for row in rows)
    assert not any(CANARY.encode() in content for content in files)
    assert CANARY not in caplog.text


def test_a_missing_secret_fails_softly_and_is_promoted_to_the_timeline(
    sqlite: Database, receivers: dict[str, Receiver]
) -> None:
    run_id = plan(sqlite, suite(3, sinks=sinks_at(receivers)))
    go(sqlite, run_id, secrets={"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"})
    assert statuses(sqlite, run_id) == {
        (name, SUCCEEDED if name == "langfuse" else FAILED): 3 for name in PLATFORMS
    }
    assert summary(sqlite, run_id).status is RunStatus.COMPLETED
    assert not any(receivers[name].requests for name in PLATFORMS if name != "langfuse")
    warnings = [message for kind, message in timeline(sqlite, run_id) if kind == "warning"]
    assert sorted(warnings) == [
        f"sink {name!r} took no trial; the first error: secret 'KEY' is missing"
        for name in sorted(PLATFORMS.keys() - {"langfuse"})
    ]


def test_a_sink_that_has_a_trial_is_not_sent_it_again_because_another_has_not(
    database: Database, receivers: dict[str, Receiver]
) -> None:
    run_id = plan(database, suite(4, sinks=sinks_at(receivers)))
    receivers["phoenix"].troubles += [Reply(400, "no")] * 50
    go(database, run_id)
    assert statuses(database, run_id)["phoenix", FAILED] == 4
    assert len(receivers["otel"].requests) == 4
    assert statuses(database, run_id)["otel", SUCCEEDED] == 4


class Flapping(OtlpReceiver):
    """Refuses some traces before it takes them, and some after, for as long as it flaps."""

    flaps = True
    chances = random.Random(1)

    def answer(self, request: Request) -> Reply:
        if not self.flaps:
            return super().answer(request)
        chance = self.chances.random()
        if chance < 0.3:
            return Reply(400, "before")
        reply = super().answer(request)
        return Reply(400, "after") if chance < 0.6 else reply


def test_export_retry_completes_exactly_the_missing(database: Database) -> None:
    with Flapping() as receiver:
        sinks = sinks_at({"otel": receiver})
        run_id = plan(database, suite(40, sinks=sinks))
        go(database, run_id)
        before = {row.seq: row.status for row in exports(database, run_id)}
        missing = [seq for seq, status in before.items() if status != SUCCEEDED]
        assert 3 <= len(missing) <= 37
        assert len(receiver.roots()) > 40 - len(missing)

        receiver.flaps = False
        sent = len(receiver.requests)
        export_retry(database, run_id)
        go(database, run_id)

        assert len(receiver.requests) - sent == len(missing)
        assert statuses(database, run_id) == {("otel", SUCCEEDED): 40}
        cases = Counter(root.attributes["weirbox.case_id"] for root in receiver.roots())
        assert set(cases.values()) == {1}
        assert len(cases) == 40


# --- the makespan ----------------------------------------------------------------------


class Unsteady(OtlpReceiver):
    """Away for two seconds in every five."""

    def answer(self, request: Request) -> Reply:
        if time.monotonic() % 5 < 2:
            self.requests.append(request)
            return Reply(503, "away")
        return super().answer(request)


def slow(receiver: Receiver) -> None:
    receiver.delay_s = 5.0


def hanging(receiver: Receiver) -> None:
    receiver.delay_s = 30.0


def steady(receiver: Receiver) -> None:
    """Leave it as it is."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "trouble", "url"),
    [
        (OtlpReceiver, slow, None),
        (OtlpReceiver, hanging, None),
        (Unsteady, steady, None),
        (OtlpReceiver, steady, "http://127.0.0.1:9"),
        (OtlpReceiver, steady, "http://192.0.2.1:4318"),
    ],
    ids=["slow", "hanging", "flapping", "dead", "unroutable"],
)
def test_a_sink_in_trouble_leaves_the_makespan_of_500_trials_as_it_is(
    sqlite: Database,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Receiver],
    trouble: Callable[[Receiver], None],
    url: str | None,
) -> None:
    """Trials take long enough for the run to outlast the first pauses of the circuit."""
    monkeypatch.setattr(wire, "FIRST_PAUSE_S", 0.2)
    harness = {"delay_of": lambda case: 1.5}

    def took(sinks: list[dict[str, Any]]) -> tuple[float, str]:
        planned = suite(500, sinks=sinks, concurrency={"execute": 16})
        run_id = plan(sqlite, planned)
        begun = time.monotonic()
        go(sqlite, run_id, fakes=Fakes(harness=Harness(**harness)))
        return time.monotonic() - begun, run_id

    with kind() as receiver:
        trouble(receiver)
        parts = sinks_at({"otel": receiver})
        if url is not None:
            parts[0]["url"] = url
        without, _ = took([])
        with_it, run_id = took(parts)
        found = statuses(sqlite, run_id)
        print(f"without {without:.1f} s, with {with_it:.1f} s, {dict(found)}")
        assert with_it <= 1.1 * without
        assert sum(found.values()) == 500
        assert all(row.exported_at is not None for row in trials(sqlite, run_id))

        receiver.delay_s = 0.0
        monkeypatch.setattr(Unsteady, "answer", OtlpReceiver.answer)
        if url is None:
            missing = 500 - found["otel", SUCCEEDED]
            sent = len(receiver.requests)
            export_retry(sqlite, run_id)
            go(sqlite, run_id)
            assert statuses(sqlite, run_id) == {("otel", SUCCEEDED): 500}
            assert len(receiver.requests) - sent == missing
            assert len(receiver.roots()) == 500
