"""The Python API's second half: what failed in a run is done again.

Each opens trials in one transaction and then goes on with the run as `weirbox.resume` does,
unless the coordinator has it driven. A second call finds nothing to open until something
has failed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from weirbox.api import Engine, Run, aresume, resume
from weirbox.domain.words import FailedStage, Fault
from weirbox.pipeline import reopening
from weirbox.pipeline.reopening import Reopened, Wanted
from weirbox.runtime import find_run, open_runtime
from weirbox.settings import Settings
from weirbox.store import queries
from weirbox.store.engine import Database

__all__ = ["aexport_retry", "arejudge", "aretry", "export_retry", "rejudge", "retry"]


def retry(
    run_id: str,
    *,
    errored: bool = False,
    unscored: bool = False,
    stage: FailedStage | str | None = None,
    fault: Fault | str | None = None,
    new: bool = False,
    engine: Engine = "prefect",
    settings: Settings | None = None,
) -> Run:
    """Try again what failed in a run, each trial from the stage that failed.

    What any of the selectors fits is tried again; without one, whatever is errored,
    unscored or not finished.

    Args:
        run_id: A run's id, a unique beginning of it, or ``latest``.
        errored: What broke on our side or a provider's, failed exports included.
        unscored: Checks that were tried, and gave nothing usable.
        stage: What failed there: collect, judge or export.
        fault: What failed by this fault: infra, config, harness or agent.
        new: Leave the run as it is, and make one that carries over what it has.

    Returns:
        The run that went on: the new one, where one was made.

    Raises:
        NotPossible: When the run was ended on purpose, or, for a new one, has not ended.
    """
    work = _retrying(errored=errored, unscored=unscored, stage=stage, fault=fault, new=new)
    return _go_on(_opened(run_id, work, settings), engine, settings)


def rejudge(
    run_id: str, judge: str, *, engine: Engine = "prefect", settings: Settings | None = None
) -> Run:
    """Ask one judge anew about every judged trial that it was asked about.

    The other scores stay as they are; what is replaced is kept in the trial's history.

    Raises:
        NotPossible: When the run has no such judge, or was ended on purpose.
    """
    return _go_on(_opened(run_id, _rejudging(judge), settings), engine, settings)


def export_retry(
    run_id: str, *, engine: Engine = "prefect", settings: Settings | None = None
) -> Run:
    """Send trials to the sinks that do not have them, and to no other.

    Raises:
        NotPossible: When the run was ended on purpose.
    """
    return _go_on(_opened(run_id, reopening.export_retry, settings), engine, settings)


async def aretry(
    run_id: str, *, engine: Engine = "prefect", settings: Settings | None = None, **options: Any
) -> Run:
    """`retry`, in a running event loop."""
    return await _ago_on(run_id, _retrying(**options), engine, settings)


async def arejudge(
    run_id: str, judge: str, *, engine: Engine = "prefect", settings: Settings | None = None
) -> Run:
    """`rejudge`, in a running event loop."""
    return await _ago_on(run_id, _rejudging(judge), engine, settings)


async def aexport_retry(
    run_id: str, *, engine: Engine = "prefect", settings: Settings | None = None
) -> Run:
    """`export_retry`, in a running event loop."""
    return await _ago_on(run_id, reopening.export_retry, engine, settings)


_Work = Callable[[Database, str], Reopened]


def _retrying(
    *,
    errored: bool = False,
    unscored: bool = False,
    stage: FailedStage | str | None = None,
    fault: Fault | str | None = None,
    new: bool = False,
) -> _Work:
    wanted = Wanted(
        errored=errored,
        unscored=unscored,
        stage=None if stage is None else FailedStage(stage),
        fault=None if fault is None else Fault(fault),
    )
    return partial(reopening.retry, wanted=wanted, new=new)


def _rejudging(judge: str) -> _Work:
    return partial(reopening.rejudge, judge=judge)


def _opened(run_id: str, work: _Work, settings: Settings | None) -> tuple[str, bool]:
    """The run that goes on, and whether it is to be driven here."""
    with open_runtime(settings) as runtime:
        reopened = work(runtime.database, find_run(runtime, run_id))
        with runtime.database.read() as connection:
            managed = queries.summary(connection, reopened.run_id).managed
    return reopened.run_id, reopened.going and not managed


def _go_on(opened: tuple[str, bool], engine: Engine, settings: Settings | None) -> Run:
    run_id, here = opened
    return resume(run_id, engine=engine, settings=settings) if here else Run(run_id, settings)


async def _ago_on(run_id: str, work: _Work, engine: Engine, settings: Settings | None) -> Run:
    found, here = await asyncio.to_thread(_opened, run_id, work, settings)
    if not here:
        return Run(found, settings)
    return await aresume(found, engine=engine, settings=settings)
