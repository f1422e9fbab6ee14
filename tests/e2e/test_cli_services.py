"""The local services as real processes: up, a run in them, and down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

COMMAND = [sys.executable, "-c", "from weirbox.cli import main; main()"]

SUITE = """\
suite: small
dataset: {records: [{id: a, input: x, target: x}, {id: b, input: y, target: z}]}
harness: {kind: recorded, field: input}
graders: [{kind: answer-match, name: same}]
"""

pytestmark = pytest.mark.slow


class Weirbox:
    """The command line in a folder of its own, without a Prefect server of the user's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {name: value for name, value in os.environ.items() if "PREFECT" not in name}
        self.env |= {"WEIRBOX_HOME": str(folder / "home"), "HOME": str(folder)}
        self.env.pop("WEIRBOX_DATABASE_URL", None)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert ended.returncode == 0, ended.stderr
        return ended

    def json(self, *arguments: str) -> Any:
        """The JSON of a command."""
        return json.loads(self(*arguments, "--json").stdout)

    def services(self) -> dict[str, dict[str, Any]]:
        """The services that run, by name."""
        return {service["name"]: service for service in self.json("status")["services"]}


@pytest.fixture
def weirbox(tmp_path: Path) -> Iterator[Weirbox]:
    found = Weirbox(tmp_path)
    (tmp_path / "suite.yaml").write_text(SUITE)
    yield found
    found("down")


def test_services_come_up_once_carry_runs_and_go_down(weirbox: Weirbox) -> None:
    shown = weirbox("up").stdout
    services = weirbox.services()

    assert set(services) == {"prefect", "dashboard", "runner"}
    assert all(service["url"] in shown for service in services.values())
    assert all(service["url"].startswith("http://127.0.0.1:") for service in services.values())
    assert "running already: prefect, dashboard, runner" in weirbox("up").stderr
    assert weirbox.services() == services

    run = weirbox.json("run", "suite.yaml")
    assert run["verdicts"] == {"pass": 1, "fail": 1, "none": 0}
    api = f"{services['prefect']['url']}/api"
    named = {"flow_runs": {"name": {"any_": [run["run_id"]]}}}
    [flow_run] = httpx.post(f"{api}/flow_runs/filter", json=named).json()
    assert flow_run["state_type"] == "COMPLETED"

    planned = weirbox.json("plan", "suite.yaml")
    deployment = httpx.get(f"{api}/deployments/name/evaluate-run/local").json()
    httpx.post(
        f"{api}/deployments/{deployment['id']}/create_flow_run",
        json={"parameters": {"request": {"run_id": planned["run_id"]}}},
    ).raise_for_status()
    assert _finalized(weirbox, planned["run_id"])["status"] == "completed"

    ended = weirbox("down").stderr
    assert all(name in ended for name in services)
    assert weirbox.services() == {}
    assert not any(_lives(service["pid"]) for service in services.values())


def _finalized(weirbox: Weirbox, run_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        found: dict[str, Any] = weirbox.json("status", run_id)
        if found["finalized_at"] is not None:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
