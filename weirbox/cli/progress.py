"""The progress of a run that is driven here: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weirbox.cli.wording import span, usd
from weirbox.store import queries
from weirbox.store.engine import DatabaseTrouble

if TYPE_CHECKING:
    from rich.console import Console

    from weirbox.domain.run import RunSummary
    from weirbox.store.engine import Database

    Show = Callable[[RunSummary, bool], None]

LOOK_S = 0.5
"""How often the rows are looked at, at most."""

SHARE = 20
"""Looking may take one part in so many: counting a large run's rows must not slow it down."""

LINE_S = 5.0
"""How often a plain line is printed, when something has changed."""

log = logging.getLogger(__name__)

STAGES = ("executed", "judged", "exported")


@contextmanager
def shown_progress(database: Database, run_id: str, console: Console) -> Iterator[None]:
    """Show the progress of a run, derived from its rows, for the length of a block."""
    live = console.is_terminal and not console.is_dumb_terminal
    with _bars(console) if live else _lines(console) as show:
        stop = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(database, run_id, show, stop), name="progress", daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()


def _watch(database: Database, run_id: str, show: Show, stop: threading.Event) -> None:
    pause, last = 0.0, False
    while not last:
        last = stop.wait(pause)
        began = time.perf_counter()
        try:
            with database.read() as connection:
                found = queries.summary(connection, run_id)
        except DatabaseTrouble:  # which the driver tells of, and waits out
            pause = LOOK_S
            continue
        except Exception as error:  # noqa: BLE001 - a view must not end a run
            log.warning("run %s: its progress cannot be shown: %s", run_id, error)
            return
        show(found, last)
        pause = max(LOOK_S, SHARE * (time.perf_counter() - began))


@contextmanager
def _bars(console: Console) -> Iterator[Show]:
    from rich.console import Group
    from rich.live import Live
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    bars = Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
    )
    line = Text()
    ids: dict[str, Any] = {}
    began = time.monotonic()

    def show(run: RunSummary, last: bool) -> None:
        for stage in STAGES:
            done, planned = getattr(run.progress, stage), run.progress.planned
            if stage not in ids:
                ids[stage] = bars.add_task(stage, total=planned, completed=done)
            bars.update(ids[stage], completed=done)
        line.plain = f"{_sums(run)}, {span(round(time.monotonic() - began))}"

    with Live(Group(bars, line), console=console, refresh_per_second=4):
        yield show


@contextmanager
def _lines(console: Console) -> Iterator[Show]:
    began = time.monotonic()
    shown, at = "", -LINE_S

    def show(run: RunSummary, last: bool) -> None:
        nonlocal shown, at
        counts, now = run.progress, time.monotonic()
        done = ", ".join(f"{getattr(counts, stage)} {stage}" for stage in STAGES)
        told = f"{done} of {counts.planned}; {_sums(run)}"
        if told != shown and (now - at >= LINE_S or last):
            shown, at = told, now
            console.print(f"[{span(round(now - began))}] {told}", soft_wrap=True)

    yield show


def _sums(run: RunSummary) -> str:
    verdicts = run.verdicts
    sums = [f"{verdicts.passed} pass, {verdicts.failed} fail, {verdicts.none} none"]
    if run.progress.errored:
        sums.append(f"{run.progress.errored} errored")
    if run.calls:
        sums.append(f"{usd(run.cost_usd, run.unpriced_calls)} for {run.calls} calls")
    return ", ".join(sums)
