"""Planning: which cases a run takes, and what identifies them and the whole."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select

from tests.factories import column, counts, go_on, of_records, plan, records, suite, summary, trials
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunKind, RunStatus
from weirbox.errors import DatasetError, NotPossible, PlanError
from weirbox.pipeline.planning import Selection, new_run_id
from weirbox.store.base import RUN
from weirbox.store.engine import Database


def preview(size: int | None = None) -> Selection:
    """A sample."""
    return Selection(kind=RunKind.PREVIEW, size=size)


def listed(*cases: str) -> Selection:
    """A delta of these cases."""
    return Selection(kind=RunKind.DELTA, cases=cases)


def since(run_id: str) -> Selection:
    """A delta of what is new or changed."""
    return Selection(kind=RunKind.DELTA, since=run_id)


def cases(database: Database, run_id: str) -> list[str]:
    """The ids of a plan, in its order."""
    return column(database, run_id, "case_id")


def plan_digest(database: Database, run_id: str) -> str:
    """What identifies a plan by its content."""
    with database.read() as connection:
        return str(connection.execute(select(RUN.c.plan).where(RUN.c.id == run_id)).scalar_one())


# --- which cases -------------------------------------------------------------------


def test_a_full_run_takes_every_case_with_all_its_trials_in_order(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(3, repeats=2))

    rows = trials(shared_database, run_id)
    assert [(row.seq, row.case_id, row.trial) for row in rows] == [
        (0, "case-0", 1),
        (1, "case-0", 2),
        (2, "case-1", 1),
        (3, "case-1", 2),
        (4, "case-2", 1),
        (5, "case-2", 2),
    ]
    assert len({row.entry_digest for row in rows}) == 6
    run = summary(shared_database, run_id)
    assert (run.kind, run.status, run.progress.planned) == ("full", "pending", 6)
    assert run.progress.pending == 6


def test_a_plan_larger_than_a_batch_is_whole(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(1203))

    assert cases(shared_database, run_id) == [f"case-{n}" for n in range(1203)]
    with shared_database.read() as connection:
        row = connection.execute(select(RUN).where(RUN.c.id == run_id)).one()
    assert row.planned == 1203


def test_a_preview_takes_the_same_cases_wherever_they_stand(shared_sqlite: Database) -> None:
    given = records(60)
    shuffled = random.Random(1).sample(given, 60)

    first, again, moved = (
        cases(shared_sqlite, plan(shared_sqlite, of_records(order), preview()))
        for order in (given, given, shuffled)
    )

    assert len(first) == 10
    assert again == first
    assert sorted(moved) == sorted(first)
    assert moved == [record["id"] for record in shuffled if record["id"] in first]


def test_a_preview_of_another_seed_takes_others(shared_sqlite: Database) -> None:
    samples = [
        set(cases(shared_sqlite, plan(shared_sqlite, suite(60, seed=seed), preview(20))))
        for seed in (0, 1)
    ]

    assert samples[0] != samples[1]


@pytest.mark.parametrize(("declared", "asked", "taken"), [(4, None, 4), (4, 2, 2), (4, 99, 7)])
def test_a_preview_is_as_large_as_was_asked_for(
    declared: int, asked: int | None, taken: int, shared_sqlite: Database
) -> None:
    run_id = plan(shared_sqlite, suite(7, preview=declared), preview(asked))

    assert len(cases(shared_sqlite, run_id)) == taken


def test_a_growing_dataset_changes_a_preview_by_the_new_cases_only(
    shared_sqlite: Database,
) -> None:
    before = cases(shared_sqlite, plan(shared_sqlite, suite(50), preview(10)))
    after = cases(shared_sqlite, plan(shared_sqlite, suite(60), preview(10)))

    added = [case for case in after if case not in before]
    assert all(int(case.removeprefix("case-")) >= 50 for case in added)


def test_a_delta_of_a_list_takes_those_cases_in_the_order_of_the_dataset(
    shared_sqlite: Database,
) -> None:
    run_id = plan(shared_sqlite, suite(5), listed("case-3", "case-1", "case-3"))

    assert cases(shared_sqlite, run_id) == ["case-1", "case-3"]


def test_a_delta_names_the_listed_cases_that_are_not_there(shared_sqlite: Database) -> None:
    with pytest.raises(PlanError, match="2 of the listed cases are not in the dataset") as raised:
        plan(shared_sqlite, suite(3), listed("case-1", "nobody", "case-9"))

    assert "'nobody', 'case-9'" in str(raised.value)

    with pytest.raises(PlanError, match="1 of the listed cases is not in the dataset: 'nobody'"):
        plan(shared_sqlite, suite(3), listed("case-1", "nobody"))


def test_a_delta_since_a_run_takes_what_is_new_or_changed(shared_database: Database) -> None:
    base = plan(shared_database, suite(3))
    given = records(5)
    given[1]["target"] = "another"

    run_id = plan(shared_database, of_records(given), since(base))

    assert cases(shared_database, run_id) == ["case-1", "case-3", "case-4"]


@pytest.mark.parametrize("named", ["latest", "base-"], ids=["latest", "beginning"])
def test_a_delta_since_the_latest_run_does_not_compare_with_itself(
    named: str, database: Database
) -> None:
    plan(database, suite(3, suite="base"))

    run_id = plan(database, suite(4, suite="base"), since(named))

    assert cases(database, run_id) == ["case-3"]


def test_a_delta_with_nothing_new_is_completed_and_finalized_at_once(database: Database) -> None:
    base = plan(database, suite(3))

    run_id = plan(database, suite(3), since(base))

    run = summary(database, run_id)
    assert (run.status, run.reason, run.progress.planned) == ("completed", "nothing is new", 0)
    assert run.finalized_at is not None
    again = go_on(database, run_id)
    assert (again.status, again.finalized_at) == (RunStatus.COMPLETED, run.finalized_at)


REFUSED: dict[str, tuple[Suite, Selection, type[Exception], str]] = {
    "no-records": (of_records([]), Selection(), DatasetError, "no records"),
    "none-of-the-records": (
        suite(dataset={"records": records(2), "limit": 0}),
        Selection(),
        DatasetError,
        "nothing to run",
    ),
    "neither": (suite(), Selection(kind=RunKind.DELTA), PlanError, "list of case ids"),
    "empty-list": (suite(), listed(), PlanError, "list of case ids"),
    "unknown-run": (suite(), since("nobody"), NotPossible, "there is no run 'nobody'"),
    "both": (
        suite(),
        Selection(kind=RunKind.DELTA, cases=("case-1",), since="latest"),
        PlanError,
        "not both",
    ),
    "no-file": (
        suite(dataset={"path": "nowhere.jsonl"}),
        Selection(),
        DatasetError,
        "nowhere.jsonl",
    ),
    "no-function": (
        suite(harness={"kind": "python", "function": "nowhere.py:f"}),
        Selection(),
        PlanError,
        "nowhere.py",
    ),
    "no-recording": (
        suite(harness={"kind": "recorded", "path": "nowhere.jsonl"}),
        Selection(),
        PlanError,
        "nowhere.jsonl",
    ),
}


@pytest.mark.parametrize(("refused", "selection", "error", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_planned_says_why_and_writes_nothing(
    refused: Suite,
    selection: Selection,
    error: type[Exception],
    said: str,
    shared_database: Database,
) -> None:
    before = counts(shared_database)

    with pytest.raises(error, match=said):
        plan(shared_database, refused, selection)

    assert counts(shared_database) == before


def test_a_record_that_is_malformed_far_down_leaves_nothing_behind(
    database: Database, tmp_path: Path
) -> None:
    lines = [json.dumps(record) for record in records(1500)]
    (tmp_path / "cases.jsonl").write_text("\n".join([*lines, "{", ""]))

    with pytest.raises(DatasetError, match="1501"):
        plan(database, suite(dataset={"path": "cases.jsonl"}), folder=str(tmp_path))

    assert counts(database) == [0, 0, 0]


# --- content -----------------------------------------------------------------------


def entries(database: Database, run_id: str) -> dict[str, str]:
    """The digest of each entry of a plan."""
    return {row.case_id: row.entry_digest for row in trials(database, run_id)}


def test_the_same_suite_and_data_make_the_same_plan(shared_database: Database) -> None:
    first, second = plan(shared_database, suite(3)), plan(shared_database, suite(3))

    assert first != second
    assert plan_digest(shared_database, first) == plan_digest(shared_database, second)
    assert entries(shared_database, first) == entries(shared_database, second)


OTHER_PLANS: dict[str, Suite] = {
    "another-grader": suite(3, graders=[{"kind": "answer-match", "name": "m", "mode": "contains"}]),
    "another-harness": suite(3, harness={"kind": "recorded", "field": "target"}),
    "more-records": suite(4),
    "another-order": of_records(records(3)[::-1]),
    "a-budget": suite(3, budget={"usd": 1}),
}


@pytest.mark.parametrize("other", OTHER_PLANS.values(), ids=OTHER_PLANS)
def test_whatever_differs_makes_another_plan_and_leaves_the_entries_alone(
    other: Suite, shared_database: Database
) -> None:
    first, second = plan(shared_database, suite(3)), plan(shared_database, other)

    assert plan_digest(shared_database, first) != plan_digest(shared_database, second)
    before, after = entries(shared_database, first), entries(shared_database, second)
    assert {case: after[case] for case in before} == before


def test_a_case_that_says_something_else_is_another_entry(shared_database: Database) -> None:
    given = records(2)
    given[1]["input"] = "changed"

    first, second = plan(shared_database, suite(2)), plan(shared_database, of_records(given))

    before, after = entries(shared_database, first), entries(shared_database, second)
    assert before["case-0"] == after["case-0"]
    assert before["case-1"] != after["case-1"]


def test_run_ids_can_be_read_and_do_not_repeat() -> None:
    ids = {new_run_id("nightly") for _ in range(50)}

    assert len(ids) == 50
    assert all(run_id.startswith("nightly-20") for run_id in ids)


def test_the_budget_and_the_categories_are_frozen_into_rows(shared_database: Database) -> None:
    given = [{"id": "a", "input": "", "kind": "x"}, {"id": "b", "input": ""}]
    chosen = of_records(given, category="kind", budget={"usd": 1.5, "calls": 7})

    run_id = plan(shared_database, chosen)

    run = summary(shared_database, run_id)
    assert (run.budget_usd, run.budget_calls) == (1.5, 7)
    assert column(shared_database, run_id, "category") == ["x", None]


def test_two_runs_can_be_planned_at_once(shared_database: Database) -> None:
    with ThreadPoolExecutor(3) as pool:
        ids = list(pool.map(lambda _: plan(shared_database, suite(700)), range(3)))

    assert [len(cases(shared_database, run_id)) for run_id in ids] == [700] * 3
