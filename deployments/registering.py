"""How weirbox's deployments get into a Prefect server, any number of times.

Only what carries this store's tag is written or removed. What a person set in Prefect's UI and
weirbox says nothing about stays: a pause, further schedules, a limit, job variables.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    DeploymentUpdate,
    WorkPoolCreate,
)
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from deployments.automations import ensure_automation
from deployments.specs import DRIVING, EVALUATE, SUITE_SLUG, Spec, own_specs, own_tag, suite_spec
from weirbox.errors import UserError
from weirbox.store.registry import RegisteredSuite

PAGE = 200
"""Deployments that are read at once; the most that Prefect gives by default."""


class Outcome(StrEnum):
    """What registering came to."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    REFUSED = "refused"  # the detail says why; everything else went on


class Registered(NamedTuple):
    """One thing in the Prefect server, and what became of it.

    Attributes:
        kind: deployment, work pool or automation.
        detail: What is different now, or why it was refused.
    """

    kind: str
    name: str
    outcome: Outcome
    detail: str = ""


async def register(
    client: PrefectClient,
    suites: Sequence[RegisteredSuite],
    *,
    deployment: str,
    pool: str | None = None,
    queue: str | None = None,
) -> list[Registered]:
    """Have the server hold exactly this store's deployments.

    Safe to run twice, also at once: each is looked up by its name, only what differs is
    written, and the second time nothing is. One that cannot be registered holds up no other.

    Args:
        deployment: The name of weirbox's own, `Settings.deployment`.
        pool: The work pool whose workers run them; made where there is none. Without it each
            stays where it is, and a new one goes where `evaluate-run` is.
        queue: The pool's queue for evaluations and drivers.
    """
    specs, done = _wanted(suites, deployment)
    if pool is not None:
        done.append(await _ensure_pool(client, pool))
    home: DeploymentResponse | None = None
    for spec in specs:
        existing = await _read(client, spec)
        stranger = "" if existing is None else _stranger(existing, deployment)
        if stranger:
            done.append(_refused(spec.full_name, stranger))
            continue
        home = existing if spec is specs[0] else home
        place = _place(spec, existing, home, pool, queue)
        done.append(
            await _create(client, spec, place)
            if existing is None
            else await _update(client, spec, existing, place)
        )
    done += await _remove_others(client, {suite.name for suite in suites}, deployment)
    automation, outcome = await ensure_automation(client, deployment)
    return [*done, Registered("automation", automation, Outcome(outcome))]


def _wanted(
    suites: Sequence[RegisteredSuite], deployment: str
) -> tuple[list[Spec], list[Registered]]:
    """What there should be, `evaluate-run` first, and what cannot be."""
    wanted, refused = own_specs(deployment), []
    for suite in suites:
        try:
            wanted.append(suite_spec(suite.suite, wanted[0]))
        except UserError as error:
            refused.append(_refused(f"{EVALUATE}/{suite.name}", str(error)))
    return wanted, refused


async def own_deployments(client: PrefectClient, deployment: str) -> list[DeploymentResponse]:
    """All deployments of this store that the server holds."""
    tags = DeploymentFilterTags(all_=["weirbox", own_tag(deployment)])
    found: list[DeploymentResponse] = []
    while True:
        page = await client.read_deployments(
            deployment_filter=DeploymentFilter(tags=tags), limit=PAGE, offset=len(found)
        )
        found += page
        if len(page) < PAGE:
            return found


async def _remove_others(
    client: PrefectClient, suites: Collection[str], deployment: str
) -> list[Registered]:
    """Remove the deployments of suites that are no longer registered; their flow runs stay."""
    done = []
    for one in await own_deployments(client, deployment):
        if one.name not in suites and f"suite:{one.name}" in one.tags:
            await client.delete_deployment(one.id)
            done.append(Registered("deployment", f"{EVALUATE}/{one.name}", Outcome.REMOVED))
    return done


async def _read(client: PrefectClient, spec: Spec) -> DeploymentResponse | None:
    try:
        return await client.read_deployment_by_name(spec.full_name)
    except ObjectNotFound:
        return None


