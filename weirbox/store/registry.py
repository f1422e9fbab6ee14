"""Registered suites, and which growth of their datasets has been answered by a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, Row, delete, func, select, update

from weirbox.domain.base import digest, model_json
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunKind, RunStatus
from weirbox.errors import SuiteError
from weirbox.functions import absolute_suite
from weirbox.store.base import AUTO_RUN, DATASET_VERSION, RUN, SUITE, add, add_new
from weirbox.store.queries import case_digests
from weirbox.store.types import utc_now

STANDING = (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.COMPLETED)
"""Runs whose results stand, or may still come."""

ASK_AGAIN_S = 60.0
"""After how many seconds a run that was to be started, and is not known to be, is started
again; with the same key, so that the engine makes one of both."""


@dataclass(frozen=True, kw_only=True)
class RegisteredSuite:
    """A suite that the store knows by its name.

    Attributes:
        body: The suite as JSON, with the paths of its data absolute.
        folder: Where functions and files that it names are found from.
    """

    name: str
    body: dict[str, Any]
    folder: str
    registered_at: datetime

    @property
    def suite(self) -> Suite:
        """The suite.

        Raises:
            SuiteError: When it was registered by a version of weirbox with other suites.
        """
        try:
            return Suite.model_validate(self.body)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, found["loc"])) or "the suite"
            raise SuiteError(
                f"the registered suite {self.name!r} does not fit this version of weirbox "
                f"({place}: {found['msg']}): register it again with: weirbox deploy FILE"
            ) from None


def register_suite(connection: Connection, suite: Suite, *, folder: str) -> bool:
    """Keep a suite by its name, instead of what was registered under it.

    Safe to run twice: what is registered already is left as it is.

    Args:
        folder: What relative paths in the suite start from; absolute.

    Returns:
        Whether anything changed.
    """
    body: Any = model_json(absolute_suite(suite, folder))
    there = registered(connection, suite.suite)
    if there is not None and there.folder == folder and digest(there.body) == digest(body):
        return False
    row = {"name": suite.suite, "body": body, "folder": folder, "registered_at": utc_now()}
    add(connection, SUITE, [row], replace=True)
    return True


def unregister_suite(connection: Connection, name: str) -> bool:
    """Forget a suite; runs that were planned of it stay, as they are frozen.

    Returns:
        Whether it was registered; safe to run twice.
    """
    done = connection.execute(delete(SUITE).where(SUITE.c.name == name))
    return done.rowcount > 0


def registered(connection: Connection, name: str) -> RegisteredSuite | None:
    """The suite that is registered under a name."""
    row = connection.execute(select(SUITE).where(SUITE.c.name == name)).one_or_none()
    return None if row is None else RegisteredSuite(**row._mapping)


def registered_suites(connection: Connection) -> list[RegisteredSuite]:
    """All registered suites, by name."""
    rows = connection.execute(select(SUITE).order_by(SUITE.c.name))
    return [RegisteredSuite(**row._mapping) for row in rows]


# --- growth -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DueRun:
    """A run that the growth of a dataset calls for: a delta since any run of the suite.

    Attributes:
        key: The engine's idempotency key: asking again gives the same flow run.
        asked_at: When somebody was to start it who is not known to have done so.
    """

    suite: str
    dataset: str
    version: int
    digest: str
    key: str
    asked_at: datetime | None = None


def due(connection: Connection) -> list[DueRun]:
    """Registered suites with `auto_run` whose dataset has a newest version that is not answered.

    A version is answered by a run that was started for it, and by a full run that takes it.
    """
    found = []
    for suite in registered_suites(connection):
        name = suite.body["dataset"].get("name")
        if suite.body.get("auto_run") is None or name is None:
            continue
        version = _newest(connection, name)
        if version is not None and not _taken_whole(connection, suite.name, version.digest):
            run = _due(connection, suite.name, version)
            found += [] if run is None else [run]
    return found


def take(connection: Connection, run: DueRun) -> bool:
    """Undertake to start a due run, before the engine is asked for it.

    Safe to run twice, and by two coordinators at once: one of them gets True, and again
    only once the run is due again.
    """
    row = {"suite": run.suite, "dataset_digest": run.digest, "key": run.key, "at": utc_now()}
    if run.asked_at is None:
        return add_new(connection, AUTO_RUN, row)
    changed = connection.execute(
        update(AUTO_RUN)
        .where(*_row_of(run), AUTO_RUN.c.flow_run.is_(None), AUTO_RUN.c.at == run.asked_at)
        .values(at=row["at"])
    ).rowcount
    return bool(changed)


def answered(connection: Connection, run: DueRun, flow_run: str) -> None:
    """Keep the engine's id of the flow run that was started; safe to run twice."""
    connection.execute(update(AUTO_RUN).where(*_row_of(run)).values(flow_run=flow_run))


def _row_of(run: DueRun) -> tuple[Any, ...]:
    return AUTO_RUN.c.suite == run.suite, AUTO_RUN.c.dataset_digest == run.digest


def answering(connection: Connection, dataset: str) -> list[str]:
    """The registered suites that answer the growth of a dataset by a run."""
    return [
        suite.name
        for suite in registered_suites(connection)
        if suite.body.get("auto_run") is not None and suite.body["dataset"].get("name") == dataset
    ]


def known_contents(connection: Connection, suite: str) -> dict[str, str]:
    """The contents that runs of a suite have taken, by the case's key; of each the newest.

    Looks at the newest full run that completed and at what came after it, so that it reads
    about as much as one full run has. Runs that failed, were cancelled or superseded count
    for nothing.
    """
    of_suite = (RUN.c.suite == suite, RUN.c.status.in_(STANDING))
    begun = connection.execute(
        select(func.max(RUN.c.created_at)).where(
            *of_suite, RUN.c.kind == RunKind.FULL, RUN.c.status == RunStatus.COMPLETED
        )
    ).scalar()
    runs = select(RUN.c.id).where(*of_suite).order_by(RUN.c.created_at, RUN.c.id)
    if begun is not None:
        runs = runs.where(RUN.c.created_at >= begun)
    found: dict[str, str] = {}
    for run_id in connection.execute(runs).scalars().all():
        found |= case_digests(connection, run_id)
    return found


def _newest(connection: Connection, name: str) -> Row[Any] | None:
    return connection.execute(
        select(DATASET_VERSION)
        .where(DATASET_VERSION.c.name == name)
        .order_by(DATASET_VERSION.c.version.desc())
        .limit(1)
    ).one_or_none()


def _taken_whole(connection: Connection, suite: str, dataset_digest: str) -> bool:
    statement = select(RUN.c.id).where(
        RUN.c.suite == suite,
        RUN.c.dataset_digest == dataset_digest,
        RUN.c.kind == RunKind.FULL,
        RUN.c.status.in_(STANDING),
    )
    return connection.execute(statement.limit(1)).first() is not None


def _due(connection: Connection, suite: str, version: Row[Any]) -> DueRun | None:
    row = connection.execute(
        select(AUTO_RUN).where(
            AUTO_RUN.c.suite == suite, AUTO_RUN.c.dataset_digest == version.digest
        )
    ).one_or_none()
    if row is not None and (
        row.flow_run is not None or row.at > utc_now() - timedelta(seconds=ASK_AGAIN_S)
    ):
        return None
    return DueRun(
        suite=suite,
        dataset=version.name,
        version=version.version,
        digest=version.digest,
        key=f"auto-run-{digest([suite, version.digest])[:32]}",
        asked_at=None if row is None else row.at,
    )
