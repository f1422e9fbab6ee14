"""Finalize: compute a completed run's aggregates from its rows, and stamp `finalized_at`.

Safe to run twice, and to be killed at any point: it reads rows that no longer change and
writes everything in one transaction at its end. Memory is bounded by the distinct metrics,
not by the trials: rows are grouped in SQL or streamed in batches.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from weirbox import sinks
from weirbox.domain.exporting import SinkSpec
from weirbox.domain.run import Alert, RunSummary
from weirbox.domain.seams import RunHeader
from weirbox.domain.words import RunStatus
from weirbox.errors import NotPossible
from weirbox.pipeline.alerting import alerts_of
from weirbox.stats.aggregate import MetricAccumulator
from weirbox.stats.headline import headline
from weirbox.stats.intervals import wilson
from weirbox.stats.numeric import NumberStream, NumberSummary
from weirbox.store import aggregates, queries
from weirbox.store.alerts import alert_facts, raise_alerts
from weirbox.store.engine import Connection, Database
from weirbox.store.writes import hold_run, note

LEVEL = 0.95
"""The level of every interval in a scorecard."""

EXACT_SPANS = 50_000
"""Distinct durations of a stage, in milliseconds, that are kept as they are: about 5 MB."""


COMPLETE_S = 60.0
"""How long a sink may take to complete a run, besides its trials."""

COMPLETE_TRIAL_S = 0.002
"""How long it may take for each of them: ten times what the slowest of ours needs."""


def finalize(database: Database, run_id: str) -> dict[str, Any]:
    """Compute and store the scorecard of a completed run, and raise its alerts.

    Where the run was opened again and has completed meanwhile, what was computed is of
    before, and it begins anew.

    Returns:
        The scorecard's body.

    Raises:
        NotPossible: When the run is not completed.
    """
    while True:
        found = database.fetch(partial(_compute, run_id=run_id))
        if database.persist(partial(_save, run_id=run_id, found=found)):
            return found.body


class _Found(NamedTuple):
    completed_at: datetime | None
    body: dict[str, Any]
    alerts: list[Alert]


def _compute(connection: Connection, run_id: str) -> _Found:
    completed_at = _completed_at(connection, run_id)
    body = _scorecard(connection, run_id)
    return _Found(completed_at, body, alerts_of(alert_facts(connection, run_id, card=body)))


def _save(connection: Connection, run_id: str, found: _Found) -> bool:
    """Store everything at once; False when the run has completed once more meanwhile."""
    hold_run(connection, run_id)
    if _completed_at(connection, run_id) != found.completed_at:
        return False
    if aggregates.save_scorecard(connection, run_id, found.body, _metric_rows(found.body)):
        for sink, error in found.body["export_errors"].items():
            message = f"sink {sink!r} took no trial; the first error: {error}"
            note(connection, run_id, kind="warning", message=message)
        note(connection, run_id, kind="finalized", message=_sentence(found.body))
    raise_alerts(connection, run_id, found.alerts)
    return True


def refuse_unless_completed(database: Database, run_id: str) -> None:
    """Raise `NotPossible` for a run that is not completed."""
    database.fetch(partial(_completed_at, run_id=run_id))


def _completed_at(connection: Connection, run_id: str) -> datetime | None:
    run = queries.run_row(connection, run_id)
    if run.status != RunStatus.COMPLETED:
        raise NotPossible(f"run {run_id} is {run.status}; only a completed run can be finalized")
    completed_at: datetime | None = run.completed_at
    return completed_at


async def complete_sinks(
    database: Database, run_id: str, *, dashboard_url: str | None = None
) -> None:
    """Have every sink complete what it was sent; what fails is noted on the timeline.

    Safe to run twice: a sink replaces what it completed. One that hangs is left alone
    after a while, and keeps nothing else from being done.

    Args:
        dashboard_url: The link to the run that the sinks were set up with.
    """
    plan = database.fetch(partial(queries.load_plan, run_id=run_id))
    run = database.fetch(partial(queries.summary, run_id=run_id))
    header = run_header(run, dashboard_url)
    patience = COMPLETE_S + COMPLETE_TRIAL_S * run.progress.planned
    for spec in plan.suite.sinks:
        try:
            await _within(patience, _complete(spec, header))
        except Exception as error:  # noqa: BLE001 - a failed sink never fails a run
            message = f"sink {spec.name!r} is not complete: {type(error).__name__}: {error}"
            database.persist(partial(note, run_id=run_id, kind="warning", message=message))


async def _complete(spec: SinkSpec, header: RunHeader) -> None:
    sink = sinks.build(spec, _no_secret)
    try:
        await sink.set_up(header)
        await sink.complete()
    finally:
        await sink.aclose()


def _no_secret(name: str) -> str:
    """A sink is completed from what it was sent: nothing is sent to a platform then."""
    raise NotPossible(f"secret {name!r} is not read when a sink is completed")


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Wait for work, but not for longer, and not for its being cancelled either."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise TimeoutError(f"it takes longer than {seconds:g} s")
    task.result()


def run_header(run: RunSummary, dashboard_url: str | None = None) -> RunHeader:
    """What sinks are told about a run."""
    return RunHeader(
        run_id=run.run_id,
        suite=run.suite,
        kind=run.kind,
        dataset_digest=run.dataset_digest,
        created_at=run.created_at.isoformat(),
        dashboard_url=dashboard_url,
    )


def _scorecard(connection: Connection, run_id: str) -> dict[str, Any]:
    run = queries.summary(connection, run_id, from_rows=True)
    return {
        "run_id": run_id,
        "suite": run.suite,
        "kind": run.kind,
        "dataset": run.dataset,
        "dataset_digest": run.dataset_digest,
        "progress": run.progress.model_dump(),
        "verdicts": run.verdicts.model_dump(by_alias=True),
        "dispositions": run.dispositions.model_dump(),
        "pass_rate": _pass_rate(run),
        "metrics": _metrics(connection, run_id),
        "cost": {
            "usd": run.cost_usd,
            "calls": run.calls,
            "unpriced_calls": run.unpriced_calls,
            "by_tier_and_model": aggregates.costs(connection, run_id),
        },
        "seconds": _durations(connection, run_id),
        "categories": aggregates.categories(connection, run_id),
        "errors": aggregates.errors(connection, run_id),
        "unmeasured": aggregates.unmeasured(connection, run_id),
        "exports": aggregates.exports(connection, run_id),
        "export_errors": aggregates.export_errors(connection, run_id),
    }


def _pass_rate(run: RunSummary) -> dict[str, Any] | None:
    passed, failed = run.verdicts.passed, run.verdicts.failed
    interval = wilson(passed, passed + failed)
    if interval is None:
        return None
    return {
        "passed": passed,
        "of": passed + failed,
        "rate": passed / (passed + failed),
        "interval": interval.model_dump(mode="json"),
    }


def _metrics(connection: Connection, run_id: str) -> dict[str, Any]:
    found = {}
    for name, rows in groupby(aggregates.grouped_scores(connection, run_id), key=itemgetter(0)):
        accumulator = MetricAccumulator(name)
        accumulator.add_many(row for _, row in rows)
        summary = accumulator.summary(level=LEVEL)
        found[name] = summary.model_dump(mode="json") | {"headline": headline(summary)}
    return dict(sorted(found.items()))


def _durations(connection: Connection, run_id: str) -> dict[str, Any]:
    spans = {str(name): _Span() for name in (*aggregates.SPANS, "compute")}
    for batch in aggregates.durations(connection, run_id):
        for span, milliseconds in zip(spans.values(), batch, strict=True):
            span.add(milliseconds)
    summaries = {name: span.summary() for name, span in spans.items()}
    return {name: s.model_dump(mode="json") for name, s in summaries.items() if s is not None}


class _Span:
    """Durations of one stage, in seconds, in bounded memory."""

    def __init__(self) -> None:
        self._stream = NumberStream()
        self._fresh: Counter[int | None] = Counter()

    def add(self, milliseconds: Sequence[int | None]) -> None:
        self._fresh.update(milliseconds)
        if len(self._fresh) > EXACT_SPANS:
            self._stream.fold(self._seconds())
            self._fresh.clear()

    def summary(self) -> NumberSummary | None:
        return self._stream.summary(self._seconds(), LEVEL)

    def _seconds(self) -> Iterator[tuple[float, int]]:
        return ((ms / 1000, count) for ms, count in self._fresh.items() if ms is not None)


def _metric_rows(body: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, metric in body["metrics"].items():
        passes, numbers = metric["passes"], metric["numbers"]
        rows.append(
            {
                "name": name,
                "rate": passes["rate"] if passes else None,
                "mean": numbers["mean"] if numbers else None,
                "scored": metric["states"]["scored"],
                "body": metric,
            }
        )
    return rows


def _sentence(body: dict[str, Any]) -> str:
    verdicts, planned = body["verdicts"], body["progress"]["planned"]
    return f"{verdicts['pass']} pass, {verdicts['fail']} fail, {verdicts['none']} none of {planned}"
