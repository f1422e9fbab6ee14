"""The pages, opened through app.py without a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import delete, text, update
from streamlit.testing.v1 import AppTest

from dashboard.parts.text import one_line
from tests import factories
from tests.dashboard.reading import marked_up, texts
from weirbox.domain.case import Case
from weirbox.domain.run import RunSummary
from weirbox.domain.seams import Handle, TrialContext
from weirbox.domain.trace import Observation, Snapshot, SnapshotFile, TraceEvent, Usage
from weirbox.domain.words import EventKind, RunStatus
from weirbox.errors import HarnessError
from weirbox.store.base import RUN, SCORECARD
from weirbox.store.engine import Database
from weirbox.store.writes import change_status
from weirbox.testing import ReplayJudge

Open = Callable[..., AppTest]

FAILED = '{"verdict": "fail", "confidence": 0.9, "rationale": "wrong"}'
EVIL = "**bold** ![x](http://evil.example/x.png) <img src=http://evil.example/y.png> :red[z]"
HIDDEN = "\u202ereversed\x00"


class Evidence:
    """A harness that leaves every kind of evidence behind, all of it hostile."""

    needs_compute = False

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        if case.id == "breaks":
            raise HarnessError(f"upstream said {EVIL}")
        return Observation(
            output=case.input,
            snapshot=Snapshot(
                stdout=f"out {EVIL}",
                stderr=f"err {HIDDEN}",
                exit_code=0,
                files=(SnapshotFile(path=f"a/{EVIL}", text=f"file {EVIL}"),),
            ),
            trace=(TraceEvent(kind=EventKind.MESSAGE, name=EVIL, text=f"event {EVIL}", at=0.5),),
            usage=Usage(),
            correlation=context.correlation,
        )

    async def aclose(self) -> None:
        """Nothing is open."""


def _hostile(database: Database) -> RunSummary:
    records = [
        {"id": EVIL, "input": EVIL, "target": EVIL, "kind": EVIL},
        {"id": "breaks", "input": "x", "target": "x", "kind": "calm"},
        {"id": "y" * 10_000, "input": "z" * 50_000, "target": HIDDEN, "kind": "calm"},
    ]
    suite = factories.judged(
        0, "quality", dataset={"records": records}, category="kind", suite="hostile"
    )

    judge = ReplayJudge(lambda request: FAILED.replace("wrong", EVIL), cost_usd=0.25)
    return factories.drive(
        database, suite, fakes=factories.Fakes(harness=Evidence(), provider=judge)
    )


@pytest.fixture(scope="module")
def hostile(store: Database) -> RunSummary:
    """A finalized run in which every text is hostile."""
    return _hostile(store)


@pytest.fixture(scope="module")
def plain(store: Database) -> RunSummary:
    """A finalized run of 230 cases that all pass."""
    return factories.drive(store, factories.suite(230, suite="plain"))


def _planned(store: Database, *, status: RunStatus | None = None, reason: str = "") -> str:
    run_id = factories.plan(store, factories.suite(4, suite="planned"))
    if status is not None:
        with store.write() as connection:
            change_status(connection, run_id, to=status, reason=reason)
    return run_id


def _inert(app: AppTest) -> None:
    """Nothing hostile may be where markdown could make something of it."""
    for piece in ("evil.example", "<img", "![x]", ":red[z]"):
        assert piece not in marked_up(app)


# --- no store, no run ------------------------------------------------------------------


@pytest.mark.parametrize("page", ["", "run", "cases", "case"])
def test_without_a_store_every_page_says_how_to_start_a_run(
    open_page: Open, tmp_path: Path, page: str
) -> None:
    app = open_page(f"sqlite:///{tmp_path}/home/weirbox.db", page)
    assert app.title[0].value == "No run yet"
    assert "weirbox run examples/humaneval/suite.yaml" in texts(app)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("page", ["", "run"])
def test_a_store_without_runs_says_the_same(open_page: Open, sqlite: Database, page: str) -> None:
    assert open_page(sqlite, page).title[0].value == "No run yet"


def test_an_unreadable_store_is_told_and_not_raised(open_page: Open) -> None:
    app = open_page("no url at all")
    assert "WEIRBOX_DATABASE_URL" in texts(app)


def test_a_store_that_fails_under_a_page_is_told_and_not_raised(
    open_page: Open, sqlite: Database
) -> None:
    run_id = factories.plan(sqlite, factories.suite(1))
    with sqlite.write() as connection:
        connection.execute(text("DROP TABLE score"))
    app = open_page(sqlite, "cases", run=run_id)
    assert "no such table: score" in texts(app)


# --- runs ------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_with_what_they_came_to(
    open_page: Open, sqlite: Database
) -> None:
    done = factories.drive(sqlite, factories.suite(3, suite="first"))
    waiting = _planned(sqlite)
    broken = _planned(sqlite, status=RunStatus.FAILED, reason="no secret")
    app = open_page(sqlite)
    rows = app.dataframe[0].value
    assert list(rows["run"]) == [broken, waiting, done.run_id]
    assert [list(status) for status in rows["status"]] == [
        ["⚠ failed"],
        ["… pending"],
        ["✓ completed"],
    ]
    assert list(rows["progress"]) == [0.0, 0.0, 100.0]
    assert list(rows["rate"]) == ["–", "–", "100.0 %"]
    assert list(rows["pass"]) == [0, 0, 3]
    app.selectbox(key="suite").select("first").run()
    assert list(app.dataframe[0].value["run"]) == [done.run_id]


def test_runs_are_paged(open_page: Open, sqlite: Database) -> None:
    made = [factories.plan(sqlite, factories.suite(1)) for _ in range(27)]
    app = open_page(sqlite)
    assert list(app.dataframe[0].value["run"]) == made[::-1][:25]
    app = open_page(sqlite, page="2")
    assert list(app.dataframe[0].value["run"]) == made[::-1][25:]


# --- one run ---------------------------------------------------------------------------


def test_a_run_shows_its_coverage_as_a_sum(
    open_page: Open, store: Database, hostile: RunSummary
) -> None:
    app = open_page(store, "run", run=hostile.run_id)
    assert app.title[0].value == "hostile"
    captions = [caption.value for caption in app.caption]
    assert "3 planned = 2 scored + 0 unscored + 1 errored + 0 skipped + 0 pending" in captions
    tiles = {metric.label: metric.value for metric in app.metric}
    assert tiles == {"Pass rate": "50.0 %", "Cost of judges": "$0.5000"}
    links = {link.value for link in app.page_link}
    assert {":red[✗ **1** fail]", ":gray[– **1** none]", ":violet[⚠ **1** errored]"} <= links
    _inert(app)


def test_a_runs_errors_are_grouped_and_shown_as_text(
    open_page: Open, store: Database, hostile: RunSummary
) -> None:
    app = open_page(store, "run", run=hostile.run_id)
    assert "⚠ execute failed: harness_error" in marked_up(app)
    assert f"upstream said {EVIL}" in texts(app)
    unmeasured = next(table.value for table in app.dataframe if "reason" in table.value)
    assert [tuple(row) for row in unmeasured[["check", "reason", "scores"]].to_numpy()] == [
        ("match", "stage_error", 1),
        ("quality", "stage_error", 1),
    ]


def test_a_beginning_of_an_id_finds_the_run_and_the_address_gets_all_of_it(
    open_page: Open, store: Database, plain: RunSummary
) -> None:
    app = open_page(store, "run", run=plain.run_id[:-2])
    assert (app.title[0].value, app.query_params["run"]) == ("plain", plain.run_id)


@pytest.mark.parametrize("page", ["run", "cases", "case"])
def test_a_run_that_is_not_there_is_told_as_text(
    open_page: Open, store: Database, plain: RunSummary, page: str
) -> None:
    app = open_page(store, page, run=EVIL)
    assert app.title[0].value == "Not found"
    assert "there is no run '**bold**" in texts(app)
    _inert(app)


def test_a_failed_run_says_why_as_text(open_page: Open, store: Database) -> None:
    run_id = _planned(store, status=RunStatus.FAILED, reason=f"no secret {EVIL}")
    app = open_page(store, "run", run=run_id)
    assert f"no secret {EVIL}" in texts(app)
    assert "Finalize computes the metrics: none for a failed run." in marked_up(app)
    _inert(app)


def test_a_run_that_nobody_drives_says_how_to_go_on(open_page: Open, store: Database) -> None:
    run_id = _planned(store)
    app = open_page(store, "run", run=run_id)
    assert f"weirbox resume {run_id}" in texts(app)
    assert "Finalize computes the metrics: not yet." in marked_up(app)


def test_a_completed_run_without_aggregates_is_finalizing(
    open_page: Open, sqlite: Database
) -> None:
    run = factories.drive(sqlite, factories.suite(2))
    with sqlite.write() as connection:
        connection.execute(delete(SCORECARD))
        connection.execute(update(RUN).values(finalized_at=None))
    app = open_page(sqlite, "run", run=run.run_id)
    assert "◔ finalizing" in marked_up(app)
    assert "Finalize computes the metrics: being computed now." in marked_up(app)
    assert [list(s) for s in open_page(sqlite).dataframe[0].value["status"]] == [["◔ finalizing"]]


def test_what_a_live_run_has_done_is_read_again(open_page: Open, sqlite: Database) -> None:
    run_id = factories.plan(sqlite, factories.suite(3))
    before = open_page(sqlite, "run", run=run_id)
    assert "**execute** 0 of 3" in marked_up(before)
    factories.go_on(sqlite, run_id)
    assert "**execute** 3 of 3" in marked_up(open_page(sqlite, "run", run=run_id))


# --- cases -----------------------------------------------------------------------------


def _seqs(app: AppTest) -> list[int]:
    return [int(label.removeprefix("#")) for label in app.dataframe[0].value["open"]]


def _click(app: AppTest, label: str) -> AppTest:
    next(button for button in app.button if button.label == label).click()
    return app.run()


def test_cases_are_paged_by_key_in_both_directions(
    open_page: Open, store: Database, plain: RunSummary
) -> None:
    app = open_page(store, "cases", run=plain.run_id)
    assert (_seqs(app), app.caption[0].value) == ([*range(100)], "1 to 100 of 230")
    _click(app, "Next ›")
    assert (_seqs(app), app.caption[0].value) == ([*range(100, 200)], "101 to 200 of 230")
    _click(app, "Next ›")
    assert (_seqs(app), app.caption[0].value) == ([*range(200, 230)], "201 to 230 of 230")
    assert next(button for button in app.button if button.label == "Next ›").disabled
    _click(app, "‹ Previous")
    assert _seqs(app) == [*range(100, 200)]
    _click(app, "« First")
    assert _seqs(app) == [*range(100)]


def test_a_filter_starts_at_its_first_page(
    open_page: Open, store: Database, plain: RunSummary
) -> None:
    app = open_page(store, "cases", run=plain.run_id, after=199)
    assert _seqs(app) == [*range(200, 230)]
    app.text_input(key="q").set_value("CASE-1").run()
    assert app.caption[0].value == "1 to 100 of 111"  # 1, 10 to 19, 100 to 199
    assert _seqs(app)[:3] == [1, 10, 11]


@pytest.mark.parametrize(
    ("parameters", "seqs"),
    [
        ({"verdict": "fail"}, [2]),
        ({"state": "errored"}, [1]),
        ({"error": "harness_error"}, [1]),
        ({"disposition": "quarantined"}, [0, 2]),
        ({"category": one_line(EVIL, limit=60)}, [0]),
        ({"verdict": "nonsense"}, [0, 1, 2]),
        ({"after": "nonsense"}, [0, 1, 2]),
    ],
)
def test_filters_stand_in_the_address(
    open_page: Open,
    store: Database,
    hostile: RunSummary,
    parameters: dict[str, str],
    seqs: list[int],
) -> None:
    app = open_page(store, "cases", run=hostile.run_id, **parameters)
    assert _seqs(app) == seqs
    _inert(app)


def test_cases_show_their_scores_and_cut_what_is_long(
    open_page: Open, store: Database, hostile: RunSummary
) -> None:
    rows = open_page(store, "cases", run=hostile.run_id).dataframe[0].value
    assert rows["case"][2] == "y" * 200 + "… (10,000 characters)"
    assert list(rows["score match"]) == ["true", "errored", "false"]
    assert [list(found) for found in rows["state"]] == [["● scored"], ["⚠ errored"], ["● scored"]]
    assert "trial" not in rows  # there is only one


def test_no_case_that_fits_is_said_and_not_an_empty_grid(
    open_page: Open, store: Database, plain: RunSummary
) -> None:
    app = open_page(store, "cases", run=plain.run_id, verdict="fail")
    assert "No case fits these filters." in marked_up(app)
    assert not app.dataframe


def test_the_session_remembers_the_run_and_the_list_but_a_link_brings_its_own_filters(
    open_page: Open, store: Database, hostile: RunSummary
) -> None:
    app = open_page(store, "cases", run=hostile.run_id, verdict="fail")
    _follow(app, "run")
    assert (app.title[0].value, app.query_params["run"]) == ("hostile", hostile.run_id)
    _follow(app, "cases")
    assert (_seqs(app), app.selectbox(key="verdict").value) == ([2], "fail")
    _follow(app, "run", run=hostile.run_id)
    _follow(app, "cases", run=hostile.run_id, state="errored")
    assert _seqs(app) == [1]


def _follow(app: AppTest, view: str, **parameters: str) -> None:
    """Follow a link; the menu's have no parameters."""
    app.switch_page(f"views/{view}.py")
    app.query_params.clear()
    app.query_params.update(parameters)
    app.run()
    assert not app.exception


