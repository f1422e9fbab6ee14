"""Start runs of registered suites from anywhere: with the store and the Prefect server alone.

Nothing runs in the calling process: a worker, or the runner of `weirbox up`, takes the run up.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from weirbox.api import POLL_S, OriginLike, Run, read_origin, selection
from weirbox.domain.run import Progress, RunSummary
from weirbox.domain.words import RunKind
from weirbox.errors import NotPossible, ServiceError
from weirbox.runtime import open_runtime
from weirbox.services import Services, answers, configured_api_url, is_prefect_api
from weirbox.settings import Settings
from weirbox.store import queries, registry

if TYPE_CHECKING:
    import pandas as pd
    from prefect.client.orchestration import SyncPrefectClient

RETRIES = 5
"""How often a request is repeated that the server is too busy for (429, 502, 503: SQLite under
a burst); Prefect's client backs off 2, 4, 8 ... seconds, or as long as the server says."""

LOOK_S = 3.0
"""How often a flow run that has planned nothing yet is looked at in Prefect."""

FLOW = "evaluate-run"
"""The flow that suites are deployments of."""


class FlowRunState(NamedTuple):
    """Where the flow run stands in Prefect.

    Attributes:
        name: Scheduled, Late, Pending, Running, Completed, ...
        waiting: Whether no worker has taken it up.
        ended: Whether it will not go on.
        pool: The work pool whose workers it is for; None for the runner of `weirbox up`.
    """

    name: str
    message: str = ""
    waiting: bool = False
    ended: bool = False
    pool: str | None = None