def _stranger(existing: DeploymentResponse, deployment: str) -> str:
    """Whose deployment it is that has the name, where it is not this store's."""
    owners = [tag for tag in existing.tags if tag.startswith(own_tag(""))]
    if own_tag(deployment) in owners or (not owners and "weirbox" in existing.tags):
        return ""
    whose = f"the store {owners[0].removeprefix(own_tag(''))!r}" if owners else "somebody else"
    return f"the name is taken by {whose}: another one for the suite is needed"


def _refused(name: str, why: str) -> Registered:
    return Registered("deployment", name, Outcome.REFUSED, why)


async def _ensure_pool(client: PrefectClient, pool: str) -> Registered:
    try:
        await client.read_work_pool(pool)
    except ObjectNotFound:
        try:
            await client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        except ObjectAlreadyExists:  # by somebody else, just now
            return Registered("work pool", pool, Outcome.UNCHANGED)
        return Registered("work pool", pool, Outcome.CREATED)
    return Registered("work pool", pool, Outcome.UNCHANGED)


def _place(
    spec: Spec,
    existing: DeploymentResponse | None,
    home: DeploymentResponse | None,
    pool: str | None,
    queue: str | None,
) -> dict[str, Any]:
    """Whose workers run it; empty for the runner of `weirbox up`.

    A queue that was chosen stays until another one is.
    """
    there = existing if existing is not None else home
    pool = pool or (there.work_pool_name if there is not None else None)
    if pool is None:
        return {}
    if spec.queue != DRIVING:
        queue = spec.queue
    elif queue is None and there is not None and there.work_pool_name == pool:
        queue = there.work_queue_name
    return {"work_pool_name": pool, "work_queue_name": queue or spec.queue}


async def _create(client: PrefectClient, spec: Spec, place: dict[str, Any]) -> Registered:
    schedules = [
        DeploymentScheduleCreate(schedule=schedule, slug=slug)
        for slug, schedule in spec.schedules.items()
    ]
    await client.create_deployment(
        flow_id=await client.create_flow_from_name(spec.flow),
        name=spec.name,
        schedules=schedules,
        **spec.fields(),
        **place,
    )
    return Registered("deployment", spec.full_name, Outcome.CREATED)


async def _update(
    client: PrefectClient, spec: Spec, existing: DeploymentResponse, place: dict[str, Any]
) -> Registered:
    kept = _kept(existing)
    changed = {
        name: value for name, value in {**spec.fields(), **place}.items() if kept.get(name) != value
    }
    if changed:
        await client.update_deployment(existing.id, DeploymentUpdate(**changed))
    if await _update_schedules(client, spec, existing):
        changed["schedule"] = None
    outcome = Outcome.UPDATED if changed else Outcome.UNCHANGED
    return Registered("deployment", spec.full_name, outcome, ", ".join(sorted(changed)))


def _kept(existing: DeploymentResponse) -> dict[str, Any]:
    """What the server has, as `Spec.fields` and `Place.fields` say it."""
    kept = existing.model_dump(mode="json")
    limit, options = existing.global_concurrency_limit, kept["concurrency_options"] or {}
    return kept | {
        "tags": sorted(existing.tags),
        "pull_steps": kept["pull_steps"] or [],
        "concurrency_limit": None if limit is None else limit.limit,
        "concurrency_options": {name: it for name, it in options.items() if it is not None},
    }


async def _update_schedules(
    client: PrefectClient, spec: Spec, existing: DeploymentResponse
) -> bool:
    """Bring weirbox's own schedules up to date; a paused one stays paused."""
    changed = False
    there = {one.slug: one for one in existing.schedules if one.slug is not None}
    for slug, schedule in spec.schedules.items():
        found = there.get(slug)
        if found is None:
            new = DeploymentScheduleCreate(schedule=schedule, slug=slug)
            await client.create_deployment_schedules(existing.id, [new])
            changed = True
        elif found.schedule != schedule:
            await client.update_deployment_schedule(existing.id, found.id, schedule=schedule)
            changed = True
    taken_away = there.get(SUITE_SLUG) if SUITE_SLUG not in spec.schedules else None
    if taken_away is not None:
        await client.delete_deployment_schedule(existing.id, taken_away.id)
        changed = True
    return changed