# --- one case --------------------------------------------------------------------------


def _case(open_page: Open, store: Database, run: RunSummary, seq: int, tab: str = "") -> AppTest:
    app = open_page(store, "case", run=run.run_id, seq=seq)
    if tab:
        app.session_state["evidence"] = next(one.label for one in app.tabs if tab in one.label)
        app.run()
        assert not app.exception
    return app


def test_a_case_shows_what_went_in_and_out_as_text(
    open_page: Open, store: Database, hostile: RunSummary
) -> None:
    app = _case(open_page, store, hostile, 0)
    assert app.title[0].value == "Case #0"
    boxes = [box.value for box in app.code]
    assert boxes.count(EVIL) >= 4  # the id, the input, the target and the output
    _inert(app)


def test_a_case_shows_which_check_decided(
    open_page: Open, store: Database, hostile: RunSummary
) -> None:
    fails = _case(open_page, store, hostile, 2)
    assert "match  ← the deciding check" in texts(fails)
    assert "decides: ✗ fail" in marked_up(fails)
    assert "outranked by a higher tier" in marked_up(fails)


def test_a_broken_trial_shows_what_broke_and_no_verdict(
    open_page: Open, store: Database, hostile: RunSummary
) -> None:
    app = _case(open_page, store, hostile, 1)
    assert "⚠ execute failed: harness_error" in marked_up(app)
    assert f"upstream said {EVIL}" in texts(app)
    scores = app.dataframe[0].value
    assert list(scores["state"]) == ["errored", "errored"]
    assert list(scores["reason"]) == ["stage_error", "stage_error"]
    assert list(scores["value"]) == ["–", "–"]
    _inert(app)


