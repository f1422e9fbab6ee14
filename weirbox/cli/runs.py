"""Runs on a terminal: the list, one run's state, and one run with its scorecard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weirbox.cli.scorecard import scorecard
from weirbox.cli.wording import cut, grid, moment, plural, text, took, usd, word
from weirbox.domain.words import RunStatus

if TYPE_CHECKING:
    from rich.console import RenderableType

    from weirbox.domain.run import RunSummary

CASE = 60
"""Characters of a case's id that are shown in a table."""

EVENT = 200
"""Characters of a timeline's entry that are shown."""


def run_list(runs: Sequence[RunSummary]) -> RenderableType:
    """One line per run."""
    rows = [
        (
            run.run_id,
            run.kind,
            word("finalizing" if run.finalizing else run.status),
            f"{run.progress.exported}/{run.progress.planned}",
            f"{run.verdicts.passed}/{run.verdicts.passed + run.verdicts.failed}",
            usd(run.cost_usd),
            moment(run.created_at)[:16],
        )
        for run in runs
    ]
    return grid(("run", "kind", "status", "done", "pass", "cost", "planned at"), rows, right=4)


def run_state(run: RunSummary, drivers: Sequence[str]) -> Iterator[RenderableType]:
    """Where a run stands."""
    counts, verdicts, dispositions = run.progress, run.verdicts, run.dispositions
    yield _title(run)
    yield _times(run)
    yield text(
        f"stages      {counts.executed} executed, {counts.judged} judged, {counts.exported} "
        f"exported of {counts.planned}; {counts.cached} cached"
    )
    yield text(
        f"trials      {counts.scored} scored, {counts.unscored} unscored, {counts.errored} "
        f"errored, {counts.skipped} skipped, {counts.pending} pending"
    )
    yield text(
        f"verdicts    {verdicts.passed} pass, {verdicts.failed} fail, {verdicts.none} none; "
        f"{dispositions.clean} clean, {dispositions.review} review, "
        f"{dispositions.quarantined} quarantined"
    )
    if run.calls or run.budget_usd is not None or run.budget_calls is not None:
        yield text(_spending(run))
    if drivers:
        yield text(f"drivers     {', '.join(drivers)}")
    metrics = [(name, metric["headline"]) for name, metric in run.metrics.items()]
    if metrics:
        yield grid(("metric", "result"), metrics)


def run_page(
    run: RunSummary,
    card: dict[str, Any] | None,
    events: Sequence[Any],
    failing: Sequence[Any],
) -> Iterator[RenderableType]:
    """A run with everything that is known of it as a whole.

    Args:
        events: Its timeline.
        failing: The first trials without a pass.
    """
    if card is None:
        yield from run_state(run, ())
    else:
        yield from scorecard(card)
        yield _times(run)
    yield text(f"dataset     {run.dataset} {run.dataset_digest[:12]}")
    if failing:
        trials = [
            (
                *(cut(trial.case_id, CASE), str(trial.trial), word(trial.verdict)),
                *(word(trial.disposition or ""), trial.deciding or ""),
            )
            for trial in failing
        ]
        yield grid(("first without a pass", "trial", "verdict", "disposition", "by"), trials)
    rows = [(moment(event.at), word(event.kind), cut(event.message, EVENT)) for event in events]
    yield grid(("at", "event", ""), rows)


def how_it_ended(run: RunSummary) -> str:
    """What a run's end means, and what can be done next."""
    match run.status:
        case RunStatus.COMPLETED if run.finalizing:
            return f"the run is completed, not finalized: weirbox finalize {run.run_id}"
        case RunStatus.COMPLETED:
            return f"every case: weirbox export {run.run_id} · one: weirbox show {run.run_id} CASE"
        case RunStatus.PENDING | RunStatus.RUNNING:
            left = run.progress.planned - run.progress.exported
            return f"{plural(left, 'trial')} left; go on with: weirbox resume {run.run_id}"
        case _:
            return f"the run is {run.status}{f': {run.reason}' if run.reason else ''}"


def _title(run: RunSummary) -> RenderableType:
    from rich.text import Text

    title = Text.assemble((f"{run.suite} · {run.kind}", "bold"), f"  {run.run_id}  ")
    title.append_text(word("finalizing" if run.finalizing else run.status))
    if run.reason:
        title.append_text(text(f": {run.reason}"))
    return title


def _times(run: RunSummary) -> RenderableType:
    line = f"times       planned {moment(run.created_at)}"
    if run.started_at is not None:
        line += f", driven for {took(run.started_at, run.completed_at)}"
    if run.finalized_at is not None:
        line += f", finalized {moment(run.finalized_at)}"
    return text(line)


def _spending(run: RunSummary) -> str:
    line = f"cost        {usd(run.cost_usd, run.unpriced_calls)} for {plural(run.calls, 'call')}"
    limits = [] if run.budget_usd is None else [usd(run.budget_usd)]
    limits += [] if run.budget_calls is None else [plural(run.budget_calls, "call")]
    line += f" of {' and '.join(limits)}" if limits else ""
    return line + (f"; {usd(run.reserved_usd)} reserved" if run.reserved_usd else "")
