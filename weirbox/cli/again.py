"""Do again what failed in a run: `retry`, `rejudge`, `export-retry`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from weirbox import api
from weirbox.cli.driving import resume_run
from weirbox.cli.edge import DONE, Screen
from weirbox.cli.wording import plural
from weirbox.domain.words import FailedStage, TrialStage
from weirbox.pipeline import reopening
from weirbox.pipeline.reopening import Reopened, Wanted
from weirbox.runtime import find_run, open_runtime
from weirbox.store import queries

if TYPE_CHECKING:
    from weirbox.settings import Settings
    from weirbox.store.engine import Database


def retry_run(
    screen: Screen, settings: Settings, run: str, wanted: Wanted, *, new: bool, engine: api.Engine
) -> int:
    """Try again what failed in a run; gives the exit status."""
    if wanted.stage is FailedStage.COLLECT:
        screen.tell("traces are pulled where trials are executed, so these are executed again")
    nothing = "nothing in it failed" if wanted.everything else "nothing in it fits the selectors"
    work = partial(reopening.retry, wanted=wanted, new=new)
    return _again(screen, settings, run, work, engine, nothing=nothing)


def rejudge_run(
    screen: Screen, settings: Settings, run: str, judge: str, engine: api.Engine
) -> int:
    """Have one judge asked anew; gives the exit status."""
    nothing = f"no judged trial has a score of judge {judge!r} that could be replaced"
    work = partial(reopening.rejudge, judge=judge)
    return _again(screen, settings, run, work, engine, nothing=nothing)


def export_again(screen: Screen, settings: Settings, run: str, engine: api.Engine) -> int:
    """Send what sinks do not have; gives the exit status."""
    nothing = "every sink has every trial that has come to its end"
    return _again(screen, settings, run, reopening.export_retry, engine, nothing=nothing)


def _again(
    screen: Screen,
    settings: Settings,
    run: str,
    work: Callable[[Database, str], Reopened],
    engine: api.Engine,
    *,
    nothing: str,
) -> int:
    with open_runtime(settings) as runtime:
        run_id = find_run(runtime, run)
        reopened = work(runtime.database, run_id)
        with runtime.database.read() as connection:
            found = queries.summary(connection, reopened.run_id)
    if not reopened.going:
        screen.tell(f"run {run_id}: {nothing}; nothing is changed")
    else:
        screen.tell(_told(run_id, reopened))
    if reopened.going and not found.managed:
        return resume_run(screen, settings, reopened.run_id, engine)
    if reopened.going:
        screen.tell("the coordinator has it driven")
    screen.json(found.to_json())
    return DONE


def _told(run_id: str, reopened: Reopened) -> str:
    opened = [
        f"{plural(reopened.opened[stage], 'trial')} from {stage}"
        for stage in TrialStage
        if reopened.opened[stage]
    ]
    what = ", ".join(opened) or "what is not finished"
    if reopened.run_id != run_id:
        return f"run {reopened.run_id} carries over {run_id} and does again: {what}"
    return f"run {run_id} goes on: {what}"
