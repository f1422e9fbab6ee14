"""Doing again what failed, on the command line and in Python."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from sqlalchemy import update

import weirbox
from weirbox import cli
from weirbox.domain.words import RunStatus
from weirbox.errors import NotPossible
from weirbox.pipeline import finalizing, reopening
from weirbox.store import queries
from weirbox.store.base import RUN, TRIAL
from weirbox.store.engine import Database, open_database
from weirbox.store.writes import change_status

ANSWERS = """
import os

def answer(case):
    if case.id == "b" and not os.path.exists({mended!r}):
        raise RuntimeError("not today")
    return case.input

def judge(*given, **more):
    return '{{"verdict": "pass", "confidence": 0.9, "reason": "fine"}}'
"""


class Ended(NamedTuple):
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON, which is the last line of standard output."""
        return json.loads(self.out.splitlines()[-1])


Cli = Callable[..., Ended]


@pytest.fixture
def run_cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Cli:
    """The command line, at home in a fresh folder with a suite whose case b fails at first."""
    for name in ("WEIRBOX_DATABASE_URL", "PREFECT_API_URL", "WEIRBOX_DASHBOARD_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WEIRBOX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.py").write_text(ANSWERS.format(mended=str(tmp_path / "mended")))
    primary = {"provider": "mine", "model": "small"}
    prompt = {"id": "tone", "version": 1, "user": "Fine? {{ output }}"}
    parts = {
        "suite": "flaky",
        "dataset": {"records": [{"id": one, "input": one, "target": one} for one in "abc"]},
        "harness": {"kind": "python", "function": "answers.py:answer"},
        "graders": [{"kind": "answer-match", "name": "match"}],
        "providers": {"mine": {"kind": "python", "function": "answers.py:judge"}},
        "judges": [{"name": "tone", "prompt": prompt, "primary": primary}],
        "sinks": [{"kind": "jsonl", "path": "out"}],
    }
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(parts))

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["weirbox", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    return run


@contextmanager
def store(folder: Path) -> Iterator[Database]:
    opened = open_database(f"sqlite:///{folder}/home/weirbox.db")
    yield opened
    opened.close()


def mend(folder: Path) -> None:
    (folder / "mended").touch()


DIRECT = ("--engine", "direct")


def test_retry_says_what_it_does_drives_the_run_and_keeps_what_failed(
    run_cli: Cli, tmp_path: Path
) -> None:
    first = run_cli("run", "suite.yaml", *DIRECT, "--json").json
    mend(tmp_path)

    ended = run_cli("retry", "latest", *DIRECT, "--json")

    assert ended.status == 0
    assert f"run {first['run_id']} goes on: 1 trial from execute" in ended.err
    assert ended.json["run_id"] == first["run_id"]
    assert ended.json["verdicts"] == {"pass": 3, "fail": 0, "none": 0}
    assert ended.json["calls"] == 3
    [trial] = run_cli("show", "latest", "b", "--json").json["trials"]
    assert (trial["round"], trial["verdict"]) == (2, "pass")
    kept = [(a["round"], a["stage"], a["error_kind"]) for a in trial["attempts"]]
    assert kept == [(1, "execute", "harness_error"), (1, "judge", None), (1, "export", None)]
    replaced = [(old["score"]["name"], old["score"]["state"]) for old in trial["replaced_scores"]]
    assert replaced == [("match", "errored"), ("tone", "errored")]
    page = run_cli("show", "latest", "b").out
    assert "not today" in page
    assert "replaced score" in page


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("retry", "latest"), "nothing in it failed"),
        (("retry", "latest", "--new"), "nothing in it failed"),
        (("retry", "latest", "--errored"), "nothing in it fits the selectors"),
        (("export-retry", "latest"), "every sink has every trial that has come to its end"),
    ],
    ids=" ".join,
)
def test_with_nothing_to_do_nothing_is_changed(
    run_cli: Cli, tmp_path: Path, command: tuple[str, ...], why: str
) -> None:
    mend(tmp_path)
    before = run_cli("run", "suite.yaml", *DIRECT, "--json").json

    ended = run_cli(*command, *DIRECT, "--json")

    assert (ended.status, ended.json) == (0, before)
    assert f"{why}; nothing is changed" in ended.err
    assert len(run_cli("list", "--json").json) == 1


