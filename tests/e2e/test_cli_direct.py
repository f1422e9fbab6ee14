"""The command line as a process, without Prefect: streams, signals and what survives them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

COMMAND = [sys.executable, "-c", "from weirbox.cli import main; main()"]

SLOW = """\
import os, pathlib, time

def answer(case):
    with open(os.environ["EXECUTED"], "a") as log:
        log.write(case.id + "\\n")
    time.sleep(float(os.environ["EACH_S"]))
    print("said by the system under test")
    os.system("echo said by its child")
    return case.input
"""


class Weirbox:
    """Starts the command line in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executed = folder / "executed.txt"
        self.env = {name: value for name, value in os.environ.items() if "PREFECT" not in name}
        self.env |= {
            "WEIRBOX_HOME": str(folder / "home"),
            "EXECUTED": str(self.executed),
            "EACH_S": "0",
            "COLUMNS": "100",
        }
        self.env.pop("WEIRBOX_DATABASE_URL", None)
        self.started: list[subprocess.Popen[str]] = []

    def suite(self, cases: int, **changes: Any) -> str:
        """Write a suite whose harness is a slow, talkative function."""
        (self.folder / "slow.py").write_text(SLOW)
        parts: dict[str, Any] = {
            "suite": "slow",
            "dataset": {
                "records": [{"id": f"c{n}", "input": n, "target": n} for n in range(cases)]
            },
            "harness": {"kind": "python", "function": "slow.py:answer"},
            "graders": [{"kind": "answer-match", "name": "same"}],
            "concurrency": {"execute": 2},
        }
        (self.folder / "slow.yaml").write_text(yaml.safe_dump(parts | changes))
        return "slow.yaml"

    def __call__(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def start(self, *arguments: str, each_s: float) -> subprocess.Popen[str]:
        """Start a command, and let it run until the first case is executed."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.env | {"EACH_S": str(each_s)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        wait_for(self.executed.exists)
        return process

    def json(self, *arguments: str) -> Any:
        """The JSON of a command."""
        return json.loads(self(*arguments, "--json").stdout.splitlines()[-1])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def weirbox(tmp_path: Path) -> Iterator[Weirbox]:
    found = Weirbox(tmp_path)
    yield found
    for process in found.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_standard_output_is_the_json_alone_whatever_user_code_prints(weirbox: Weirbox) -> None:
    ended = weirbox("run", weirbox.suite(2), "--engine", "direct", "--json")

    assert ended.returncode == 0
    assert len(ended.stdout.splitlines()) == 1
    assert json.loads(ended.stdout)["verdicts"] == {"pass": 2, "fail": 0, "none": 0}
    assert ended.stderr.count("said by the system under test") == 2
    assert ended.stderr.count("said by its child") == 2


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
    ],
)
def test_a_signal_drains_and_resume_goes_on_without_doing_anything_twice(
    weirbox: Weirbox, number: int, status: int
) -> None:
    process = weirbox.start("run", weirbox.suite(8), "--engine", "direct", "--json", each_s=0.5)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    drained = json.loads(out)

    assert process.returncode == status
    assert drained["status"] == "running"
    assert 0 < drained["progress"]["executed"] < 8
    assert "draining" in err
    assert f"resume {drained['run_id']}" in err

    resumed = weirbox.json("resume", "latest", "--engine", "direct")
    assert (resumed["run_id"], resumed["status"]) == (drained["run_id"], "completed")
    assert resumed["progress"]["exported"] == 8
    assert Counter(weirbox.executed.read_text().split()) == {f"c{n}": 1 for n in range(8)}


def test_a_second_signal_ends_at_once_and_the_run_goes_on_later(weirbox: Weirbox) -> None:
    process = weirbox.start("run", weirbox.suite(4), "--engine", "direct", "--json", each_s=5)
    process.send_signal(signal.SIGINT)
    seen = ""
    while "draining" not in seen:
        seen = process.stderr.readline()  # type: ignore[union-attr]
        assert seen
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)

    assert process.returncode == 130
    assert json.loads(out)["progress"]["executed"] == 0
    resumed = weirbox.json("resume", "latest", "--engine", "direct")
    assert (resumed["status"], resumed["verdicts"]["pass"]) == ("completed", 4)


def test_a_run_that_is_cancelled_elsewhere_ends_with_status_1(weirbox: Weirbox) -> None:
    process = weirbox.start("run", weirbox.suite(50), "--engine", "direct", "--json", each_s=0.5)

    assert weirbox("cancel", "latest").returncode == 0
    out, err = process.communicate(timeout=30)

    assert process.returncode == 1
    assert json.loads(out)["status"] == "cancelled"
    assert json.loads(out)["progress"]["pending"] > 0
    assert "cancelled on the command line" in err


def test_a_killed_run_is_resumed_from_its_rows(weirbox: Weirbox) -> None:
    process = weirbox.start("run", weirbox.suite(6), "--engine", "direct", each_s=0.3)
    wait_for(lambda: weirbox.json("status")["progress"]["exported"] >= 2)
    process.kill()
    process.communicate()
    done = weirbox.json("status")["progress"]["exported"]

    resumed = weirbox.json("resume", "latest", "--engine", "direct")

    assert resumed["status"] == "completed"
    times = Counter(weirbox.executed.read_text().split())
    assert set(times) == {f"c{n}" for n in range(6)}
    assert sum(times.values()) - 6 <= 6 - done


def test_a_terminal_shows_bars(weirbox: Weirbox) -> None:
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "run", weirbox.suite(3), "--engine", "direct", "--json"],
        cwd=weirbox.folder,
        env=weirbox.env | {"TERM": "xterm", "NO_COLOR": "1", "EACH_S": "0.1"},
        stdout=subprocess.PIPE,
        stderr=inner,
    )
    os.close(inner)
    shown = _everything(terminal)
    out, _ = process.communicate(timeout=30)

    assert json.loads(out)["progress"]["exported"] == 3
    for stage in ("executed", "judged", "exported"):
        assert re.search(rf"{stage} +━+ 3/3", shown)
    assert not re.search("\x1b\\[[0-9;]*3[0-7]m", shown)


def _everything(terminal: int) -> str:
    """All that comes to a terminal until nobody holds its other end any more."""
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(terminal)
    return shown.decode()


def test_a_terminal_that_knows_ascii_only_gets_escapes(weirbox: Weirbox) -> None:
    records = [{"id": "naïve 🙂", "input": "Ω", "target": "Ω"}]
    suite = weirbox.suite(
        1, dataset={"records": records}, harness={"kind": "recorded", "field": "input"}
    )
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}

    ran = weirbox("run", suite, "--engine", "direct", **ascii_only)
    shown = weirbox("show", "latest", "naïve 🙂", PYTHONIOENCODING="ascii")

    assert (ran.returncode, shown.returncode) == (0, 0)
    assert "100.0 % pass" in ran.stdout
    assert "na\\xefve \\U0001f642" in shown.stdout


def test_closed_streams_do_not_let_output_into_other_files(weirbox: Weirbox) -> None:
    suite = weirbox.suite(2)
    line = f"exec {' '.join(map(_quoted, COMMAND))} run {suite} --engine direct <&- >&- 2>&-"

    ended = subprocess.run(["sh", "-c", line], cwd=weirbox.folder, env=weirbox.env, timeout=60)

    assert ended.returncode == 0
    assert weirbox.json("status")["verdicts"]["pass"] == 2


def _quoted(word: str) -> str:
    return f'"{word}"'


def test_a_reader_that_stops_reading_is_no_error(weirbox: Weirbox) -> None:
    weirbox("run", weirbox.suite(200), "--engine", "direct")
    line = f"{' '.join(map(_quoted, COMMAND))} export latest -f jsonl | head -n 1"

    ended = subprocess.run(
        ["sh", "-c", line],
        cwd=weirbox.folder,
        env=weirbox.env,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert json.loads(ended.stdout)["case_id"] == "c0"
    assert ended.stderr == ""


def test_a_mistake_is_told_without_a_traceback(weirbox: Weirbox) -> None:
    ended = weirbox("run", "nowhere.yaml", "--json")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "error: there is no suite file 'nowhere.yaml'; `weirbox init` writes one\n"
    )
