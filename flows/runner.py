"""The stage runner that wraps packets of trials in Prefect task runs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from prefect import Task

from tasks.execute_case import execute_case
from tasks.export_case import export_case
from tasks.judge_case import judge_case
from weirbox.domain.words import Stage
from weirbox.pipeline.packets import Packet, Receipt

TASKS: dict[Stage, Task[[Packet], Coroutine[Any, Any, Receipt]]] = {
    Stage.EXECUTE: execute_case,
    Stage.JUDGE: judge_case,
    Stage.EXPORT: export_case,
}


class PrefectRunner:
    """Awaits one task per packet directly: submitting async tasks costs ten times as much."""

    def __init__(self) -> None:
        self.task_runs = 0

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        """Run a packet as a task run; its rows are committed when this returns."""
        self.task_runs += 1
        task = TASKS[packet.stage]
        if refresh:
            task = task.with_options(refresh_cache=True)
        await task(packet)
