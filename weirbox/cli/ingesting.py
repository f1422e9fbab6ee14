"""Have results that were produced elsewhere enter as a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from weirbox import api
from weirbox.cli.driving import PrefectServer, drive_to_end
from weirbox.cli.edge import Screen
from weirbox.cli.wording import plural
from weirbox.ingesting import plan_ingested
from weirbox.runtime import open_runtime

if TYPE_CHECKING:
    from weirbox.settings import Settings


def ingest_file(
    screen: Screen,
    settings: Settings,
    file: Path,
    suite: Path | None,
    *,
    name: str | None,
    engine: api.Engine,
) -> int:
    """Plan a run of a file of results, drive it to its end, and show the scorecard.

    Nothing is started, and nothing written, for a mistake in the file.

    Returns:
        The exit status.
    """
    with open_runtime(settings) as runtime:
        planned = plan_ingested(runtime, file, suite, name=name)
        for warning in planned.warnings:
            screen.tell(f"warning: {warning}")
        screen.tell(f"planned {planned.run_id}: {plural(planned.trials, 'trial')} from {file.name}")
        server = PrefectServer.begin(settings, screen) if engine == "prefect" else None
        return drive_to_end(screen, runtime, planned.run_id, engine, server)
