"""One real Prefect server for the session, and what is read back from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterName,
)
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.context import refresh_global_settings_context

from flows.embedded import evaluate_here
from tests import factories
from tests.flows.deployed import Deployed
from weirbox.domain.run import RunSummary
from weirbox.domain.spec import Suite
from weirbox.pipeline.driver import Driver
from weirbox.runtime import open_runtime
from weirbox.services import CLIENT_ENV, Service
from weirbox.settings import Settings

NEVER = datetime.min.replace(tzinfo=UTC)

RECORDED_S = 30.0
"""How long the server may take to record what it was told, on a busy machine."""


class Shown:
    """What the Prefect server shows."""

    def flow_run(self, name: str) -> FlowRun:
        """The newest flow run of that name."""
        wanted = FlowRunFilter(name=FlowRunFilterName(any_=[name]))
        with get_client(sync_client=True) as client:
            found = client.read_flow_runs(flow_run_filter=wanted)
        return max(found, key=lambda run: run.created or NEVER)

    def task_runs(self, flow_run: FlowRun, *, count: int) -> list[TaskRun]:
        """The task runs of a flow run, once there are `count` and all have ended."""
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id]))

        def read() -> list[TaskRun] | None:
            with get_client(sync_client=True) as client:
                found = client.read_task_runs(flow_run_filter=wanted)
            ended = [run for run in found if run.state is not None and run.state.is_final()]
            return ended if len(ended) == len(found) >= count else None

        return sorted(_soon(read), key=lambda run: run.start_time or run.created)

    def artifact(self, key: str) -> Any:
        """The newest artifact of that key."""
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
        with get_client(sync_client=True) as client:
            found = client.read_artifacts(artifact_filter=wanted)
        return max(found, key=lambda artifact: artifact.created or NEVER)


class Evaluations:
    """Runs in a store of their own, driven by the flows in this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def plan(self, suite: Suite) -> str:
        """Plan a run; gives its id."""
        with open_runtime(self.settings) as runtime:
            return factories.plan(runtime.database, suite)

    def drive(
        self,
        run_id: str,
        *,
        fakes: factories.Fakes | None = None,
        watch: Callable[[Driver], None] = lambda driver: None,
    ) -> RunSummary:
        """Drive a run in the Prefect server as far as it goes."""
        with (fakes or factories.Fakes()).in_place():
            fault = asyncio.run(evaluate_here(run_id, self.settings, watch))
        assert fault is None
        return self.summary(run_id)

    def summary(self, run_id: str) -> RunSummary:
        """A run at a glance."""
        with open_runtime(self.settings) as runtime:
            return factories.summary(runtime.database, run_id)


def _soon(read: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + RECORDED_S
    while (found := read()) is None:
        assert time.monotonic() < deadline, "the server has not recorded it in time"
        time.sleep(0.2)
    return found


@pytest.fixture
def prefect_api(
    prefect_server: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The session's Prefect server as the one that the user has chosen; gives its API's URL."""
    url = f"{prefect_server.url}/api"
    with monkeypatch.context() as patch:
        for name, value in CLIENT_ENV.items():
            patch.setenv(name, value)
        patch.setenv("PREFECT_API_URL", url)
        patch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
        refresh_global_settings_context()
        yield url
    refresh_global_settings_context()


@pytest.fixture
def settings(tmp_path: Path, sqlite_template: Path) -> Settings:
    """A home with a migrated store."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "weirbox.db").write_bytes(sqlite_template.read_bytes())
    return Settings(home=home, database_url=None, secrets_dir=None, prompts_dir=None, grace_s=5)


@pytest.fixture
def evaluations(prefect_api: str, settings: Settings) -> Evaluations:
    """Drives runs in the session's Prefect server."""
    return Evaluations(settings)


@pytest.fixture
def shown(prefect_api: str) -> Shown:
    """What the session's Prefect server shows."""
    return Shown()


@pytest.fixture
def deployed(prefect_api: str, settings: Settings, tmp_path: Path) -> Iterator[Deployed]:
    """Deployments of a name of their own, and a runner for them where one is started."""
    named = settings.model_copy(update={"deployment": f"test-{uuid4().hex[:8]}"})
    with Deployed.make(named, tmp_path) as made:
        yield made
