"""The commands that do again what failed in a run; each imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from weirbox.cli.edge import load_settings, screen
from weirbox.cli.options import AsJson, Engine, RunId, UsedEngine
from weirbox.domain.words import FailedStage, Fault


def retry(
    run: RunId,
    errored: Annotated[bool, typer.Option("--errored", help="What broke.")] = False,
    unscored: Annotated[
        bool, typer.Option("--unscored", help="Checks that gave nothing usable.")
    ] = False,
    stage: Annotated[FailedStage | None, typer.Option(help="What failed there.")] = None,
    fault: Annotated[
        Fault | None, typer.Option("--class", help="What failed by this fault.")
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="In a new run, which carries over what this one has.")
    ] = False,
    engine: UsedEngine = Engine.PREFECT,
    as_json: AsJson = False,
) -> None:
    """Try again what failed, each trial from the stage that failed.

    What any of the options fits is tried again; without one, whatever is errored, unscored
    or not finished.
    """
    from weirbox.cli.again import retry_run
    from weirbox.pipeline.reopening import Wanted

    wanted = Wanted(errored=errored, unscored=unscored, stage=stage, fault=fault)
    with screen(as_json=as_json) as to:
        status = retry_run(to, load_settings(), run, wanted, new=new, engine=engine.value)
    raise typer.Exit(status)


def rejudge(
    run: RunId,
    judge: Annotated[str, typer.Option(metavar="NAME", help="The judge, as the suite names it.")],
    engine: UsedEngine = Engine.PREFECT,
    as_json: AsJson = False,
) -> None:
    """Ask one judge anew about all judged trials; other scores stay, and the old are kept."""
    from weirbox.cli.again import rejudge_run

    with screen(as_json=as_json) as to:
        status = rejudge_run(to, load_settings(), run, judge, engine.value)
    raise typer.Exit(status)


def export_retry(run: RunId, engine: UsedEngine = Engine.PREFECT, as_json: AsJson = False) -> None:
    """Send trials to the sinks that do not have them, and to no other."""
    from weirbox.cli.again import export_again

    with screen(as_json=as_json) as to:
        status = export_again(to, load_settings(), run, engine.value)
    raise typer.Exit(status)
