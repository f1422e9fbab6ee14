"""The execute stage as a Prefect task."""

from __future__ import annotations

from prefect import task

from tasks.caching import PACKET_KEY
from tasks.tagging import tag_task_run
from weirbox.pipeline.live import work_on
from weirbox.pipeline.packets import Packet, Receipt


@task(
    name="execute",
    task_run_name="execute · {packet.label}",
    cache_policy=PACKET_KEY,
    persist_result=True,
    result_serializer="json",
)
async def execute_case(packet: Packet) -> Receipt:
    """Take a packet of trials through the execute stage.

    Retries are the driver's: it decides per kind of error, and its rows say what is done.
    """
    tag_task_run("execute")
    return await work_on(packet)
