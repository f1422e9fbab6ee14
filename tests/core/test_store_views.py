"""What the dashboard reads: pages of runs and trials, distributions, one trial; never a write."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text, update
from sqlalchemy.exc import SQLAlchemyError

from tests import factories
from weirbox.domain.words import Disposition, ErrorKind, ScoreState, Verdict
from weirbox.errors import NotPossible, ServiceError, UserError
from weirbox.store.base import EVENT, SCORE, TRIAL
from weirbox.store.claims import open_claim, release_claim
from weirbox.store.engine import Database
from weirbox.store.types import utc_now
from weirbox.store.views import EVENTS_SHOWN, TEXT_SHOWN
from weirbox.store.views.opening import open_reader, shown_url
from weirbox.store.views.runs import (
    Activity,
    CheckGroup,
    ErrorGroup,
    Slice,
    activity,
    count_runs,
    distribution,
    error_groups,
    run_key,
    run_page,
    suites,
    timeline,
    unmeasured,
    verdicts_by_category,
)
from weirbox.store.views.trials import (
    Position,
    TrialFilter,
    TrialLine,
    categories,
    position,
    trial_detail,
    trial_page,
)

LONG = "long-" + "x" * 5000
IDS = ["plain", "UPPER case", "100%_sure", "1000xsure", LONG, "😀 emoji", "plain too"]


def _read(database: Database, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    with database.read() as connection:
        return function(connection, *args, **options)


# --- opening ------------------------------------------------------------------------


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert open_reader(f"sqlite:///{tmp_path}/home/weirbox.db") is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_a_schema_is_no_store_yet(tmp_path: Path) -> None:
    (tmp_path / "weirbox.db").touch()
    assert open_reader(f"sqlite:///{tmp_path}/weirbox.db") is None


def test_a_reader_refuses_to_write(database: Database) -> None:
    run_id = factories.plan(database, factories.suite(1))
    reader = open_reader(database.url)
    assert reader is not None
    with (
        pytest.raises(SQLAlchemyError, match=r"(?i)read.?only"),
        reader.write() as connection,
    ):
        connection.execute(update(TRIAL).values(verdict="pass"))
    assert [trial.verdict for trial in factories.trials(reader, run_id)] == ["none"]
    reader.close()


def test_another_versions_schema_is_refused_with_the_way_out(sqlite: Database) -> None:
    with sqlite.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(NotPossible, match=r"9999.*upgrade weirbox"):
        open_reader(sqlite.url)


@pytest.mark.parametrize("url", ["no url", "oracle://host/name"])
def test_an_address_that_is_no_databases_is_a_mistake(url: str) -> None:
    with pytest.raises(UserError, match="WEIRBOX_DATABASE_URL"):
        open_reader(url)


def test_a_file_that_is_no_database_is_told_with_its_address(tmp_path: Path) -> None:
    (tmp_path / "weirbox.db").write_bytes(b"not a database, but long enough to look like one" * 9)
    with pytest.raises(ServiceError, match=r"weirbox\.db cannot be read"):
        open_reader(f"sqlite:///{tmp_path}/weirbox.db")


def test_an_address_is_shown_without_its_password() -> None:
    assert shown_url("postgresql://ann:geheim@host/name") == "postgresql://ann:***@host/name"


# --- runs ---------------------------------------------------------------------------


def test_runs_come_newest_first_in_pages_that_do_not_overlap(database: Database) -> None:
    made = [factories.plan(database, factories.suite(1, suite=f"s{n % 2}")) for n in range(5)]
    newest = made[::-1]
    pages = [_read(database, run_page, page=page, size=2) for page in (1, 2, 3, 4)]
    assert [[key.run_id for key in page] for page in pages] == [
        newest[:2],
        newest[2:4],
        newest[4:],
        [],
    ]
    assert [key.run_id for key in _read(database, run_page, suite="s1")] == [made[3], made[1]]
    assert (_read(database, count_runs), _read(database, count_runs, suite="s0")) == (5, 3)
    assert _read(database, suites) == ["s0", "s1"]


def test_a_run_is_known_by_when_it_was_finalized(sqlite: Database) -> None:
    planned = factories.plan(sqlite, factories.suite(1))
    assert _read(sqlite, run_key, planned).finalized_at is None
    done = factories.go_on(sqlite, planned)
    assert _read(sqlite, run_key, planned) == (planned, done.finalized_at)
    assert _read(sqlite, run_key, "nothing") is None


def test_only_leases_that_hold_are_counted_as_drivers(database: Database) -> None:
    run_id = factories.plan(database, factories.suite(1))
    assert _read(database, activity, run_id) == Activity(drivers=0, last_row_at=None)
    with database.write() as connection:
        open_claim(connection, run_id, driver="holds", lease_s=60)
        open_claim(connection, run_id, driver="ran out", lease_s=-1)
        given_back = open_claim(connection, run_id, driver="gave back", lease_s=60)
        release_claim(connection, given_back)
    assert _read(database, activity, run_id).drivers == 1


def test_the_last_row_is_the_last_end_of_a_stage(sqlite: Database) -> None:
    run = factories.drive(sqlite, factories.suite(3))
    ends = factories.column(sqlite, run.run_id, "exported_at")
    ends += factories.column(sqlite, run.run_id, "judged_at")
    assert _read(sqlite, activity, run.run_id).last_row_at == max(e for e in ends if e is not None)


def test_a_timeline_keeps_its_latest_entries_oldest_first(sqlite: Database) -> None:
    run_id = factories.plan(sqlite, factories.suite(1))
    with sqlite.write() as connection:
        rows = [
            {"run_id": run_id, "kind": "warning", "message": str(n)} for n in range(EVENTS_SHOWN)
        ]
        connection.execute(insert(EVENT), rows)
    found = _read(sqlite, timeline, run_id)
    assert [moment.message for moment in found] == [str(n) for n in range(EVENTS_SHOWN)]


# --- groups and distributions --------------------------------------------------------


def _scored(database: Database, values: list[Any], kind: str) -> str:
    """A run whose check ``match`` has these values."""
    run_id = factories.plan(database, factories.suite(len(values)))
    number = kind != "text"
    rows = [
        {
            "run_id": run_id,
            "seq": seq,
            "name": "match",
            "state": "scored",
            "value_kind": kind,
            "value_number": float(value) if number else None,
            "value_text": None if kind in ("float", "bool") else str(value),
            "authority": "other",
            "source": "grader",
            "required": True,
        }
        for seq, value in enumerate(values)
    ]
    with database.write() as connection:
        connection.execute(insert(SCORE), rows)
    return run_id


@pytest.mark.parametrize(
    ("values", "kind", "slices"),
    [
        pytest.param(
            [0, 1, 1, 3], "int", [("0", 1), ("1", 2), ("3", 1)], id="few-numbers-one-by-one"
        ),
        pytest.param([True, True, False], "bool", [("true", 2), ("false", 1)], id="truth"),
        pytest.param(["b", "a", "b"], "text", [("b", 2), ("a", 1)], id="text-most-frequent-first"),
        pytest.param([0.5, math.inf, -math.inf], "float", [("0.5", 1)], id="infinity-is-no-bar"),
        pytest.param([], "float", [], id="nothing"),
    ],
)
def test_values_are_spread_over_bars(
    database: Database, values: list[Any], kind: str, slices: list[tuple[str, int]]
) -> None:
    run_id = _scored(database, values, kind) if values else "none"
    found = _read(database, distribution, run_id, "match")
    assert [(part.label, part.count) for part in found] == slices


def test_many_numbers_are_spread_over_ranges_that_meet_and_lose_none(database: Database) -> None:
    values = [n / 10 for n in range(101)]
    run_id = _scored(database, values, "float")
    found: list[Slice] = _read(database, distribution, run_id, "match")
    assert len(found) == 20
    assert (found[0].low, found[-1].high) == (0.0, 10.0)
    assert [part.high for part in found[:-1]] == [part.low for part in found[1:]]
    assert sum(part.count for part in found) == 101
    assert found[-1].count == 6  # the highest value included: 9.5 to 10.0


def test_ranges_of_the_greatest_numbers_are_finite(database: Database) -> None:
    values = [-1.7e308, *range(40), 1.7e308]
    run_id = _scored(database, values, "float")
    found: list[Slice] = _read(database, distribution, run_id, "match")
    assert sum(part.count for part in found) == 42
    assert all(math.isfinite(part.low or 0) and math.isfinite(part.high or 0) for part in found)


# --- trials -------------------------------------------------------------------------


def _varied(database: Database) -> str:
    """A run of `IDS` in which every trial stands differently."""
    records = [{"id": case_id, "input": "x", "target": "x"} for case_id in IDS]
    run_id = factories.plan(database, factories.suite(0, dataset={"records": records}))
    marks: list[dict[str, Any]] = [
        {"verdict": "pass", "disposition": "clean", "state": "scored", "category": "a"},
        {"verdict": "fail", "disposition": "review", "state": "scored", "category": "a"},
        {"verdict": "fail", "disposition": "quarantined", "state": "scored", "category": "b"},
        {"verdict": "none", "disposition": "review", "state": "errored", "category": "b"},
        {"verdict": "none", "disposition": "review", "state": "unscored"},
        {"verdict": "pass", "disposition": "clean", "state": "scored", "category": "<b>"},
    ]
    marks[3] |= {
        "error_stage": "execute",
        "error_kind": "harness_error",
        "error_message": "m" * 5000,
    }
    with database.write() as connection:
        for seq, mark in enumerate(marks):
            judged = {"judged_at": utc_now()} | mark
            where = (TRIAL.c.run_id == run_id, TRIAL.c.seq == seq)
            connection.execute(update(TRIAL).where(*where).values(judged))
    return run_id


@pytest.mark.parametrize(
    ("chosen", "seqs"),
    [
        pytest.param(TrialFilter(), [0, 1, 2, 3, 4, 5, 6], id="all"),
        pytest.param(TrialFilter(verdict=Verdict.FAIL), [1, 2], id="verdict"),
        pytest.param(TrialFilter(verdict=Verdict.NONE), [3, 4], id="none-means-judged"),
        pytest.param(TrialFilter(disposition=Disposition.REVIEW), [1, 3, 4], id="disposition"),
        pytest.param(TrialFilter(state=ScoreState.PENDING), [6], id="state"),
        pytest.param(TrialFilter(error=ErrorKind.HARNESS_ERROR), [3], id="error"),
        pytest.param(TrialFilter(category="<b>"), [5], id="category"),
        pytest.param(TrialFilter(text="upper CASE"), [1], id="text-in-either-case"),
        pytest.param(TrialFilter(text="100%_"), [2], id="no-wildcards-in-text"),
        pytest.param(TrialFilter(text="😀"), [5], id="emoji"),
        pytest.param(TrialFilter(text="plain", verdict=Verdict.PASS), [0], id="all-must-fit"),
        pytest.param(TrialFilter(text="nowhere"), [], id="nothing-fits"),
    ],
)
def test_a_filter_keeps_what_fits_all_of_it(
    shared_database: Database, chosen: TrialFilter, seqs: list[int]
) -> None:
    run_id = _varied(shared_database)
    lines: list[TrialLine] = _read(shared_database, trial_page, run_id, chosen)
    assert [line.seq for line in lines] == seqs
    assert _read(shared_database, position, run_id, chosen, 3) == Position(
        len(seqs), sum(seq < 3 for seq in seqs)
    )


def test_long_texts_are_cut_in_the_store_and_say_how_long_they_were(
    shared_database: Database,
) -> None:
    run_id = _varied(shared_database)
    lines: list[TrialLine] = _read(shared_database, trial_page, run_id, TrialFilter())
    assert (len(lines[4].case_id), lines[4].id_length) == (TEXT_SHOWN, len(LONG))
    assert len(lines[3].error_message or "") == TEXT_SHOWN
    assert lines[6].verdict is None  # not judged, which is not the verdict none


def test_pages_follow_each_other_in_both_directions(shared_database: Database) -> None:
    run_id = factories.plan(shared_database, factories.suite(25))
    every = TrialFilter()

    def page(**where: int) -> list[int]:
        lines = _read(shared_database, trial_page, run_id, every, limit=10, **where)
        return [line.seq for line in lines]

    forward = [page(), page(after=9), page(after=19), page(after=24)]
    assert forward == [list(range(10)), list(range(10, 20)), list(range(20, 25)), []]
    assert [page(before=20), page(before=10), page(before=0)] == [forward[1], forward[0], []]


def test_groups_count_what_failed_and_what_has_no_value(sqlite: Database) -> None:
    run_id = _varied(sqlite)
    groups: list[ErrorGroup] = _read(sqlite, error_groups, run_id)
    assert [(g.stage, g.kind, g.trials) for g in groups] == [("execute", "harness_error", 1)]
    assert _read(sqlite, categories, run_id) == ["<b>", "a", "b"]
    assert sorted(_read(sqlite, verdicts_by_category, run_id)) == [
        ("", "none", 1),
        ("<b>", "pass", 1),
        ("a", "fail", 1),
        ("a", "pass", 1),
        ("b", "fail", 1),
        ("b", "none", 1),
    ]


def test_checks_without_a_value_are_grouped_by_reason(shared_database: Database) -> None:
    records = [{"id": f"c{n}", "input": "x"} for n in range(3)]  # no target to match with
    suite = factories.suite(0, dataset={"records": records})
    run = factories.drive(shared_database, suite)
    assert _read(shared_database, unmeasured, run.run_id) == [
        CheckGroup("match", "unscored", "missing_evidence", "the case has no target", 3)
    ]


# --- one trial ----------------------------------------------------------------------


def test_one_trial_is_read_in_full(shared_database: Database) -> None:
    run = factories.drive(shared_database, factories.suite(2, repeats=2))
    detail = _read(shared_database, trial_detail, run.run_id, 1)
    assert detail.observation.output == detail.case.input
    assert [(score.name, score.value) for score in detail.scores] == [("match", True)]
    assert (detail.verdict, detail.deciding, detail.stage) == (Verdict.PASS, "objective", "done")
    assert (detail.previous, detail.next) == (0, 2)
    assert [number for _, number in detail.trials] == [1, 2]
    assert (1, detail.trial) in detail.trials
    assert detail.times["execute"][0] <= detail.times["execute"][1] <= detail.times["judge"][1]
    assert _read(shared_database, trial_detail, run.run_id, 0).previous is None
    assert _read(shared_database, trial_detail, run.run_id, 4) is None


def test_a_trial_that_was_not_judged_has_no_verdict(sqlite: Database) -> None:
    run_id = factories.plan(sqlite, factories.suite(1))
    detail = _read(sqlite, trial_detail, run_id, 0)
    assert (detail.verdict, detail.observation, detail.scores) == (None, None, ())
    assert detail.times["execute"] == (None, None)
