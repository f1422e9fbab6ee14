"""The commands; each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weirbox.cli.again_commands import export_retry, rejudge, retry
from weirbox.cli.dataset_commands import dataset_app
from weirbox.cli.edge import DONE, FAILED, invoked, load_settings, screen
from weirbox.cli.options import (
    AsJson,
    Branch,
    Cases,
    Chosen,
    Commit,
    Delta,
    Engine,
    ExportFormat,
    InCi,
    Kind,
    NoSinks,
    Preview,
    PreviewCommand,
    PullRequest,
    Repository,
    RunId,
    Since,
    SinkNames,
    SuiteFile,
    UsedEngine,
    origin_of,
    sinks_of,
)

app = typer.Typer(
    name="weirbox",
    help="Evaluate LLM agents and data pipelines: durable, streaming, judged under a budget.",
    epilog="Exit status: 0 done; 1 the run failed or was cancelled, or a service failed; "
    "2 a mistake in suite, dataset or arguments; 130 interrupted and drained.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(dataset_app, name="dataset")


def _version(wanted: bool) -> None:
    if wanted:
        from weirbox import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def weirbox(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Evaluate LLM agents and data pipelines."""


@app.command()
def init(
    path: Annotated[
        Path, typer.Argument(help="A .yaml file, or a folder for suite.yaml.")
    ] = Path(),
) -> None:
    """Write a commented starter suite, which runs as it is."""
    from weirbox.cli.starter import write_starter

    file = write_starter(path)
    with screen() as to:
        to.tell(f"wrote {file}; run it with: {invoked()} run {file}")


@app.command(cls=PreviewCommand)
def plan(
    suite: SuiteFile,
    kind: Kind = None,
    preview: Preview = None,
    delta: Delta = False,
    case: Cases = None,
    since: Since = None,
    repository: Repository = None,
    pull_request: PullRequest = None,
    commit: Commit = None,
    branch: Branch = None,
    ci: InCi = False,
    sink: SinkNames = None,
    no_sinks: NoSinks = False,
    as_json: AsJson = False,
) -> None:
    """Freeze a run without starting it."""
    from weirbox.cli.driving import plan_suite

    chosen = Chosen(kind=kind, preview=preview, delta=delta, cases=case, since=since)
    origin = origin_of(repository, pull_request, commit, branch, ci)
    with screen(as_json=as_json) as to:
        sinks = sinks_of(sink, no_sinks)
        plan_suite(to, load_settings(), suite, chosen.selection(), origin, sinks)


@app.command(cls=PreviewCommand)
def run(
    suite: SuiteFile,
    kind: Kind = None,
    preview: Preview = None,
    delta: Delta = False,
    case: Cases = None,
    since: Since = None,
    repository: Repository = None,
    pull_request: PullRequest = None,
    commit: Commit = None,
    branch: Branch = None,
    ci: InCi = False,
    sink: SinkNames = None,
    no_sinks: NoSinks = False,
    engine: UsedEngine = Engine.PREFECT,
    as_json: AsJson = False,
) -> None:
    """Plan a suite, drive it to its end, and show the scorecard."""
    from weirbox.cli.driving import run_suite

    chosen = Chosen(kind=kind, preview=preview, delta=delta, cases=case, since=since)
    origin = origin_of(repository, pull_request, commit, branch, ci)
    with screen(as_json=as_json) as to:
        wanted, sinks = chosen.selection(), sinks_of(sink, no_sinks)
        status = run_suite(to, load_settings(), suite, wanted, engine.value, origin, sinks)
    raise typer.Exit(status)


@app.command()
def ingest(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="JSON lines (.gz too), or an Inspect log (.eval)."),
    ],
    suite: Annotated[
        Path | None,
        typer.Option(metavar="SUITE", help="Whose dataset, checks, judges and sinks apply."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the suite is called.")
    ] = None,
    engine: UsedEngine = Engine.PREFECT,
    as_json: AsJson = False,
) -> None:
    """Judge and export results that were produced elsewhere, as a run."""
    from weirbox.cli.ingesting import ingest_file

    with screen(as_json=as_json) as to:
        status = ingest_file(to, load_settings(), file, suite, name=name, engine=engine.value)
    raise typer.Exit(status)


@app.command()
def resume(run: RunId, engine: UsedEngine = Engine.PREFECT, as_json: AsJson = False) -> None:
    """Go on with a run from its rows: nothing that is done is done again."""
    from weirbox.cli.driving import resume_run

    with screen(as_json=as_json) as to:
        status = resume_run(to, load_settings(), run, engine.value)
    raise typer.Exit(status)


app.command()(retry)
app.command()(rejudge)
app.command(name="export-retry")(export_retry)


