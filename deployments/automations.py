"""The automation that has Prefect's UI tell the truth about flow runs whose process died.

Nothing of weirbox depends on it: a dead driver is seen by its lease.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from deployments.specs import own_tag

HEARTBEAT_S = 30
"""How often a flow run shows that it lives; the least that Prefect takes for
`PREFECT_FLOWS_HEARTBEAT_FREQUENCY`."""

SILENT_S = 3 * HEARTBEAT_S
"""How long it may be silent: two lost events do not make a live run look dead."""

ENDS = ("Completed", "Drained", "NotNeeded", "Failed", "Cancelling", "Cancelled", "Crashed")
"""The names of states after which no heartbeat is to be expected."""


async def ensure_automation(client: PrefectClient, deployment: str) -> tuple[str, str]:
    """Have the server mark this store's silent flow runs as crashed.

    Safe to run twice: it is known by its name, and written only where it differs.

    Returns:
        Its name, and created, updated or unchanged.
    """
    wanted = crash_automation(deployment)
    found = await client.read_automations_by_name(wanted.name)
    if not found:
        await client.create_automation(wanted)
        return wanted.name, "created"
    if _content(found[0]) == _content(wanted):
        return wanted.name, "unchanged"
    await client.update_automation(
        found[0].id, wanted.model_copy(update={"enabled": found[0].enabled})
    )
    return wanted.name, "updated"


def crash_automation(deployment: str) -> AutomationCore:
    """After a heartbeat, neither another one nor an end: the process is dead."""
    return AutomationCore(
        name=f"weirbox {deployment}: dead flow runs are crashed",
        description="Marks flow runs of weirbox as crashed when their heartbeats stop.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            match_related=ResourceSpecification(
                {
                    "prefect.resource.role": ["tag"],
                    "prefect.resource.id": [f"prefect.tag.{own_tag(deployment)}"],
                }
            ),
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *(f"prefect.flow-run.{end}" for end in ENDS)},
            threshold=1,
            within=timedelta(seconds=SILENT_S),
        ),
        actions=[
            ChangeFlowRunState(
                name="Crashed",
                state=StateType.CRASHED,
                message=f"No heartbeat for {SILENT_S} s: its process is gone.",
            )
        ],
    )


def _content(automation: AutomationCore) -> dict[str, Any]:
    content: dict[str, Any] = automation.model_dump(
        mode="json", include={"description", "trigger", "actions"}
    )
    for name in ("after", "expect", "for_each"):
        content["trigger"][name] = sorted(content["trigger"][name])
    content["trigger"].pop("id", None)
    return content