@pytest.mark.parametrize(
    ("tab", "said"),
    [
        ("Judge calls (1)", EVIL),
        ("Exports", "The suite has no sinks."),
        ("Trace (1)", f"event {EVIL}"),
        ("Snapshot", "err \\u202ereversed\\x00"),
        ("Snapshot", f"file {EVIL}"),
        ("Times", "its correlation id is "),
        ("Raw", '"correlation": '),
    ],
)
def test_evidence_is_text_too(
    open_page: Open, store: Database, hostile: RunSummary, tab: str, said: str
) -> None:
    app = _case(open_page, store, hostile, 0, tab)
    assert said in texts(app) + marked_up(app)
    _inert(app)


def test_judge_calls_show_their_cost(open_page: Open, store: Database, hostile: RunSummary) -> None:
    app = _case(open_page, store, hostile, 0, "Judge calls")
    calls = next(table.value for table in app.dataframe if "cost" in table.value)
    assert list(calls["cost"]) == ["$0.2500"]
    assert "Together $0.2500." in texts(app)


def test_what_is_too_long_is_cut_and_says_so(
    open_page: Open, store: Database, hostile: RunSummary
) -> None:
    app = _case(open_page, store, hostile, 2)
    assert "z" * 20_000 in [box.value for box in app.code]
    captions = [caption.value for caption in app.caption]
    assert captions.count("Cut: the first 20,000 of 50,000 characters.") == 2  # input and output
    assert "Cut: the id has 10,000 characters; the raw view has all of them." in captions