@app.command()
def status(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Default: services and the newest run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show where a run stands, or which services run."""
    from weirbox.cli.reading import show_status

    with screen(as_json=as_json) as to:
        show_status(to, load_settings(), run)


@app.command()
def show(
    run: RunId,
    case: Annotated[str | None, typer.Argument(metavar="[CASE]", help="A case's id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run with its scorecard, or one case with everything its trials left."""
    from weirbox.cli.reading import show_case, show_run

    with screen(as_json=as_json) as to:
        if case is None:
            show_run(to, load_settings(), run)
        else:
            show_case(to, load_settings(), run, case)


@app.command(name="list")
def list_runs(
    suite: Annotated[str | None, typer.Option(help="Only runs of the suite of this name.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="The most runs.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    from weirbox.cli.reading import show_list

    with screen(as_json=as_json) as to:
        show_list(to, load_settings(), suite, limit)


@app.command()
def export(
    run: RunId,
    format: Annotated[
        ExportFormat, typer.Option("--format", "-f", help="Parquet needs --output.")
    ] = ExportFormat.CSV,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file; default: standard output.")
    ] = None,
) -> None:
    """Write a run's results, one record per trial, with the value and state of every check.

    CSV and JSON lines are UTF-8. In CSV, a text that a spreadsheet would run as a formula
    gets an apostrophe in front.
    """
    from weirbox.cli.exporting import export_run

    export_run(load_settings(), run, format, output)


@app.command()
def finalize(run: RunId, as_json: AsJson = False) -> None:
    """Compute the scorecard of a completed run, again if need be."""
    from weirbox.cli.driving import finalize_run

    with screen(as_json=as_json) as to:
        status = finalize_run(to, load_settings(), run)
    raise typer.Exit(status)


@app.command()
def cancel(run: RunId, as_json: AsJson = False) -> None:
    """Cancel a run; whoever drives it notices within about a second."""
    from weirbox.cli.reading import cancel_run

    with screen(as_json=as_json) as to:
        cancel_run(to, load_settings(), run)


@app.command()
def doctor(
    suite: Annotated[Path | None, typer.Option(help="Look at what this suite needs, too.")] = None,
) -> None:
    """Look at what runs depend on, and say what to do about what is missing."""
    from weirbox.cli.doctor import Level, examine, table

    findings = list(examine(load_settings(), suite))
    with screen() as to:
        to.out.print(table(findings))
    failed = any(finding.level is Level.ERROR for finding in findings)
    raise typer.Exit(FAILED if failed else DONE)


@app.command()
def deploy(
    suite: Annotated[
        list[Path] | None, typer.Argument(metavar="[SUITE]...", help="Suites to register.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A suite to unregister.")
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="The work pool whose workers do the work; made if need be.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="The pool's work queue.")] = None,
    as_json: AsJson = False,
) -> None:
    """Register suites, and weirbox's deployments with the Prefect server; again: update them."""
    from weirbox.cli.deploying import Deploying, deploy

    asked = Deploying(files=tuple(suite or ()), remove=tuple(remove or ()), pool=pool, queue=queue)
    with screen(as_json=as_json) as to:
        status = deploy(to, load_settings(), asked)
    raise typer.Exit(status)


@app.command()
def suites(as_json: AsJson = False) -> None:
    """List the registered suites, with what runs them by itself."""
    from weirbox.cli.datasets import show_suites

    with screen(as_json=as_json) as to:
        show_suites(to, load_settings())


@app.command(cls=PreviewCommand)
def trigger(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A registered suite's name.")],
    kind: Kind = None,
    preview: Preview = None,
    delta: Delta = False,
    case: Cases = None,
    since: Since = None,
    repository: Repository = None,
    pull_request: PullRequest = None,
    commit: Commit = None,
    branch: Branch = None,
    ci: InCi = False,
    key: Annotated[
        str | None, typer.Option(help="The same key gives the same run, however often.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="See it to its end, as `run` does.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a run of a registered suite on the workers, from anywhere."""
    from weirbox.cli.deploying import trigger_run

    chosen = Chosen(kind=kind, preview=preview, delta=delta, cases=case, since=since)
    origin = origin_of(repository, pull_request, commit, branch, ci)
    with screen(as_json=as_json) as to:
        status = trigger_run(
            to, load_settings(), suite, chosen.selection(), origin, key=key, wait=wait
        )
    raise typer.Exit(status)


@app.command()
def up() -> None:
    """Start Prefect server, dashboard and runner on this machine, and wait until they answer."""
    from weirbox.cli.stack import service_table, start_all, to_start

    settings = load_settings()
    with screen() as to:
        missing = to_start(settings)
        if missing:
            to.tell(f"starting {', '.join(missing)}; this takes up to half a minute")
        started = start_all(settings)
        if not missing:
            to.tell(f"running already: {', '.join(service.name for service in started)}")
        to.out.print(service_table(started))


@app.command()
def down() -> None:
    """End what `up` and `run` have started; runs go on from their rows later."""
    from weirbox.cli.stack import stop_all

    with screen() as to:
        ended = [service.name for service in stop_all(load_settings())]
        to.tell(f"ended: {', '.join(ended)}" if ended else "nothing runs")


@app.command()
def migrate(as_json: AsJson = False) -> None:
    """Bring the database's schema up to this version's; back the database up first."""
    from weirbox.cli.database import migrate_database

    with screen(as_json=as_json) as to:
        migrate_database(to, load_settings())


@app.command()
def schema() -> None:
    """Print the JSON schema of suites, for editors."""
    import json

    from weirbox.domain.spec import Suite

    found = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    typer.echo(json.dumps(found | Suite.model_json_schema(), indent=2))
