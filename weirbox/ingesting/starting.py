"""Plan and drive a run of results: the entry of the API and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from weirbox.api import Engine, Run, SuiteLike, aresume, read_suite, resume
from weirbox.domain.case import Case
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunKind
from weirbox.ingesting.preparing import prepare
from weirbox.ingesting.sources import Results, open_source
from weirbox.pipeline.growing import opened
from weirbox.pipeline.planning import Planned, Selection, plan_run
from weirbox.runtime import Runtime, open_runtime
from weirbox.settings import Settings
from weirbox.store.engine import Database
from weirbox.store.writes import note


def ingest(
    results: Results,
    suite: SuiteLike | None = None,
    *,
    name: str | None = None,
    engine: Engine = "prefect",
    settings: Settings | None = None,
) -> Run:
    """Plan, drive and finalize a run of results that were produced elsewhere.

    Args:
        results: A file of JSON lines (``.gz`` too), an Inspect log (``.eval`` or ``.json``),
            or the records themselves; docs/ingest.md says what a record holds.
        suite: Its dataset, checks, judges, budget and sinks apply. Without one the results
            are the dataset, and every score in them is a check.
        name: What the suite is called; default: its own name, the log's task, or the file's.
        engine: ``prefect`` shows the run in a Prefect server; ``direct`` needs none.

    Raises:
        UserError: For a mistake in the results or the suite; nothing is written then.
    """
    with open_runtime(settings) as runtime:
        planned = plan_ingested(runtime, results, suite, name=name)
    return resume(planned.run_id, engine=engine, settings=settings)


async def aingest(
    results: Results,
    suite: SuiteLike | None = None,
    *,
    name: str | None = None,
    engine: Engine = "prefect",
    settings: Settings | None = None,
) -> Run:
    """`ingest`, in a running event loop."""
    with open_runtime(settings) as runtime:
        planned = await asyncio.to_thread(plan_ingested, runtime, results, suite, name=name)
    return await aresume(planned.run_id, engine=engine, settings=settings)


def plan_ingested(
    runtime: Runtime, results: Results, suite: SuiteLike | None = None, *, name: str | None = None
) -> Planned:
    """Freeze a run of results without starting it; see `ingest`.

    Not a repeat when it is called again: each call plans a new run. The results are frozen
    with the plan, so that nothing reads them later.
    """
    source = open_source(results)
    read, folder = (None, str(Path.cwd())) if suite is None else read_suite(suite)
    with TemporaryDirectory(prefix="weirbox-ingest-") as temporary:
        prepared = prepare(
            source,
            Path(temporary).resolve(),
            suite=read,
            dataset=() if read is None else _cases(runtime.database, read, folder),
            name=name,
        )
        kind = RunKind.FULL if prepared.cases is None else RunKind.DELTA
        planned = plan_run(
            runtime.database,
            prepared.suite,
            folder=folder,
            selection=Selection(kind=kind, cases=prepared.cases),
            prompt_folders=runtime.prompt_folders,
        )
    with runtime.database.write() as connection:
        note(connection, planned.run_id, kind="ingested", message=prepared.summary)
        for warning in prepared.warnings:
            note(connection, planned.run_id, kind="warning", message=warning)
    return replace(planned, warnings=(*planned.warnings, *prepared.warnings))


def _cases(database: Database, suite: Suite, folder: str) -> Iterator[Case]:
    with opened(database, suite.dataset, folder=folder) as source:
        yield from source
