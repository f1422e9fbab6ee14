"""Runs on a terminal: the list, one run's state, and one run with its scorecard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weirbox.cli.edge import invoked
from weirbox.cli.scorecard import scorecard
from weirbox.cli.wording import counted, cut, facts, grid, moment, plural, text, took, usd, word
from weirbox.domain.words import Disposition, RunStatus, ScoreState

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from weirbox.domain.run import Origin, RunSummary

CASE = 60
"""Characters of a case's id that are shown in a table."""

EVENT = 200
"""Characters of a timeline's entry that are shown."""


def run_list(runs: Sequence[RunSummary]) -> Table:
    """One line per run."""
    rows = [
        (
            run.run_id,
            run.kind,
            _stand(run),
            f"{run.verdicts.passed}/{run.verdicts.passed + run.verdicts.failed}",
            usd(run.cost_usd),
        )
        for run in runs
    ]
    return grid(("run", "kind", "status", "pass", "cost"), rows, right=2)


def _stand(run: RunSummary) -> Text:
    """A run's status, and how many of its trials are done."""
    done, planned = run.progress.exported, run.progress.planned
    status = word("finalizing" if run.finalizing else run.status)
    status.append_text(text(f" {planned}" if done == planned else f" {done}/{planned}"))
    return (
        status.append(f", {plural(len(run.alerts), 'alert')}", "yellow") if run.alerts else status
    )


def run_state(run: RunSummary, drivers: Sequence[str]) -> Iterator[RenderableType]:
    """Where a run stands."""
    yield _title(run)
    yield facts(_facts(run, drivers))
    yield from _alerts(run)
    metrics = [(name, metric["headline"]) for name, metric in run.metrics.items()]
    if metrics:
        yield grid(("metric", "result"), metrics)


def run_page(
    run: RunSummary,
    card: dict[str, Any] | None,
    events: Sequence[Any],
    doubtful: Sequence[Any],
) -> Iterator[RenderableType]:
    """A run with everything that is known of it as a whole.

    Args:
        events: Its timeline.
        doubtful: The first trials that are not clean.
    """
    if card is None:
        yield from run_state(run, ())
    else:
        yield from scorecard(card)
        yield facts(_times(run))
        yield from _alerts(run)
    if doubtful:
        trials = [
            (
                *(cut(trial.case_id, CASE), str(trial.trial), word(trial.verdict)),
                *(word(trial.disposition or ""), trial.deciding or ""),
            )
            for trial in doubtful
        ]
        yield grid(("first not clean", "trial", "verdict", "disposition", "by"), trials)
    rows = [(moment(event.at), word(event.kind), cut(event.message, EVENT)) for event in events]
    yield grid(("at", "event", ""), rows)


def how_it_ended(run: RunSummary, *, shown: bool = False) -> str:
    """What a run's end means, and what can be done next.

    Args:
        shown: Whether what is not clean stands above already.
    """
    match run.status:
        case RunStatus.COMPLETED if run.finalizing:
            return f"the run is completed, not finalized: {invoked()} finalize {run.run_id}"
        case RunStatus.COMPLETED if not run.progress.planned:
            return run.reason or "the run has no trials"
        case RunStatus.COMPLETED if not shown and run.dispositions.clean < run.progress.planned:
            retry = f"\ntry again what failed: {invoked()} retry {run.run_id}"
            return (
                f"what is not clean: {invoked()} show {run.run_id}\n"
                f"one case: {invoked()} show {run.run_id} CASE"
                f"{retry if run.progress.errored or run.progress.unscored else ''}"
            )
        case RunStatus.COMPLETED:
            return f"one case: {invoked()} show {run.run_id} CASE"
        case RunStatus.PENDING | RunStatus.RUNNING:
            left = run.progress.planned - run.progress.exported
            return f"{plural(left, 'trial')} left; go on with: {invoked()} resume {run.run_id}"
        case _:
            why = f": {run.reason}" if run.reason else ""
            new = "" if run.status is RunStatus.FAILED else " --new"
            return (
                f"the run is {run.status}{why}\n"
                f"go on from what it has: {invoked()} retry {run.run_id}{new}\n"
                f"plan it again: {invoked()} run SUITE"
            )


def _alerts(run: RunSummary) -> Iterator[RenderableType]:
    if run.alerts:
        yield grid(("alert", ""), [(word(alert.kind), alert.message) for alert in run.alerts])


def _title(run: RunSummary) -> RenderableType:
    from rich.text import Text

    title = Text.assemble((f"{run.suite} · {run.kind}", "bold"), f"  {run.run_id}  ")
    title.append_text(word("finalizing" if run.finalizing else run.status))
    if run.reason:
        title.append_text(text(f": {run.reason}"))
    return title


def _facts(run: RunSummary, drivers: Sequence[str]) -> Iterator[tuple[str, object]]:
    counts = run.progress
    yield from _times(run)
    yield (
        "stages",
        f"{counts.executed} executed, {counts.judged} judged, {counts.exported} exported "
        f"of {counts.planned}; {counts.cached} cached",
    )
    yield "trials", counted(counts.model_dump(), [str(state) for state in ScoreState])
    yield "verdicts", counted(run.verdicts.model_dump(by_alias=True), ("pass", "fail", "none"))
    yield "dispositions", counted(run.dispositions.model_dump(), [str(d) for d in Disposition])
    if run.calls or run.budget_usd is not None or run.budget_calls is not None:
        yield "cost", _spending(run)
    if run.status.ended_early:
        for sink, took in run.exports.items():
            yield "exports", f"{sink}: {', '.join(f'{n} {status}' for status, n in took.items())}"
    for driver in drivers:
        yield "driver", driver


def _times(run: RunSummary) -> Iterator[tuple[str, object]]:
    yield "planned", moment(run.created_at)
    if run.started_at is not None:
        yield "begun", moment(run.started_at)
    if run.completed_at is not None:
        after = took(run.started_at or run.created_at, run.completed_at)
        yield "ended", f"{moment(run.completed_at)}, after {after}"
    if run.finalized_at is not None:
        yield "finalized", moment(run.finalized_at)
    if run.settled_at is not None:
        yield "at rest", moment(run.settled_at)
    elif run.status.ended_early:
        yield "at rest", "not yet: what is in flight settles"
    if run.parent is not None:
        yield "carries over", run.parent
    if run.origin is not None:
        yield "asked for by", _origin(run.origin)
    yield "dataset", f"{run.dataset} {run.dataset_digest[:12]}"


def _origin(origin: Origin) -> str:
    shown = {"pull_request": "pull request"}
    return ", ".join(
        f"{shown.get(name, name)} {value}"
        for name, value in origin.model_dump(exclude_none=True).items()
    )


def _spending(run: RunSummary) -> str:
    line = f"{usd(run.cost_usd, run.unpriced_calls)} for {plural(run.calls, 'call')}"
    limits = [] if run.budget_usd is None else [usd(run.budget_usd)]
    limits += [] if run.budget_calls is None else [plural(run.budget_calls, "call")]
    line += f" of {' and '.join(limits)}" if limits else ""
    return line + (f"; {usd(run.reserved_usd)} reserved" if run.reserved_usd else "")
