"""The stage runner that wraps packets of trials in Prefect task runs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE

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

SHARED = {
    stage: task.with_options(cache_policy=NO_CACHE, persist_result=False)
    for stage, task in TASKS.items()
}
"""For packets that several trials share: keeping a receipt costs as much as the task run,
and none of them is ever asked for again."""


class PrefectRunner:
    """Awaits one task per packet directly: submitting async tasks costs ten times as much."""

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        """Run a packet as a task run; its rows are committed when this returns."""
        task = (SHARED if packet.shared else TASKS)[packet.stage]
        if refresh:
            task = task.with_options(refresh_cache=True)
        await task(packet)