def test_a_new_run_is_named_and_driven(run_cli: Cli, tmp_path: Path) -> None:
    first = run_cli("run", "suite.yaml", *DIRECT, "--json").json
    mend(tmp_path)

    ended = run_cli("retry", "latest", "--new", *DIRECT, "--json")

    found = ended.json
    assert found["parent"] == first["run_id"]
    assert f"run {found['run_id']} carries over {first['run_id']}" in ended.err
    assert (found["progress"]["scored"], found["progress"]["cached"]) == (3, 2)
    assert len((tmp_path / "out" / found["run_id"] / "complete.json").read_text()) > 0


def test_rejudge_asks_the_judge_and_names_those_there_are(run_cli: Cli, tmp_path: Path) -> None:
    mend(tmp_path)
    run_cli("run", "suite.yaml", *DIRECT)

    wrong = run_cli("rejudge", "latest", "--judge", "nobody")
    ended = run_cli("rejudge", "latest", "--judge", "tone", *DIRECT, "--json")

    assert wrong.status == 2
    assert "has no judge 'nobody'; it has 'tone'" in wrong.err
    assert (ended.status, ended.json["calls"]) == (0, 6)


def test_a_run_of_the_coordinator_s_is_left_to_it(run_cli: Cli, tmp_path: Path) -> None:
    run_cli("run", "suite.yaml", *DIRECT)
    with store(tmp_path) as database, database.write() as connection:
        connection.execute(update(RUN).values(managed=True))

    ended = run_cli("retry", "latest", "--json")

    assert (ended.status, ended.json["status"], ended.json["finalized_at"]) == (0, "running", None)
    assert "the coordinator has it driven" in ended.err
    with store(tmp_path) as database, database.read() as connection:
        stages = connection.execute(TRIAL.select().order_by(TRIAL.c.seq)).all()
    assert [row.stage for row in stages] == ["done", "execute", "done"]


def test_a_cancelled_run_is_refused_with_the_way_out(run_cli: Cli, tmp_path: Path) -> None:
    run_id = run_cli("plan", "suite.yaml", "--json").json["run_id"]
    with store(tmp_path) as database, database.write() as connection:
        change_status(connection, run_id, to=RunStatus.CANCELLED)
    mend(tmp_path)

    refused = run_cli("retry", run_id, *DIRECT)
    again = run_cli("retry", run_id, "--new", *DIRECT, "--json")

    assert refused.status == 2
    assert f"weirbox retry {run_id} --new" in refused.err
    assert again.json["verdicts"]["pass"] == 3


def test_python_does_the_same(run_cli: Cli, tmp_path: Path) -> None:
    run_id = run_cli("run", "suite.yaml", *DIRECT, "--json").json["run_id"]
    mend(tmp_path)

    done = weirbox.retry(run_id, fault="harness", engine="direct")
    assert done.summary().verdicts.passed == 3
    assert weirbox.retry(run_id, stage="judge", engine="direct").summary() == done.summary()
    with pytest.raises(ValueError, match="nowhere"):
        weirbox.retry(run_id, stage="nowhere", engine="direct")

    async def twins() -> list[int]:
        asked = await weirbox.arejudge(run_id, "tone", engine="direct")
        sent = await weirbox.aexport_retry(run_id, engine="direct")
        tried = await weirbox.aretry(run_id, errored=True, engine="direct")
        return [run.summary().calls for run in (asked, sent, tried)]

    assert asyncio.run(twins()) == [6, 6, 6]
    with pytest.raises(NotPossible, match="no judge 'nobody'"):
        weirbox.rejudge(run_id, "nobody", engine="direct")
    assert weirbox.export_retry(run_id, engine="direct").id == run_id
    with store(tmp_path) as database, database.read() as connection:
        assert queries.status_of(connection, run_id) is RunStatus.COMPLETED


def test_a_run_that_is_retried_while_it_is_finalized_goes_on_in_its_own_process(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finalize = finalizing.finalize

    def retried_first(database: Database, run_id: str) -> dict[str, Any]:
        if not (tmp_path / "mended").exists():
            (tmp_path / "mended").touch()
            assert reopening.retry(database, run_id, reopening.Wanted()).going
        return finalize(database, run_id)

    monkeypatch.setattr(finalizing, "finalize", retried_first)

    ended = run_cli("run", "suite.yaml", "--engine", "direct", "--json")

    assert (ended.status, ended.json["status"], ended.json["finalizing"]) == (0, "completed", False)
    assert ended.json["progress"]["scored"] == 3