def test_a_case_leads_to_its_neighbours(
    open_page: Open, store: Database, plain: RunSummary
) -> None:
    app = _case(open_page, store, plain, 0)
    states = {button.label: button.disabled for button in app.button}
    assert (states["Previous"], states["Next"]) == (True, False)
    last = _case(open_page, store, plain, 229)
    states = {button.label: button.disabled for button in last.button}
    assert (states["Previous"], states["Next"]) == (False, True)


@pytest.mark.parametrize(
    ("seq", "said"),
    [
        ("999", "has no case number 999"),
        ("-1", "no case number '-1'"),
        ("²", "no case number '²'"),
        ("9" * 30, "no case number '999"),
    ],
)
def test_a_case_that_is_not_there_is_told(
    open_page: Open, store: Database, plain: RunSummary, seq: str, said: str
) -> None:
    app = open_page(store, "case", run=plain.run_id, seq=seq)
    assert app.title[0].value == "Not found"
    assert said in texts(app)


def test_a_trial_that_waits_shows_three_times_that_it_does(
    open_page: Open, store: Database
) -> None:
    app = open_page(store, "case", run=_planned(store), seq=0)
    assert "Not judged yet." in marked_up(app)
    assert "Not executed yet." in marked_up(app)
    assert "None yet." in marked_up(app)


def test_trials_of_one_case_lead_to_each_other(open_page: Open, sqlite: Database) -> None:
    run = factories.drive(sqlite, factories.suite(1, repeats=3))
    app = open_page(sqlite, "case", run=run.run_id, seq=1)
    others = app.get("segmented_control")[0]
    assert list(others.options) == ["trial 1", "trial 2", "trial 3"]
