"""The command line, in this process: what it writes where, and what it exits with."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import yaml
from sqlalchemy import insert, update

from weirbox import cli
from weirbox.cli.edge import plain
from weirbox.cli.stack import store_key, to_start
from weirbox.cli.starter import STARTER
from weirbox.domain.score import Score
from weirbox.domain.words import RunStatus
from weirbox.result_files import write_csv
from weirbox.services import Service, Services
from weirbox.settings import Settings
from weirbox.store import queries
from weirbox.store.base import RUN, SCORE, SCORECARD
from weirbox.store.engine import Database, open_database
from weirbox.store.rows import score_columns
from weirbox.store.writes import change_status
from weirbox.suites import parse_suite

HEAVY = {
    *("sqlalchemy", "sqlmodel", "alembic", "pandas", "pyarrow", "scipy", "prefect", "streamlit"),
    *("httpx", "pydantic", "yaml", "asyncio"),
}

RECORDS = [
    {"id": "right", "input": "a", "target": "a"},
    {"id": "wrong", "input": "b", "target": "x"},
    {"id": "also", "input": "c", "target": "c"},
]


class Ended(NamedTuple):
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON, which is the last line of standard output."""
        return json.loads(self.out.splitlines()[-1], parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


Cli = Callable[..., Ended]


@pytest.fixture
def weirbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Cli:
    """The command line, at home in a fresh folder."""
    for name in ("WEIRBOX_DATABASE_URL", "PREFECT_API_URL", "WEIRBOX_DASHBOARD_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WEIRBOX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["weirbox", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path)


def write_suite(folder: Path, name: str = "small.yaml", **changes: Any) -> Path:
    parts: dict[str, Any] = {
        "suite": "small",
        "dataset": {"records": RECORDS},
        "harness": {"kind": "recorded", "field": "input"},
        "graders": [{"kind": "answer-match", "name": "same"}],
    }
    path = folder / name
    path.write_text(yaml.safe_dump(parts | changes))
    return path


def database(tmp_path: Path) -> Database:
    return open_database(f"sqlite:///{tmp_path}/home/weirbox.db")


def ran(weirbox: Cli, suite: Path, *options: object) -> str:
    """The id of a run that is done."""
    ended = weirbox("run", suite, "--engine", "direct", "--json", *options)
    assert ended.status == 0
    return str(ended.json["run_id"])


# --- starting up ----------------------------------------------------------------


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    source = "import sys, weirbox.cli; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    ).stdout.split()

    assert set(loaded) & HEAVY == set()
    assert "typer" in loaded


def test_the_version_is_printed(weirbox: Cli) -> None:
    import weirbox as package

    assert weirbox("--version") == (0, f"{package.__version__}\n", "")


def test_the_schema_is_json_that_knows_the_fields_of_a_suite(weirbox: Cli) -> None:
    schema = json.loads(weirbox("schema").out)

    assert {"suite", "dataset", "harness", "graders"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False


# --- init -----------------------------------------------------------------------


def test_the_starter_runs_as_it_is(weirbox: Cli, tmp_path: Path) -> None:
    written = weirbox("init")
    ended = weirbox("run", "suite.yaml", "--engine", "direct", "--json")

    assert written.status == 0
    assert "weirbox run suite.yaml" in written.err
    assert (ended.status, ended.json["verdicts"]) == (0, {"pass": 2, "fail": 1, "none": 0})


def test_the_parts_that_the_starter_has_in_comments_are_right() -> None:
    _, rest = STARTER.split("suite: starter", 1)
    lines = [line for line in rest.splitlines() if "cases.jsonl" not in line]
    opened = "\n".join(re.sub(r"^# (?=[a-z]+:|  )", "", line) for line in lines)

    suite = parse_suite(yaml.safe_load(f"suite: starter{opened}"), place="starter")

    assert (len(suite.rules), len(suite.judges), len(suite.sinks)) == (1, 1, 1)
    assert suite.budget.usd == 1.0
    assert suite.repeats == 3


@pytest.mark.parametrize(
    ("path", "file"),
    [
        pytest.param("mine.yaml", "mine.yaml", id="a file"),
        pytest.param("folder/mine.yml", "folder/mine.yml", id="a file in a new folder"),
        pytest.param("new", "new/suite.yaml", id="a folder"),
    ],
)
def test_init_takes_a_file_or_a_folder(weirbox: Cli, tmp_path: Path, path: str, file: str) -> None:
    assert weirbox("init", path).status == 0
    assert f"weirbox run {file}" in (tmp_path / file).read_text()


def test_init_leaves_a_file_that_is_there_as_it_is(weirbox: Cli, tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text("mine")

    ended = weirbox("init")

    assert ended.status == 2
    assert "'suite.yaml' is there already" in ended.err
    assert (tmp_path / "suite.yaml").read_text() == "mine"


# --- run, plan, resume ----------------------------------------------------------


def test_run_prints_one_line_of_json_and_everything_else_on_standard_error(
    weirbox: Cli, suite: Path
) -> None:
    ended = weirbox("run", suite, "--engine", "direct", "--json")

    assert ended.status == 0
    assert len(ended.out.splitlines()) == 1
    assert {
        *("run_id", "suite", "kind", "status", "finalized_at", "progress", "verdicts"),
        *("dispositions", "cost_usd", "metrics"),
    } <= set(ended.json)
    assert ended.json["status"] == "completed"
    assert ended.json["finalized_at"] is not None
    assert ended.json["progress"] == {
        **{"planned": 3, "executed": 3, "judged": 3, "exported": 3, "scored": 3},
        **{"unscored": 0, "errored": 0, "skipped": 0, "pending": 0, "cached": 0},
    }
    assert ended.json["metrics"]["same"]["passes"]["passed"] == 2
    assert "66.7 % pass (2 of 3" in ended.err
    assert "3 executed, 3 judged, 3 exported of 3" in ended.err


def test_run_prints_the_scorecard_and_how_to_open_the_dashboard(weirbox: Cli, suite: Path) -> None:
    ended = weirbox("run", suite, "--engine", "direct")

    assert "66.7 % pass (2 of 3" in ended.out
    assert "dashboard: weirbox up" in ended.err


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A running service that says it is the dashboard of the database at home."""
    settings = Settings(home=tmp_path / "home")
    services = Services(settings.home)
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    yield services.start("dashboard", argv, url="http://here", env={}, store=store_key(settings))
    services.stop("dashboard")


def test_a_run_links_to_a_dashboard_that_shows_its_database_only(
    weirbox: Cli, suite: Path, dashboard: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at_home = weirbox("run", suite, "--engine", "direct")
    monkeypatch.setenv("WEIRBOX_DATABASE_URL", "sqlite:///other.db")
    elsewhere = weirbox("run", suite, "--engine", "direct")
    monkeypatch.setenv("WEIRBOX_DATABASE_URL", "sqlite:///home/weirbox.db")
    by_its_name = weirbox("run", suite, "--engine", "direct")

    assert "dashboard: http://here/run?run=small-" in at_home.err
    assert "dashboard: weirbox up\n" in elsewhere.err
    assert "dashboard: http://here/run?run=small-" in by_its_name.err


def test_up_starts_what_does_not_run_on_the_database_in_use(
    weirbox: Cli, dashboard: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Settings(home=tmp_path / "home")
    other = Settings(home=home.home, database_url="sqlite:///other.db")

    assert to_start(home) == ["prefect", "runner"]
    assert to_start(other) == ["prefect", "dashboard", "runner"]
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert to_start(home) == ["runner"]


def test_what_tells_databases_apart_has_no_password(tmp_path: Path) -> None:
    keys = [
        store_key(Settings(home=tmp_path, database_url=f"postgresql://me:{word}@db/{name}"))
        for word, name in [("one", "a"), ("two", "a"), ("one", "b")]
    ]

    assert keys[0] == keys[1] != keys[2]


def test_a_run_that_cannot_start_is_failed_and_told_once(
    weirbox: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    suite = write_suite(
        tmp_path,
        providers={"paid": {"kind": "anthropic", "secret": "NO_SUCH_KEY"}},
        judges=[
            {"name": "good", "prompt": "correctness", "primary": {"provider": "paid", "model": "m"}}
        ],
    )

    ended = weirbox("run", suite, "--engine", "direct", "--json")

    assert (ended.status, ended.json["status"]) == (1, "failed")
    assert "NO_SUCH_KEY" in ended.json["reason"]
    assert ended.err.count("NO_SUCH_KEY") == 1


class Mistake(NamedTuple):
    arguments: tuple[str, ...]
    said: str


MISTAKES = {
    "no suite file": Mistake(("run", "none.yaml"), "there is no suite file 'none.yaml'"),
    "unknown field": Mistake(("run", "bad.yaml"), "dataset.pth: is not a known field"),
    "no dataset": Mistake(("run", "lost.yaml"), "lost.jsonl' does not exist"),
    "malformed record": Mistake(("run", "torn.yaml"), "torn.jsonl', line 2"),
    "no cases": Mistake(("plan", "none-yet.yaml"), "nothing to run"),
    "unknown case": Mistake(("run", "small.yaml", "--case", "nope"), "'nope'"),
    "unknown run": Mistake(("run", "small.yaml", "--since", "nope"), "there is no run 'nope'"),
    "two kinds": Mistake(("run", "small.yaml", "--preview", "--case", "right"), "choose one"),
    "two lists": Mistake(("run", "small.yaml", "--case", "right", "--since", "x"), "either --case"),
    "delta of nothing": Mistake(("run", "small.yaml", "--delta"), "--case ID"),
    "kind against options": Mistake(("run", "small.yaml", "--kind", "full", "--preview"), "choose"),
    "preview of none": Mistake(("run", "small.yaml", "--preview", "0"), "not '0'"),
    "preview of less": Mistake(("run", "small.yaml", "--preview=-3"), "not '-3'"),
    "preview of words": Mistake(("run", "small.yaml", "--preview=many"), "not 'many'"),
    "unknown option": Mistake(("run", "small.yaml", "--nope"), "No such option"),
    "unknown engine": Mistake(("run", "small.yaml", "--engine", "fast"), "'fast'"),
    "unknown command": Mistake(("rum", "small.yaml"), "Did you mean"),
    "resume nothing": Mistake(("resume", "latest"), "there is no run yet"),
    "cancel nothing": Mistake(("cancel", "nope"), "there is no run 'nope'"),
    "finalize nothing": Mistake(("finalize", "nope"), "there is no run 'nope'"),
    "a pool of no name": Mistake(("deploy", "--pool", "../x"), "--pool '../x': Prefect's names"),
    "a run without a name": Mistake(("retry", ""), "the run's id is empty"),
    "show nothing": Mistake(("show", "nope"), "there is no run 'nope'"),
    "status of nothing": Mistake(("status", "nope"), "there is no run 'nope'"),
    "export nothing": Mistake(("export", "nope"), "there is no run 'nope'"),
    "parquet to a terminal": Mistake(("export", "x", "-f", "parquet"), "--output"),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_message_and_leaves_no_run(
    weirbox: Cli, tmp_path: Path, mistake: Mistake
) -> None:
    write_suite(tmp_path)
    write_suite(tmp_path, "bad.yaml", dataset={"pth": "x"})
    write_suite(tmp_path, "lost.yaml", dataset={"path": "lost.jsonl"})
    write_suite(tmp_path, "torn.yaml", dataset={"path": "torn.jsonl"})
    write_suite(tmp_path, "none-yet.yaml", dataset={"records": []})
    (tmp_path / "torn.jsonl").write_text('{"id": "a", "input": 1}\n{"id": \n')
    direct = mistake.arguments[0] == "run" and "--engine" not in mistake.arguments
    arguments = [*mistake.arguments, *(("--engine", "direct") if direct else ())]

    ended = weirbox(*arguments)

    assert (ended.status, ended.out) == (2, "")
    assert mistake.said in " ".join(ended.err.split())
    assert "Traceback" not in ended.err
    assert weirbox("list", "--json").json == []


def test_a_malformed_suite_does_not_even_make_a_home(weirbox: Cli, tmp_path: Path) -> None:
    write_suite(tmp_path, "bad.yaml", dataset={"pth": "x"})

    assert weirbox("run", "bad.yaml").status == 2
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("options", "kind", "planned"),
    [
        pytest.param((), "full", 3, id="all"),
        pytest.param(("--preview",), "preview", 2, id="the suite's preview"),
        pytest.param(("--preview", "1"), "preview", 1, id="preview of one"),
        pytest.param(("--preview=1",), "preview", 1, id="preview=1"),
        pytest.param(("--kind", "preview"), "preview", 2, id="kind preview"),
        pytest.param(("--case", "also", "--case", "wrong"), "delta", 2, id="listed cases"),
        pytest.param(("--delta", "--case", "also"), "delta", 1, id="delta"),
    ],
)
def test_options_choose_the_cases(
    weirbox: Cli, tmp_path: Path, options: tuple[str, ...], kind: str, planned: int
) -> None:
    suite = write_suite(tmp_path, preview=2)

    ended = weirbox("plan", "--json", *options, suite)

    assert (ended.status, ended.json["kind"]) == (0, kind)
    assert ended.json["progress"]["planned"] == planned


def test_preview_without_a_number_may_stand_before_the_suite(weirbox: Cli, suite: Path) -> None:
    assert weirbox("plan", "--preview", suite, "--json").json["kind"] == "preview"


def test_a_delta_with_nothing_new_is_completed_and_finalized_at_once(
    weirbox: Cli, suite: Path
) -> None:
    first = ran(weirbox, suite)

    ended = weirbox("run", suite, "--since", first, "--engine", "direct", "--json")

    assert (ended.status, ended.json["status"]) == (0, "completed")
    assert ended.json["finalized_at"] is not None
    assert ended.json["progress"]["planned"] == 0


def test_a_planned_run_is_pending_until_it_is_resumed(weirbox: Cli, suite: Path) -> None:
    planned = weirbox("plan", suite, "--json").json
    resumed = weirbox("resume", planned["run_id"], "--engine", "direct", "--json")

    assert planned["status"] == "pending"
    assert (resumed.status, resumed.json["status"]) == (0, "completed")
    assert resumed.json["run_id"] == planned["run_id"]


def test_resuming_a_finalized_run_says_so(weirbox: Cli, suite: Path) -> None:
    run_id = ran(weirbox, suite)

    ended = weirbox("resume", "latest", "--json")

    assert (ended.status, ended.json["run_id"]) == (0, run_id)
    assert "nothing is left to do" in ended.err


def test_resuming_a_completed_run_finalizes_it(weirbox: Cli, suite: Path, tmp_path: Path) -> None:
    run_id = ran(weirbox, suite)
    unfinalize(tmp_path, run_id)
    assert weirbox("status", run_id, "--json").json["finalizing"] is True

    ended = weirbox("resume", run_id, "--json")

    assert (ended.status, ended.json["finalizing"]) == (0, False)
    assert ended.json["metrics"]["same"]["states"]["scored"] == 3


def unfinalize(tmp_path: Path, run_id: str) -> None:
    """Leave a run as a process would that was killed before it finalized."""
    with database(tmp_path).write() as connection:
        connection.execute(SCORECARD.delete().where(SCORECARD.c.run_id == run_id))
        connection.execute(update(RUN).where(RUN.c.id == run_id).values(finalized_at=None))


@pytest.mark.parametrize("ending", [RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.SUPERSEDED])
def test_a_run_that_ended_badly_is_not_resumed(
    weirbox: Cli, suite: Path, tmp_path: Path, ending: RunStatus
) -> None:
    run_id = weirbox("plan", suite, "--json").json["run_id"]
    with database(tmp_path).write() as connection:
        change_status(connection, run_id, to=ending, reason="for a reason")

    ended = weirbox("resume", run_id, "--json")

    assert (ended.status, ended.json["status"]) == (1, ending)
    assert "for a reason" in ended.err


# --- finalize, cancel -----------------------------------------------------------


def test_finalize_computes_the_scorecard_again(weirbox: Cli, suite: Path, tmp_path: Path) -> None:
    run_id = ran(weirbox, suite)
    unfinalize(tmp_path, run_id)

    ended = weirbox("finalize", run_id)

    assert ended.status == 0
    assert "66.7 % pass" in ended.out
    with database(tmp_path).read() as connection:
        assert queries.scorecard(connection, run_id) is not None


def test_a_run_that_is_not_completed_cannot_be_finalized(weirbox: Cli, suite: Path) -> None:
    weirbox("plan", suite)

    ended = weirbox("finalize", "latest")

    assert ended.status == 2
    assert "only a completed run can be finalized" in ended.err


def test_a_run_is_cancelled_once(weirbox: Cli, suite: Path) -> None:
    run_id = weirbox("plan", suite, "--json").json["run_id"]

    first, second = weirbox("cancel", run_id), weirbox("cancel", run_id)

    assert (first.status, second.status) == (0, 2)
    assert f"run {run_id} is cancelled already" in second.err
    found = weirbox("status", run_id, "--json").json
    assert (found["status"], found["reason"]) == ("cancelled", "cancelled on the command line")


def test_a_completed_run_stays_completed_when_it_is_cancelled(weirbox: Cli, suite: Path) -> None:
    run_id = ran(weirbox, suite)

    assert weirbox("cancel", run_id).status == 2
    assert weirbox("status", run_id, "--json").json["status"] == "completed"


# --- list, status, show ---------------------------------------------------------


def test_runs_are_listed_newest_first(weirbox: Cli, tmp_path: Path) -> None:
    suites = [write_suite(tmp_path, f"{name}.yaml", suite=name) for name in ("one", "two", "one")]
    ids = [weirbox("plan", suite, "--json").json["run_id"] for suite in suites]

    assert [run["run_id"] for run in weirbox("list", "--json").json] == ids[::-1]
    assert [r["run_id"] for r in weirbox("list", "--suite", "one", "--json").json] == ids[::-2]
    assert [r["run_id"] for r in weirbox("list", "--limit", 1, "--json").json] == ids[-1:]
    assert all(run_id in weirbox("list").out for run_id in ids)


@pytest.mark.parametrize("width", [30, 80, 120])
def test_the_list_of_runs_shows_ids_that_can_be_copied(
    weirbox: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    suite = write_suite(tmp_path, suite="event-quality")
    done, planned = ran(weirbox, suite), weirbox("plan", suite, "--json").json["run_id"]
    monkeypatch.setenv("COLUMNS", str(width))

    lines = weirbox("list").out.splitlines()

    assert [planned, "full", "pending", "0/3", "0/0", "$0.00"] in map(str.split, lines)
    assert [done, "full", "completed", "3", "2/3", "$0.00"] in map(str.split, lines)
    assert max(map(len, lines)) <= 80


def test_status_without_a_run_tells_services_and_the_newest_run(weirbox: Cli, suite: Path) -> None:
    before = weirbox("status", "--json")
    run_id = ran(weirbox, suite)
    after = weirbox("status", "--json")

    assert (before.status, before.json) == (0, {"run_id": None, "services": []})
    assert after.json["services"] == []
    assert (after.json["run_id"], after.json["status"]) == (run_id, "completed")


def test_status_and_show_give_the_same_json_as_run(weirbox: Cli, suite: Path) -> None:
    run = weirbox("run", suite, "--engine", "direct", "--json").json

    assert weirbox("status", run["run_id"], "--json").json == run
    assert weirbox("show", run["run_id"], "--json").json == run
    assert weirbox("list", "--json").json == [run]


def test_show_lists_the_trials_that_are_not_clean_and_the_timeline(
    weirbox: Cli, suite: Path
) -> None:
    ran(weirbox, suite)

    shown = weirbox("show", "latest").out

    assert "wrong" in shown
    assert "right" not in shown
    assert "full run of 3 trials" in shown


def test_show_case_gives_all_that_its_trials_left(weirbox: Cli, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, repeats=2, sinks=[{"kind": "jsonl", "path": "out"}])
    run_id = ran(weirbox, suite)

    found = weirbox("show", run_id, "wrong", "--json").json

    assert (found["run_id"], found["case"]["id"]) == (run_id, "wrong")
    assert found["case"]["target"] == "x"
    assert [trial["trial"] for trial in found["trials"]] == [1, 2]
    trial = found["trials"][0]
    assert (trial["verdict"], trial["disposition"], trial["state"]) == ("fail", "review", "scored")
    assert trial["observation"]["output"] == "b"
    assert [(s["name"], s["value"], s["passed"]) for s in trial["scores"]] == [
        ("same", False, False)
    ]
    assert [proposal["check"] for proposal in trial["proposals"]] == ["same"]
    assert [(e["sink"], e["status"]) for e in trial["exports"]] == [("jsonl", "succeeded")]
    assert trial["calls"] == []


def test_a_case_that_has_not_run_has_no_observation(weirbox: Cli, suite: Path) -> None:
    weirbox("plan", suite)

    trial = weirbox("show", "latest", "right", "--json").json["trials"][0]

    assert (trial["observation"], trial["scores"], trial["verdict"]) == (None, [], "none")
    assert weirbox("show", "latest", "right").status == 0


def test_an_unknown_case_is_a_mistake(weirbox: Cli, suite: Path) -> None:
    run_id = ran(weirbox, suite)

    ended = weirbox("show", run_id, "nope")

    assert ended.status == 2
    assert f"run {run_id} has no case 'nope'" in ended.err


HOSTILE = {
    "colours and a cleared screen": "\x1b[2J\x1b[31mred",
    "a window title": "\x1b]0;owned\x07",
    "eight-bit escapes": "\x9b2J",
    "a turned direction": "abc\u202egnp.exe",
    "markup": "[red]not markup[/red] :smile:",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_texts_under_test_are_shown_as_text(weirbox: Cli, tmp_path: Path, text: str) -> None:
    records = [{"id": text, "input": text, "target": text}]
    ran(weirbox, write_suite(tmp_path, dataset={"records": records}))

    shown = weirbox("show", "latest", text).out

    assert plain(text) in shown
    assert not set(shown) & {"\x1b", "\x07", "\x9b", "\u202e"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("a\x1b[0m", "a\\x1b[0m"),
        ("line\rover", "line\\rover"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("naïve 日本語 🙂", "naïve 日本語 🙂"),
    ],
)
def test_control_characters_stand_as_escapes(text: str, shown: str) -> None:
    assert plain(text) == shown


# --- export ---------------------------------------------------------------------


def test_export_gives_a_record_per_trial_in_three_formats(
    weirbox: Cli, suite: Path, tmp_path: Path
) -> None:
    ran(weirbox, suite)

    rows = list(csv.DictReader(io.StringIO(weirbox("export", "latest").out, newline="")))
    lines = [json.loads(x) for x in weirbox("export", "latest", "-f", "jsonl").out.splitlines()]
    weirbox("export", "latest", "-f", "parquet", "-o", "results.parquet")
    table = pq.read_table(tmp_path / "results.parquet").to_pylist()

    wanted = [
        ("right", 1, True, "scored"),
        ("wrong", 1, False, "scored"),
        ("also", 1, True, "scored"),
    ]
    columns = ("case_id", "trial", "same", "same.state")
    assert [tuple(line[name] for name in columns) for line in lines] == wanted
    assert [tuple(row[name] for name in columns) for row in table] == wanted
    assert [(row["case_id"], row["same"]) for row in rows] == [
        ("right", "true"), ("wrong", "false"), ("also", "true")
    ]  # fmt: skip
    assert list(rows[0]) == list(lines[0]) == list(table[0])


def test_export_to_a_file_is_utf_8_and_replaces_it(weirbox: Cli, tmp_path: Path) -> None:
    records = [{"id": "naïve 日本語", "input": 1, "target": 1}]
    ran(weirbox, write_suite(tmp_path, dataset={"records": records}))
    (tmp_path / "out.csv").write_text("old")

    assert weirbox("export", "latest", "-o", "out.csv") == (0, "", "")
    assert "naïve 日本語" in (tmp_path / "out.csv").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.glob("*out*")] == ["out.csv"]


def test_an_export_that_cannot_be_written_is_a_mistake(
    weirbox: Cli, suite: Path, tmp_path: Path
) -> None:
    ran(weirbox, suite)

    for form in ("csv", "parquet"):
        ended = weirbox("export", "latest", "-f", form, "-o", "no/such/folder.out")
        assert ended.status == 2
        assert "'no/such/folder.out' cannot be written" in ended.err


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+SUM(A1)", "'+SUM(A1)"),
        ("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("-5", "-5"),
        ("+1.5e3", "+1.5e3"),
        ("a=1", "a=1"),
        ("", ""),
        ('say "hi", twice\n', 'say "hi", twice\n'),
    ],
)
def test_a_csv_cell_is_no_formula(weirbox: Cli, tmp_path: Path, text: str, cell: str) -> None:
    run_id = scored(weirbox, tmp_path, [Score(name="word", value=text)])

    [row] = exported_csv(tmp_path, run_id)

    assert row["word"] == cell


def scored(weirbox: Cli, tmp_path: Path, scores: list[Score]) -> str:
    """The id of a run whose first trials have these scores."""
    suite = write_suite(tmp_path, dataset={"records": RECORDS[: max(1, len(scores))]})
    run_id: str = weirbox("plan", suite, "--json").json["run_id"]
    with database(tmp_path).write() as connection:
        for seq, score in enumerate(scores):
            connection.execute(insert(SCORE), score_columns(run_id, seq, score))
    return run_id


def exported_csv(tmp_path: Path, run_id: str) -> list[dict[str, str]]:
    into = io.StringIO(newline="")
    with database(tmp_path).read() as connection:
        write_csv(connection, run_id, into)
    return list(csv.DictReader(io.StringIO(into.getvalue(), newline="")))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_know_is_null(
    weirbox: Cli, tmp_path: Path, value: float
) -> None:
    run_id = scored(weirbox, tmp_path, [Score(name="number", value=value)])

    exported = weirbox("export", run_id, "-f", "jsonl")
    shown = weirbox("show", run_id, "right", "--json")

    assert json.loads(exported.out, parse_constant=_no_constant)["number"] is None
    assert shown.json["trials"][0]["scores"][0]["value"] is None


VALUES: dict[str, tuple[list[Any], str, list[Any]]] = {
    "bool": ([True, False], "bool", [True, False]),
    "int": ([1, 2], "int64", [1, 2]),
    "float": ([0.5, 1.5], "double", [0.5, 1.5]),
    "int and float": ([1, 0.5], "double", [1.0, 0.5]),
    "text": (["a", "1"], "string", ["a", "1"]),
    "huge int": ([2**70, 1], "string", [str(2**70), "1"]),
    "int beyond floats": ([10**400, 1], "string", [str(10**400), "1"]),
    "bool and int": ([True, 1], "string", ["true", "1"]),
    "text and number": (["a", 0.5], "string", ["a", "0.5"]),
}


@pytest.mark.parametrize(("values", "kind", "expected"), VALUES.values(), ids=VALUES)
def test_parquet_columns_have_the_type_of_all_values(
    weirbox: Cli, tmp_path: Path, values: list[Any], kind: str, expected: list[Any]
) -> None:
    run_id = scored(weirbox, tmp_path, [Score(name="mark", value=value) for value in values])

    assert weirbox("export", run_id, "-f", "parquet", "-o", "r.parquet").status == 0

    table = pq.read_table(tmp_path / "r.parquet")
    assert str(table.schema.field("mark").type) == kind
    assert table.column("mark").to_pylist() == expected
    assert table.column("seq").to_pylist() == [0, 1]


def test_checks_named_like_other_columns_get_columns_of_their_own(
    weirbox: Cli, tmp_path: Path
) -> None:
    run_id = scored(weirbox, tmp_path, [Score(name="verdict", value="odd")])
    with database(tmp_path).write() as connection:
        for name in ("same.state", "check.verdict"):
            connection.execute(insert(SCORE), score_columns(run_id, 0, Score(name=name, value=1)))

    record = json.loads(weirbox("export", run_id, "-f", "jsonl").out)

    assert record["verdict"] == "none"
    assert record["same"] is None
    assert record["check.check.verdict"] == "odd"
    assert record["check.verdict"] == 1
    assert record["check.same.state"] == 1


# --- settings, database, doctor -------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "status", "said"),
    [
        pytest.param("WEIRBOX_LEASE_S", "abc", 2, "WEIRBOX_LEASE_S", id="no number"),
        pytest.param("WEIRBOX_LEASE_S", "0", 2, "greater than 0", id="out of range"),
        pytest.param("WEIRBOX_DEPLOYMENT", "a/b", 2, "should match pattern", id="no name"),
        pytest.param("WEIRBOX_LEASE_S", "inf", 2, "less than or equal to 86400", id="endless"),
        pytest.param(
            "WEIRBOX_DATABASE_URL",
            "postgresql+asyncpg://me:hidden@127.0.0.1:1/x",
            2,
            "postgresql+psycopg://",
            id="another driver",
        ),
        pytest.param("WEIRBOX_DATABASE_URL", "nonsense", 2, "no URL", id="no url"),
        pytest.param("WEIRBOX_DATABASE_URL", "mysql://x/y", 2, "no URL", id="another database"),
        pytest.param(
            "WEIRBOX_DATABASE_URL",
            "postgresql://me:hidden@127.0.0.1:1/x",
            1,
            "cannot be used",
            id="no server",
        ),
        pytest.param("WEIRBOX_HOME", "/dev/null/home", 1, "cannot be used", id="no folder"),
    ],
)
def test_a_wrong_setting_is_one_message(
    weirbox: Cli, monkeypatch: pytest.MonkeyPatch, name: str, value: str, status: int, said: str
) -> None:
    monkeypatch.setenv(name, value)

    ended = weirbox("list")

    assert (ended.status, ended.out) == (status, "")
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert "hidden" not in ended.err


def test_an_empty_setting_is_none(weirbox: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIRBOX_LEASE_S", "")
    monkeypatch.setenv("WEIRBOX_DATABASE_URL", "")

    assert weirbox("list", "--json").json == []


def test_a_database_of_another_version_is_left_alone(weirbox: Cli, tmp_path: Path) -> None:
    weirbox("list")
    with database(tmp_path).write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

    ended = weirbox("list")

    assert ended.status == 1
    assert "another version of weirbox" in ended.err


def test_doctor_names_what_a_suite_lacks(
    weirbox: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    good = write_suite(tmp_path)
    bad = write_suite(
        tmp_path,
        "bad.yaml",
        compute={"secrets": {"TOKEN": "NO_SUCH_TOKEN"}},
        providers={"paid": {"kind": "openai", "secret": "NO_SUCH_KEY"}},
        judges=[
            {"name": "one", "prompt": "correctness", "primary": {"provider": "paid"}},
            {"name": "two", "prompt": "no-such-prompt", "primary": {"provider": "paid"}},
        ],
    )

    fine, lacking = weirbox("doctor", "--suite", good), weirbox("doctor", "--suite", bad)

    assert (fine.status, lacking.status) == (0, 1)
    assert "small, 3 records" in fine.out
    for part in ("NO_SUCH_TOKEN", "NO_SUCH_KEY", "no-such-prompt"):
        assert part in lacking.out
    assert weirbox("list", "--json").json == []


def test_doctor_goes_on_where_something_fails(
    weirbox: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIRBOX_DATABASE_URL", "postgresql://127.0.0.1:1/x")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")

    ended = weirbox("doctor")

    assert ended.status == 1
    assert "http://127.0.0.1:1/api does not answer" in " ".join(ended.out.split())
    assert "dashboard" in ended.out


def test_nothing_is_started_on_a_database_that_cannot_be_used(
    weirbox: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weirbox("list")
    with database(tmp_path).write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    monkeypatch.setattr(Services, "start", lambda *_, **__: pytest.fail("a service was started"))

    ended = weirbox("up")

    assert (ended.status, ended.out) == (1, "")
    assert "then run: weirbox migrate" in ended.err
    assert "Traceback" not in ended.err


def test_down_has_nothing_to_end(weirbox: Cli) -> None:
    assert weirbox("down") == (0, "", "nothing runs\n")


@pytest.mark.parametrize("command", ["status", "show", "resume", "cancel", "finalize", "export"])
def test_an_id_that_is_no_text_names_no_run(weirbox: Cli, command: str) -> None:
    ended = weirbox(command, "\udcff")
    assert (ended.status, "there is no run" in ended.err) == (2, True)


def test_an_export_replaces_no_device(weirbox: Cli, suite: Path, tmp_path: Path) -> None:
    assert weirbox("run", suite, "--engine", "direct").status == 0
    os.mkfifo(tmp_path / "pipe")

    ended = weirbox("export", "latest", "-o", tmp_path / "pipe")

    assert (ended.status, "a folder or a device" in ended.err) == (2, True)
    assert (tmp_path / "pipe").is_fifo()


def test_a_home_that_would_break_the_database_url_is_refused(
    weirbox: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEIRBOX_HOME", str(tmp_path / "a?b"))
    ended = weirbox("list")
    assert (ended.status, "WEIRBOX_HOME" in ended.err) == (2, True)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("content", "function"),
    [("import sys\nsys.exit(3)\n", "bad.py:f"), ("", "bad\0.py:f")],
    ids=["exits-while-loaded", "nul-in-name"],
)
def test_a_function_that_cannot_be_loaded_ends_in_a_reason(
    weirbox: Cli, suite: Path, content: str, function: str
) -> None:
    (suite.parent / "bad.py").write_text(content)
    parts = yaml.safe_load(suite.read_text())
    parts["graders"].append({"kind": "script-score", "name": "bad", "function": function})
    suite.write_text(yaml.safe_dump(parts))

    ended = weirbox("run", suite, "--engine", "direct", "--json")

    assert ended.status in (1, 2)
    assert "SystemExit: 3" in ended.err or "embedded null" in ended.err


@pytest.mark.parametrize("path", ["a\0b", "loop/x"], ids=["nul", "link-to-itself"])
def test_a_path_that_no_file_can_have_is_a_mistake(
    weirbox: Cli, suite: Path, tmp_path: Path, path: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    parts = yaml.safe_load(suite.read_text()) | {"harness": {"kind": "recorded", "path": path}}
    suite.write_text(yaml.safe_dump(parts))

    ended = weirbox("run", suite, "--engine", "direct", "--json")

    assert (ended.status, ended.out) == (2, "")
    assert "the suite names" in ended.err
