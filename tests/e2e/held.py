"""A process that runs weirbox, and is held at a stage, to be killed there.

``python -m tests.e2e.held ARGUMENTS`` is ``weirbox ARGUMENTS``. Every execution and judge call
is counted in a file of `FOLDER`; the moment that `HOLD` names is held until the file `GO` is
there.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

from weirbox import cli
from weirbox.domain.case import Case
from weirbox.domain.seams import ExportOutcome, JudgeRequest, TrialExport
from weirbox.pipeline import planning
from weirbox.sinks.folder import FolderSink
from weirbox.store import aggregates

FOLDER = "WEIRBOX_TEST_FOLDER"
HOLD = "WEIRBOX_TEST_HOLD"
HELD, GO = "held", "go"

VERDICTS = {"case-1": "fail", "case-4": "uncertain"}
"""What the judges say about cases; pass about all others."""


def execute(case: Case) -> Any:
    """The system under test: gives back its input, but for one case."""
    came("execute", case.id)
    return "wrong" if case.id == "case-2" else case.input


def ask(request: JudgeRequest) -> str:
    """A paid judge."""
    came("judge", f"{request.case_id}-{request.check}")
    verdict = VERDICTS.get(request.case_id, "pass")
    return f'{{"verdict": "{verdict}", "confidence": 0.9, "reason": "it is so"}}'


def came(stage: str, name: str) -> None:
    """Count that something came, and hold it where it is to be held."""
    folder = Path(os.environ[FOLDER])
    with (folder / f"{stage}.{name}").open("a") as file:
        file.write("x")
    if os.environ.get(HOLD) == f"{stage}.{name}":
        (folder / HELD).touch()
        while not (folder / GO).exists():
            time.sleep(0.02)


def counts(folder: Path, stage: str) -> Counter[str]:
    """How often what came, by name."""
    return Counter({path.suffix[1:]: path.stat().st_size for path in folder.glob(f"{stage}.*")})


def main() -> None:
    """Run a command, with the parts that have no function of a user's held as well."""
    begin_timeline, save_scorecard = planning._begin_timeline, aggregates.save_scorecard
    send = FolderSink.send

    def planned(*arguments: Any) -> None:
        begin_timeline(*arguments)
        came("plan", "all")

    async def sent(sink: FolderSink, trial: TrialExport) -> ExportOutcome:
        outcome = await send(sink, trial)
        came("export", trial.case_id)
        return outcome

    def saved(*arguments: Any) -> bool:
        stamped = save_scorecard(*arguments)
        came("finalize", "all")
        return stamped

    with (
        patch.object(planning, "_begin_timeline", planned),
        patch.object(FolderSink, "send", sent),
        patch.object(aggregates, "save_scorecard", saved),
    ):
        cli.main()


if __name__ == "__main__":
    main()
