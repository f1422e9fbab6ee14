"""Datasets in the store: versions that never change, whoever adds and plans at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import func, select

from tests.factories import column, counts, drive, go_on, plan, records, suite, summary, trials
from weirbox import cli
from weirbox.domain.base import storable
from weirbox.domain.case import Case
from weirbox.domain.spec import DatasetSpec, Suite
from weirbox.domain.words import RunKind, RunStatus
from weirbox.errors import DatasetError
from weirbox.pipeline import planning
from weirbox.pipeline.growing import Added, CaseSource, add_dataset
from weirbox.pipeline.planning import ANY_RUN, Selection
from weirbox.store import dataset_versions, plans, queries
from weirbox.store.base import DATASET_CASE, DATASET_VERSION
from weirbox.store.dataset_versions import Changes, StoredVersion
from weirbox.store.engine import Database
from weirbox.store.writes import change_status
from weirbox.suites import parse_suite

HOSTILE = [
    "../x",
    "x" * 10_000,
    "a\0b",
    "a\ud800b",
    "'; DROP TABLE dataset_case; --",
    " a ",
    "a\nb",
    "%s {0}",
    "😀",
]

_numbers = count()


@pytest.fixture
def name() -> str:
    """A dataset that no other test has."""
    return f"events-{next(_numbers)}"


def add(
    database: Database, name: str, given: list[Any], *, append: bool = False, **spec: Any
) -> Added:
    """Add records."""
    dataset = DatasetSpec.model_validate({"records": given} | spec)
    return add_dataset(database, dataset, folder="/", name=name, append=append)


def of(name: str, **changes: Any) -> Suite:
    """A suite over a dataset in the store."""
    dataset = {"name": name} | changes.pop("dataset", {})
    return suite(**({"suite": f"on-{name}", "dataset": dataset} | changes))


def case(database: Database, run_id: str, seq: int) -> Case:
    """The frozen case of a trial."""
    with database.read() as connection:
        return queries.load_case(connection, trials(database, run_id)[seq].case_digest)


def ids(database: Database, run_id: str) -> list[str]:
    """The cases of a plan, in its order."""
    return column(database, run_id, "case_id")


def versions(database: Database, name: str) -> list[StoredVersion]:
    """All versions, oldest first."""
    with database.read() as connection:
        return dataset_versions.versions(connection, name, limit=100)[::-1]


def kept(database: Database) -> list[int]:
    """How many versions, cases of versions, runs, trials and contents there are."""
    with database.read() as connection:
        tables = (DATASET_VERSION, DATASET_CASE)
        rows = [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables
        ]
    return rows + counts(database)


# --- versions ----------------------------------------------------------------------


def test_a_run_takes_the_cases_of_the_newest_version_as_they_were_added(
    shared_database: Database, name: str
) -> None:
    add(shared_database, name, records(3))
    given = [{"id": "b", "input": [1, None], "target": {"x": "é"}}, {"id": "a", "input": 2.0}]
    added = add(shared_database, name, given)

    run_id = plan(shared_database, of(name))

    assert ids(shared_database, run_id) == ["b", "a"]
    first = case(shared_database, run_id, 0)
    assert (first.input, first.target, first.record) == ([1, None], {"x": "é"}, given[0])
    run = summary(shared_database, run_id)
    assert (run.dataset, run.dataset_digest) == (f"{name}@2", added.version.digest)
    with shared_database.read() as connection:
        frozen = queries.load_plan(connection, run_id)
    assert (frozen.dataset.records, frozen.dataset.digest) == (2, added.version.digest)


def test_the_same_cases_again_make_no_version(shared_database: Database, name: str) -> None:
    first = add(shared_database, name, records(3))
    again = add(shared_database, name, records(3))

    assert (first.new, first.changes) == (True, Changes(added=3))
    assert (again.new, again.changes) == (False, Changes())
    assert again.version == first.version
    assert [one.version for one in versions(shared_database, name)] == [1]


def test_what_an_older_version_had_is_a_version_again(shared_database: Database, name: str) -> None:
    first, second, third = (add(shared_database, name, records(size)) for size in (3, 2, 3))

    assert [one.version.version for one in (first, second, third)] == [1, 2, 3]
    assert first.version.digest == third.version.digest != second.version.digest


def test_another_order_is_another_version_in_which_no_case_differs(
    shared_database: Database, name: str
) -> None:
    add(shared_database, name, records(3))
    added = add(shared_database, name, records(3)[::-1])

    assert (added.version.version, added.changes) == (2, Changes())


def test_appended_cases_come_behind_and_known_ids_keep_their_place(
    shared_database: Database, name: str
) -> None:
    add(shared_database, name, records(4))
    more = [
        {"id": "new-1", "input": "x"},
        {"id": "case-2", "input": "other"},
        records(1)[0],
        {"id": "new-2", "input": "y"},
    ]

    added = add(shared_database, name, more, append=True)

    assert (added.version.records, added.changes) == (6, Changes(added=2, changed=1))
    run_id = plan(shared_database, of(name))
    assert ids(shared_database, run_id) == [*(f"case-{n}" for n in range(4)), "new-1", "new-2"]
    assert case(shared_database, run_id, 2).input == "other"
    assert case(shared_database, run_id, 1).input == "in 1"


def test_appending_what_is_there_makes_no_version(shared_database: Database, name: str) -> None:
    add(shared_database, name, records(4))

    added = add(shared_database, name, records(4)[1:3], append=True)

    assert (added.new, added.version.version, added.version.records) == (False, 1, 4)


def test_appending_to_nothing_makes_the_first_version(shared_database: Database, name: str) -> None:
    added = add(shared_database, name, records(2), append=True)

    assert (added.version.version, added.changes) == (1, Changes(added=2))


def test_a_version_does_not_depend_on_the_way_it_came_about(
    shared_database: Database, name: str
) -> None:
    whole = add(shared_database, name, records(1203))
    add(shared_database, f"{name}-b", records(600))
    parts = add(shared_database, f"{name}-b", records(1203), append=True)

    assert parts.version.digest == whole.version.digest
    run_id = plan(shared_database, of(f"{name}-b"))
    assert ids(shared_database, run_id) == [f"case-{n}" for n in range(1203)]


def test_differences_are_told_by_id_and_in_order(shared_database: Database, name: str) -> None:
    old = add(shared_database, name, records(6)).version
    given = [record for record in records(9) if record["id"] not in ("case-0", "case-4")]
    given[0] = given[0] | {"target": "other"}
    new = add(shared_database, name, given).version

    with shared_database.read() as connection:
        there = dataset_versions.changed_ids(connection, old, new, limit=None)
        back = dataset_versions.changed_ids(connection, new, old, limit=2)
        changes = dataset_versions.changes(connection, old, new)

    assert there == {
        "added": ["case-6", "case-7", "case-8"],
        "removed": ["case-0", "case-4"],
        "changed": ["case-1"],
    }
    assert back == {
        "added": ["case-0", "case-4"],
        "removed": ["case-6", "case-7"],
        "changed": ["case-1"],
    }
    assert changes == Changes(added=3, removed=2, changed=1)


def test_no_id_breaks_a_version(shared_database: Database, name: str) -> None:
    given = [{"id": id_, "input": "x", "target": "x"} for id_ in HOSTILE]
    add(shared_database, name, given[:4])
    added = add(shared_database, name, [*given[2:], given[0] | {"input": "y"}], append=True)

    assert added.changes == Changes(added=5, changed=1)
    run = drive(shared_database, of(name))
    assert run.progress.scored == len(HOSTILE)
    shown = [storable(id_) for id_ in HOSTILE]
    assert ids(shared_database, run.run_id) == shown
    first, second = versions(shared_database, name)
    with shared_database.read() as connection:
        found = dataset_versions.changed_ids(connection, first, second, limit=None)
    assert found == {"added": shown[4:], "removed": [], "changed": [shown[0]]}


def test_a_quarantined_record_is_a_case_of_the_version(
    database: Database, name: str, tmp_path: Path
) -> None:
    (tmp_path / "cases.jsonl").write_text('{"id": "a", "input": 1}\n{"id": \n')
    spec = DatasetSpec(path="cases.jsonl", on_error="quarantine")

    added = add_dataset(database, spec, folder=str(tmp_path), name=name)

    assert "quarantined: 1" in added.warnings[-1]
    run = drive(database, of(name))
    assert (run.progress.planned, run.dispositions.quarantined) == (2, 1)


REFUSED: dict[str, tuple[str, str]] = {
    "twice": ('{"id": "a", "input": 1}\n' * 2, "used twice"),
    "malformed": ('{"id": "a", "input": 1}\n{', "line 2"),
    "empty": ("", "there are no records"),
    "far-down": ("".join(f"{json.dumps(one)}\n" for one in records(1500)) + "{", "line 1501"),
}


@pytest.mark.parametrize("append", [False, True], ids=["replace", "append"])
@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_cannot_be_added_leaves_nothing(
    text: str, said: str, append: bool, shared_database: Database, name: str, tmp_path: Path
) -> None:
    add(shared_database, name, records(2))
    (tmp_path / "cases.jsonl").write_text(text)
    before = kept(shared_database)

    with pytest.raises(DatasetError, match=said):
        add_dataset(
            shared_database,
            DatasetSpec(path="cases.jsonl"),
            folder=str(tmp_path),
            name=name,
            append=append,
        )

    assert kept(shared_database) == before


def test_what_fails_at_the_last_step_leaves_contents_only(database: Database, name: str) -> None:
    with (
        patch.object(dataset_versions, "asdict", side_effect=OSError("disk")),
        pytest.raises(OSError, match="disk"),
    ):
        add(database, name, records(700))
    assert kept(database) == [0, 0, 0, 0, 700]

    add(database, name, records(700))
    assert kept(database) == [1, 700, 0, 0, 700]


# --- at once -----------------------------------------------------------------------


def test_two_that_replace_at_once_make_two_whole_versions(database: Database, name: str) -> None:
    def of_number(number: int) -> list[dict[str, Any]]:
        return [{"id": f"{n}", "input": number} for n in range(700)]

    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda n: add(database, name, of_number(n)), range(4)))

    assert sorted(one.version.version for one in added) == [1, 2, 3, 4]
    for number, one in enumerate(added):
        run_id = plan(database, of(name, dataset={"version": one.version.version}))
        with database.read() as connection:
            found = {
                queries.load_case(connection, digest).input
                for digest in column(database, run_id, "case_digest")
            }
        assert (found, one.version.records) == ({number}, 700)


def test_all_that_append_at_once_are_in_the_newest_version(database: Database, name: str) -> None:
    def part(number: int) -> list[dict[str, Any]]:
        return [{"id": f"{number}-{n}", "input": n} for n in range(150)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: add(database, name, part(n), append=True), range(4)))

    assert [one.records for one in versions(database, name)] == [150, 300, 450, 600]
    run_id = plan(database, of(name))
    expected = {record["id"] for number in range(4) for record in part(number)}
    assert set(ids(database, run_id)) == expected


def test_the_same_content_added_at_once_is_one_version(database: Database, name: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda _: add(database, name, records(600)), range(4)))

    assert sorted(one.new for one in added) == [False, False, False, True]
    assert kept(database)[:2] == [1, 600]


def test_a_version_that_comes_later_changes_no_run(database: Database, name: str) -> None:
    add(database, name, records(3))
    run_id = plan(database, of(name))

    add(database, name, [{"id": "case-0", "input": "x", "target": "y"}])

    run = go_on(database, run_id)
    assert (run.verdicts.passed, run.dataset) == (3, f"{name}@1")


def test_others_write_while_the_cases_of_a_plan_are_read(database: Database, name: str) -> None:
    add(database, name, records(1200))
    written: list[bool] = []

    @contextmanager
    def meanwhile(*arguments: Any, **options: Any) -> Iterator[CaseSource]:
        with opened(*arguments, **options) as source:
            cases = iter(source)

            def reading() -> Iterator[Case]:
                for number, one in enumerate(cases):
                    if number % 400 == 399:
                        written.append(add(database, name, [{"input": number}]).new)
                    yield one

            class Reading:
                version = property(lambda self: source.version)

                def __iter__(self) -> Iterator[Case]:
                    return reading()

            yield Reading()

    opened = planning.opened
    with patch.object(planning, "opened", meanwhile):
        run_id = plan(database, of(name))

    assert written == [True, True, True]
    assert ids(database, run_id) == [f"case-{n}" for n in range(1200)]
    assert summary(database, run_id).dataset == f"{name}@1"


def test_a_plan_that_fails_at_its_last_step_leaves_no_run(database: Database) -> None:
    with (
        patch.object(plans, "insert_staged_trials", side_effect=OSError("disk")),
        pytest.raises(OSError, match="disk"),
    ):
        plan(database, suite(700))

    assert counts(database)[:2] == [0, 0]
    assert len(ids(database, plan(database, suite(700)))) == 700


# --- which cases -------------------------------------------------------------------


def test_a_named_version_is_taken_though_there_are_newer_ones(
    shared_database: Database, name: str
) -> None:
    for size in (2, 3, 4):
        add(shared_database, name, records(size))

    run_id = plan(shared_database, of(name, dataset={"version": 2}))

    assert len(ids(shared_database, run_id)) == 3
    assert summary(shared_database, run_id).dataset == f"{name}@2"


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ({"name": "nobody"}, "there is no dataset 'nobody' in the store"),
        ({"version": 3}, "has no version 3: its versions are 1 to 2"),
        ({"limit": 0}, "nothing to run: 'limit' is 0"),
    ],
    ids=["no-dataset", "no-version", "no-records"],
)
def test_what_is_not_there_is_named_and_nothing_planned(
    dataset: dict[str, Any], said: str, shared_database: Database, name: str
) -> None:
    add(shared_database, name, records(1))
    add(shared_database, name, records(2))
    before = kept(shared_database)

    with pytest.raises(DatasetError, match=said):
        plan(shared_database, of(name, dataset=dataset))

    assert kept(shared_database) == before


def test_a_preview_takes_the_same_cases_as_of_a_file(shared_database: Database, name: str) -> None:
    add(shared_database, name, records(40))
    preview = Selection(kind=RunKind.PREVIEW, size=7)

    stored = plan(shared_database, of(name), preview)
    inline = plan(shared_database, suite(40), preview)

    assert ids(shared_database, stored) == ids(shared_database, inline)
    digests = [column(shared_database, run_id, "entry_digest") for run_id in (stored, inline)]
    assert digests[0] == digests[1]


def test_a_limit_takes_the_first_cases(shared_database: Database, name: str) -> None:
    added = add(shared_database, name, records(1100))

    whole, part = (
        plan(shared_database, of(name, dataset={"limit": limit})) for limit in (5000, 700)
    )

    assert ids(shared_database, part) == [f"case-{n}" for n in range(700)]
    runs = [summary(shared_database, run_id) for run_id in (whole, part)]
    assert runs[0].dataset_digest == added.version.digest != runs[1].dataset_digest


def test_a_delta_of_a_list_and_since_a_run_work_as_on_a_file(
    shared_database: Database, name: str
) -> None:
    add(shared_database, name, records(4))
    base = plan(shared_database, of(name))
    add(shared_database, name, [*records(6)[3:], {"id": "case-0", "input": "x"}])

    listed = Selection(kind=RunKind.DELTA, cases=("case-0", "case-4"))
    since = Selection(kind=RunKind.DELTA, since=base)

    found = [ids(shared_database, plan(shared_database, of(name), one)) for one in (listed, since)]
    assert found == [["case-4", "case-0"], ["case-4", "case-5", "case-0"]]


UNSEEN = Selection(kind=RunKind.DELTA, since=ANY_RUN)


def test_what_no_run_has_taken_is_taken_once(shared_database: Database, name: str) -> None:
    add(shared_database, name, records(3))
    first = drive(shared_database, of(name), selection=UNSEEN)
    assert (first.kind, first.progress.planned) == (RunKind.FULL, 3)

    add(shared_database, name, records(5))
    second = plan(shared_database, of(name), UNSEEN)
    assert ids(shared_database, second) == ["case-3", "case-4"]

    add(shared_database, name, records(6))
    third = drive(shared_database, of(name), selection=UNSEEN)
    assert (third.kind, ids(shared_database, third.run_id)) == (RunKind.DELTA, ["case-5"])

    with shared_database.write() as connection:
        change_status(connection, second, to=RunStatus.CANCELLED)
    fourth = plan(shared_database, of(name), UNSEEN)
    assert ids(shared_database, fourth) == ["case-3", "case-4"]

    fifth = summary(shared_database, plan(shared_database, of(name), UNSEEN))
    assert (fifth.status, fifth.progress.planned) == (RunStatus.COMPLETED, 0)


def test_a_case_that_says_again_what_it_said_before_is_taken_again(
    shared_database: Database, name: str
) -> None:
    def of_input(text: str) -> list[dict[str, Any]]:
        return [{"id": "one", "input": text}, {"id": "two", "input": ""}]

    taken = []
    for text in ("a", "b", "a"):
        add(shared_database, name, of_input(text))
        taken.append(drive(shared_database, of(name), selection=UNSEEN).progress.planned)

    assert taken == [2, 1, 1]


def test_runs_of_other_suites_are_no_runs_of_this_one(shared_database: Database, name: str) -> None:
    add(shared_database, name, records(3))
    plan(shared_database, of(name, suite=f"other-{name}"))

    assert len(ids(shared_database, plan(shared_database, of(name), UNSEEN))) == 3


# --- what a suite may say ----------------------------------------------------------

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no-source": ({"dataset": {}}, "exactly one of 'path', 'records' and 'name'"),
    "two-sources": ({"dataset": {"name": "a", "path": "b"}}, "exactly one of"),
    "no-name": ({"dataset": {"path": "a", "version": 1}}, "'version' goes with 'name' only"),
    "version-0": ({"dataset": {"name": "a", "version": 0}}, "greater than or equal to 1"),
    "bad-name": ({"dataset": {"name": "../a"}}, "letters, digits"),
    "reading": (
        {"dataset": {"name": "a", "preset": "inspect", "fields": {"id": "key"}}},
        "leave out preset, fields",
    ),
    "grown-file": ({"auto_run": "delta"}, "'auto_run' needs a dataset in the store"),
    "grown-version": (
        {"dataset": {"name": "a", "version": 1}, "auto_run": "delta"},
        "without 'version'",
    ),
    "full": ({"dataset": {"name": "a"}, "auto_run": "full"}, "'delta'"),
    "no-rhythm": ({"schedule": {}}, "exactly one of 'cron' and 'every_s'"),
    "two-rhythms": ({"schedule": {"cron": "0 2 * * *", "every_s": 60}}, "exactly one of"),
    "zone-of-seconds": ({"schedule": {"every_s": 60, "timezone": "UTC"}}, "goes with 'cron' only"),
    "no-zone": ({"schedule": {"cron": "0 2 * * *", "timezone": "Mars/Base"}}, "no time zone"),
    "zone-folder": ({"schedule": {"cron": "0 2 * * *", "timezone": "Europe"}}, "no time zone"),
    "zone-path": ({"schedule": {"cron": "0 2 * * *", "timezone": "../x"}}, "no time zone"),
    "at-once": ({"schedule": {"every_s": 0}}, "greater than or equal to 1"),
    "cron-word": ({"schedule": {"cron": "daily"}}, "is no cron line"),
    "cron-hour": ({"schedule": {"cron": "0 24 * * *"}}, "Bad hour"),
    "cron-never": ({"schedule": {"cron": "0 0 31 2 *"}}, "is no cron line"),
    "cron-seconds": ({"schedule": {"cron": "0 0 2 * * *"}}, "5 fields"),
    "cron-last": ({"schedule": {"cron": "0 0 LW * *"}}, "every engine knows"),
    "cron-empty": ({"schedule": {"cron": ""}}, "is no cron line"),
}


@pytest.mark.parametrize(("changes", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_dataset_or_schedule_is_named(changes: dict[str, Any], said: str) -> None:
    data = suite(1).model_dump(mode="json", exclude_unset=True) | changes

    with pytest.raises(Exception, match=said):
        parse_suite(data, place="here")


def test_what_starts_a_suite_is_no_part_of_its_plans(shared_database: Database, name: str) -> None:
    add(shared_database, name, records(1))
    schedule = {"cron": "0 2 * * 1-5", "timezone": "Europe/Berlin", "kind": "delta"}

    bare, started = (
        plan(shared_database, one)
        for one in (of(name), of(name, schedule=schedule, auto_run="delta"))
    )

    with shared_database.read() as connection:
        assert queries.load_plan(connection, bare) == queries.load_plan(connection, started)


# --- on the command line -----------------------------------------------------------

Weirbox = Callable[..., tuple[int, str, str]]


@pytest.fixture
def weirbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Weirbox:
    """The command line, at home in a fresh folder: status, standard output and error."""
    monkeypatch.delenv("WEIRBOX_DATABASE_URL", raising=False)
    monkeypatch.setenv("WEIRBOX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["weirbox", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return run


@pytest.mark.parametrize("version", [0, 2, 10**20])
def test_a_version_that_is_not_there_is_named_with_those_that_are(
    version: int, weirbox: Weirbox, tmp_path: Path
) -> None:
    (tmp_path / "one.jsonl").write_text('{"id": "a", "input": "b"}\n')
    weirbox("dataset", "add", "one.jsonl", "--name", "qa")

    status, _, err = weirbox("dataset", "diff", "qa", "1", str(version))

    assert (status, err) == (
        2,
        f"error: dataset 'qa' has no version {version}: its versions are 1 to 1\n",
    )


def test_a_dataset_is_added_listed_and_compared(weirbox: Weirbox, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("key;question\n1;a\n2;b\n", encoding="utf-16")
    (tmp_path / "two.jsonl").write_text('{"id": 2, "input": "b"}\n{"id": 3, "input": "c"}\n')
    reading = ("--id", "key", "--input", "question", "--encoding", "utf-16", "--delimiter", ";")

    first = weirbox("dataset", "add", "one.csv", "--name", "qa", *reading)
    again = weirbox("dataset", "add", "one.csv", "--name", "qa", *reading)
    status, out, _ = weirbox("dataset", "add", "two.jsonl", "--name", "qa", "--append", "--json")

    assert first == (0, "", "qa@1: 2 records, 2 added, 0 removed, 0 changed\n")
    assert again == (0, "", "nothing new: qa@1 has the same cases\n")
    added = json.loads(out)
    assert (status, added["version"], added["records"], added["new"]) == (0, 2, 3, True)
    assert (added["added"], added["changed"]) == (1, 1)
    listed = json.loads(weirbox("dataset", "versions", "qa", "--json")[1])
    assert [(one["version"], one["added"], one["source"]) for one in listed] == [
        (2, 1, "two.jsonl"),
        (1, 2, "one.csv"),
    ]
    status, out, err = weirbox("dataset", "versions", "qa", "--limit", "1")
    assert ("qa@2" in out, "qa@1" in out, "newest 1 of 2" in err) == (True, False, True)
    whole = json.loads(weirbox("dataset", "versions", "--json")[1])
    assert [(one["name"], one["version"]) for one in whole] == [("qa", 2)]
    compared = json.loads(weirbox("dataset", "diff", "qa", "1", "2", "--json")[1])
    assert compared["counts"] == {"added": 1, "removed": 0, "changed": 1}
    assert (compared["added"], compared["changed"]) == (["3"], ["2"])


def test_a_person_is_shown_a_few_differences_and_a_program_all(
    weirbox: Weirbox, tmp_path: Path
) -> None:
    for file, size in (("a.json", 1), ("b.json", 31)):
        (tmp_path / file).write_text(json.dumps(records(size)))
        weirbox("dataset", "add", file, "--name", "many")

    _, out, err = weirbox("dataset", "diff", "many", "1", "2")
    found = json.loads(weirbox("dataset", "diff", "many", "1", "2", "--json")[1])

    assert ("case-20\n" in out.replace(" ", ""), "case-21" in out) == (True, False)
    assert "and 10 added more" in err
    assert found["added"] == [f"case-{n}" for n in range(1, 31)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "none.jsonl", "--name", "a"), "does not exist"),
        (("add", "x.jsonl", "--name", "../a"), "--name '../a': a name is 1 to 100 letters"),
        (("add", "x.jsonl", "--name", "a", "--format", "xml"), "--format 'xml': Input should be"),
        (("add", "x.jsonl", "--name", "a", "--on-error", "go"), "--on-error 'go'"),
        (("versions", "nobody"), "there is no dataset 'nobody' in the store (it has none yet)"),
        (("diff", "nobody", "1", "2"), "there is no dataset 'nobody'"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_message(
    arguments: tuple[str, ...], said: str, weirbox: Weirbox
) -> None:
    status, out, err = weirbox("dataset", *arguments)

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert said in err
