"""Finalize: compute a completed run's aggregates from its rows, and stamp `finalized_at`.

Safe to run twice, and to be killed at any point: it reads rows that no longer change and
writes everything in one transaction at its end. Memory is bounded by the distinct metrics,
not by the trials: rows are grouped in SQL or streamed in batches.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

from weirbox import sinks
from weirbox.domain.run import RunSummary
from weirbox.domain.seams import RunHeader
from weirbox.domain.words import RunStatus, Stage
from weirbox.errors import NotPossible
from weirbox.stats.aggregate import MetricAccumulator
from weirbox.stats.headline import headline
from weirbox.stats.intervals import wilson
from weirbox.stats.numeric import EXACT_VALUES, NumberStream, NumberSummary
from weirbox.store import aggregates, queries
from weirbox.store.engine import Connection, Database
from weirbox.store.writes import note

LEVEL = 0.95
"""The level of every interval in a scorecard."""


def finalize(database: Database, run_id: str) -> dict[str, Any]:
    """Compute and store the scorecard of a completed run.

    Returns:
        The scorecard's body.

    Raises:
        NotPossible: When the run is not completed.
    """
    with database.read() as connection:
        _refuse_unless_completed(connection, run_id)
        body = _scorecard(connection, run_id)
    with database.write() as connection:
        _refuse_unless_completed(connection, run_id)
        stamped = aggregates.save_scorecard(connection, run_id, body, _metric_rows(body))
        if stamped:
            note(connection, run_id, kind="finalized", message=_sentence(body))
    return body


def refuse_unless_completed(database: Database, run_id: str) -> None:
    """Raise `NotPossible` for a run that is not completed."""
    with database.read() as connection:
        _refuse_unless_completed(connection, run_id)


async def complete_sinks(
    database: Database, run_id: str, *, dashboard_url: str | None = None
) -> None:
    """Have every sink complete what it was sent; what fails is noted on the timeline.

    Safe to run twice: a sink replaces what it completed.

    Args:
        dashboard_url: The link to the run that the sinks were set up with.
    """
    with database.read() as connection:
        plan = queries.load_plan(connection, run_id)
        header = run_header(queries.summary(connection, run_id), dashboard_url)
    for spec in plan.suite.sinks:
        sink = sinks.build(spec)
        try:
            await sink.set_up(header)
            await sink.complete()
        except Exception as error:  # noqa: BLE001 - a failed sink never fails a run
            with database.write() as connection:
                message = f"sink {spec.name!r} is not complete: {type(error).__name__}: {error}"
                note(connection, run_id, kind="warning", message=message)
        finally:
            await sink.aclose()


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


def _refuse_unless_completed(connection: Connection, run_id: str) -> None:
    status = queries.status_of(connection, run_id)
    if status is not RunStatus.COMPLETED:
        raise NotPossible(f"run {run_id} is {status}; only a completed run can be finalized")


def _scorecard(connection: Connection, run_id: str) -> dict[str, Any]:
    run = queries.summary(connection, run_id)
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
    accumulators: dict[str, MetricAccumulator] = {}
    for name, row in aggregates.grouped_scores(connection, run_id):
        accumulator = accumulators.setdefault(name, MetricAccumulator(name))
        accumulator.add_many((row,))
    summaries = {name: accumulators[name].summary() for name in sorted(accumulators)}
    return {
        name: summary.model_dump(mode="json") | {"headline": headline(summary)}
        for name, summary in summaries.items()
    }


_SPANS = {
    Stage.EXECUTE: ("execute_started_at", "executed_at"),
    Stage.JUDGE: ("judge_started_at", "judged_at"),
    Stage.EXPORT: ("export_started_at", "exported_at"),
}


def _durations(connection: Connection, run_id: str) -> dict[str, Any]:
    spans = {str(stage): _Span() for stage in _SPANS} | {"compute": _Span()}
    for row in queries.stream_trials(connection, run_id):
        for stage, (begin, end) in _SPANS.items():
            spans[str(stage)].add(_seconds(getattr(row, begin), getattr(row, end)))
        spans["compute"].add(row.compute_s)
    summaries = {name: span.summary() for name, span in spans.items()}
    return {name: s.model_dump(mode="json") for name, s in summaries.items() if s is not None}


class _Span:
    """Durations of one stage, to the millisecond, in bounded memory."""

    def __init__(self) -> None:
        self._stream = NumberStream()
        self._fresh: Counter[float] = Counter()

    def add(self, seconds: float | None) -> None:
        if seconds is None:
            return
        self._fresh[round(seconds, 3)] += 1
        if len(self._fresh) > EXACT_VALUES:
            self._stream.fold(self._fresh.items())
            self._fresh.clear()

    def summary(self) -> NumberSummary | None:
        return self._stream.summary(self._fresh.items(), LEVEL)


def _seconds(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else (end - begin).total_seconds()


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