class Triggered:
    """A run that was asked for; what it comes to is read from rows when it is asked for.

    Attributes:
        suite: The suite's name.
        flow_run_id: Prefect's flow run.
    """

    def __init__(self, suite: str, flow_run_id: str, settings: Settings) -> None:
        self.suite = suite
        self.flow_run_id = flow_run_id
        self._settings = settings
        self._run_id: str | None = None

    def __repr__(self) -> str:
        return f"Triggered({self.suite!r}, flow_run_id={self.flow_run_id!r})"

    @property
    def run_id(self) -> str | None:
        """The run's id; None until it is planned. It is the rows that say so, and a flow run
        that is started again after a crash goes on with the same run."""
        if self._run_id is None:
            with open_runtime(self._settings) as runtime, runtime.database.read() as connection:
                found = queries.dispatches_of(connection, self.flow_run_id)
            self._run_id = found[-1].run_id if found else None
        return self._run_id

    @property
    def run(self) -> Run:
        """The run.

        Raises:
            NotPossible: Before it is planned.
        """
        if self.run_id is None:
            state = self.state()
            raise NotPossible(
                f"the run of suite {self.suite!r} is not planned: flow run {self.flow_run_id} is "
                f"{state.name}{state.message and f': {state.message}'}"
            )
        return Run(self.run_id, self._settings)

    def state(self) -> FlowRunState:
        """Where its flow run stands: what there is to know before it is planned."""
        with _prefect(self._settings) as client:
            return _state(client, self.flow_run_id)

    def progress(self) -> Progress:
        """Counts of the run's trials; nothing is planned before a worker has taken it up."""
        return Progress() if self.run_id is None else self.run.progress()

    def wait(self, timeout_s: float | None = None) -> RunSummary:
        """Wait until the run has ended and, if it completed, is finalized.

        A driver that dies does not end the run: the coordinator has another one go on.

        Raises:
            TimeoutError: When it takes longer than `timeout_s` seconds.
            ServiceError: When the flow run ended and had planned no run.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        look = 0.0
        while self.run_id is None:
            now = time.monotonic()
            if now >= look:
                self._refuse_ended()
                look = now + LOOK_S
            if deadline is not None and now > deadline:
                raise TimeoutError(
                    f"flow run {self.flow_run_id} has planned no run after {timeout_s} s"
                )
            time.sleep(POLL_S)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return self.run.wait(left)

    def _refuse_ended(self) -> None:
        """Raise where the flow run has ended; a run that it had planned is in the store then."""
        state = self.state()
        if state.ended and self.run_id is None:
            other = "; the workers plan in another store, with another WEIRBOX_DATABASE_URL"
            raise ServiceError(
                f"no run of suite {self.suite!r} was planned: flow run {self.flow_run_id} is "
                f"{state.name}{state.message and f': {state.message}'}"
                f"{other if state.name == 'Completed' else ''}"
            )

    def cancel(self) -> None:
        """Cancel it; what is in flight settles and is recorded.

        Raises:
            NotPossible: When it has ended already.
        """
        if self.run_id is not None:
            Run(self.run_id, self._settings).cancel(reason="cancelled by who triggered it")
            return
        with _prefect(self._settings) as client:
            state = _state(client, self.flow_run_id)
            if state.ended:
                raise NotPossible(
                    f"flow run {self.flow_run_id} is {state.name} already, and cannot be cancelled"
                )
            _cancel(client, self.flow_run_id)

    def results(self) -> pd.DataFrame:
        """One row per trial, see `Run.results`.

        Raises:
            NotPossible: Before it is planned.
        """
        return self.run.results()

    async def astate(self) -> FlowRunState:
        """`state`, without blocking the event loop."""
        return await asyncio.to_thread(self.state)

    async def aprogress(self) -> Progress:
        """`progress`, without blocking the event loop."""
        return await asyncio.to_thread(self.progress)

    async def await_(self, timeout_s: float | None = None) -> RunSummary:
        """`wait`, without blocking the event loop."""
        return await asyncio.to_thread(self.wait, timeout_s)

    async def acancel(self) -> None:
        """`cancel`, without blocking the event loop."""
        await asyncio.to_thread(self.cancel)

    async def aresults(self) -> pd.DataFrame:
        """`results`, without blocking the event loop."""
        return await asyncio.to_thread(self.results)


def trigger(
    suite: str,
    *,
    kind: RunKind | str = RunKind.FULL,
    case_ids: Sequence[str] | None = None,
    since: str | None = None,
    size: int | None = None,
    origin: OriginLike = None,
    idempotency_key: str | None = None,
    settings: Settings | None = None,
) -> Triggered:
    """Start a run of a registered suite, wherever its workers are.

    Safe to repeat with the same key: the same flow run is given, and started once. The
    request itself is repeated under one key, too, while the server is too busy.

    Args:
        suite: The name it is registered under (`weirbox deploy`).
        kind: full, preview (a deterministic sample) or delta.
        case_ids: Ids, for a delta run.
        since: A run, for a delta of the cases that are new or changed since.
        size: How many cases a preview takes.
        origin: repository, pull_request, commit, branch, actor, url. A newer run of the same
            repository, pull request and suite replaces an older one.
        idempotency_key: Any text that tells this request from others, such as a commit.

    Raises:
        NotPossible: For an unknown suite, or arguments that do not fit together.
        ServiceError: When there is no Prefect server, or it refuses.
    """
    settings = settings or Settings()
    chosen = selection(kind, cases=case_ids, since=since, size=size)
    request = {
        "suite": suite,
        "kind": str(chosen.kind),
        "cases": chosen.cases,
        "since": chosen.since,
        "size": chosen.size,
        "origin": read_origin(origin).model_dump(),
    }
    _refuse_unknown(settings, suite)
    with _prefect(settings) as client:
        created = client.request(
            "POST",
            "/deployments/{id}/create_flow_run",
            path_params={"id": _deployment(client, suite, settings.deployment)},
            json={
                "parameters": {"request": request},
                "idempotency_key": idempotency_key or str(uuid.uuid4()),
                "tags": ["weirbox", f"suite:{suite}"],
            },
        )
    return Triggered(suite, str(created.json()["id"]), settings)


async def atrigger(suite: str, **options: Any) -> Triggered:
    """`trigger`, without blocking the event loop."""
    return await asyncio.to_thread(trigger, suite, **options)


def _refuse_unknown(settings: Settings, suite: str) -> None:
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        if registry.registered(connection, suite) is not None:
            return
        known = [one.name for one in registry.registered_suites(connection)]
    raise NotPossible(
        f"no suite {suite!r} is registered in this store; known: "
        f"{', '.join(map(repr, known)) or 'none'}; register it with: weirbox deploy FILE"
    )


def _deployment(client: SyncPrefectClient, suite: str, own: str) -> str:
    """The suite's deployment of this store, or else the one that takes any suite's name."""
    from prefect.exceptions import ObjectNotFound

    for name in (suite, own):
        try:
            found = client.read_deployment_by_name(f"{FLOW}/{name}")
        except ObjectNotFound:
            continue
        if f"weirbox:{own}" in found.tags:
            return str(found.id)
    raise ServiceError(
        f"the Prefect server at {client.api_url} has no deployment {FLOW}/{own} of this store; "
        "register it with: weirbox deploy"
    )


def _state(client: SyncPrefectClient, flow_run_id: str) -> FlowRunState:
    from prefect.exceptions import ObjectNotFound

    try:
        flow_run = client.read_flow_run(uuid.UUID(flow_run_id))
    except ObjectNotFound:
        return FlowRunState("deleted", ended=True)
    state = flow_run.state
    if state is None:
        return FlowRunState("Scheduled", waiting=True, pool=flow_run.work_pool_name)
    return FlowRunState(
        name=str(state.name),
        message=state.message or "",
        waiting=state.is_scheduled(),
        ended=state.is_final(),
        pool=flow_run.work_pool_name,
    )


def _cancel(client: SyncPrefectClient, flow_run_id: str) -> None:
    from prefect.states import Cancelling

    client.set_flow_run_state(uuid.UUID(flow_run_id), Cancelling())


def prefect_url(settings: Settings) -> str:
    """The API of the Prefect server that the user has chosen, or of the one of `weirbox up`.

    Raises:
        ServiceError: When there is none, when it does not answer, or is another server.
    """
    url = configured_api_url()
    if url is None:
        local = Services(settings.home).get("prefect")
        if local is None:
            raise ServiceError(
                "there is no Prefect server: set PREFECT_API_URL, or start one on this machine "
                "with: weirbox up"
            )
        url = f"{local.url}/api"
    if not answers(f"{url}/health", through_proxy=True):
        raise ServiceError(f"the Prefect server at {url} does not answer")
    if not is_prefect_api(url):
        raise ServiceError(
            f"what answers at {url} is not the API of a Prefect server; PREFECT_API_URL is its "
            "address with /api behind it, such as http://127.0.0.1:4200/api"
        )
    return url


@contextmanager
def _prefect(settings: Settings) -> Iterator[SyncPrefectClient]:
    """A client of that server.

    Raises:
        ServiceError: When there is none, when it does not answer, or when it refuses.
    """
    url = prefect_url(settings)
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectException
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    try:
        with (
            temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: RETRIES}),
            get_client(sync_client=True) as client,
        ):
            yield client
    except httpx.HTTPStatusError as error:
        raise ServiceError(f"the Prefect server refused: {_why(error.response)}") from error
    except (httpx.HTTPError, PrefectException) as error:
        raise ServiceError(f"the Prefect server at {url} failed: {error!r}") from error


def _why(response: httpx.Response) -> str:
    try:
        found = response.json()
    except ValueError:
        found = response.text
    detail = found.get("detail", found) if isinstance(found, dict) else found
    return f"{detail} (HTTP {response.status_code})"
