"""What drivers are driven with in tests: harnesses, judges and limits made to measure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tests.factories import PASSES
from weirbox.domain.case import Case
from weirbox.domain.seams import Handle, TrialContext
from weirbox.domain.trace import Observation
from weirbox.pipeline.driver import Driver
from weirbox.testing import ReplayJudge, ScriptedHarness


@dataclass
class Harness(ScriptedHarness):
    """Answers after a time that each case may have for itself."""

    delay_of: Callable[[Case], float] = lambda case: 0.0

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        await asyncio.sleep(self.delay_of(case))
        return await super().run(case, handle=handle, context=context)


def number(case: Case) -> int:
    """The place of a case in the dataset."""
    return int(case.id.removeprefix("case-"))


def most_at_once(spans: Sequence[tuple[datetime, datetime]]) -> int:
    """How many spans overlap at most."""
    steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    running = highest = 0
    for _, step in sorted(steps):
        running += step
        highest = max(highest, running)
    return highest


def passing(delay_s: float = 0.0) -> ReplayJudge:
    """A judge that passes everything, free of charge."""
    return ReplayJudge(lambda request: PASSES, delay_s=delay_s)


def limits(execute: int = 4, judge: int = 4, export: int = 4, **more: int) -> dict[str, int]:
    """Declared concurrency."""
    return {"execute": execute, "judge": judge, "export": export, **more}


SINK = ({"kind": "jsonl", "name": "memory", "path": "/nowhere"},)


class Watched:
    """Keeps the drivers of a run at hand."""

    def __init__(self) -> None:
        self.drivers: list[Driver] = []

    def __call__(self, driver: Driver) -> None:
        self.drivers.append(driver)
