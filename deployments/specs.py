"""What weirbox's deployments are: `prefect.yaml` says it, and each registered suite adds one.

The file is the one source, for `prefect deploy` and for `weirbox deploy` alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from weirbox import __version__
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunKind
from weirbox.errors import NotPossible
from weirbox.pipeline.planning import ANY_RUN

FILE = Path(__file__).with_name("prefect.yaml")

NAME = "{{ $WEIRBOX_DEPLOYMENT }}"
"""What stands for the name in the file, as Prefect itself takes it from the environment."""

EVALUATE = "evaluate-run"
"""The flow that suites are deployments of."""

DRIVING = "default"
"""The queue of evaluations and drivers; the others have one of their own."""

SUITE_SLUG = "suite"
"""Tells the schedule that a suite names from those that people add in Prefect's UI."""

ANCHOR = "2025-01-01T00:00:00+00:00"
"""What intervals count from: without it, registering again would move them."""

AnySchedule = CronSchedule | IntervalSchedule


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One deployment as it should be.

    Attributes:
        queue: The work queue, in a work pool.
        form: The JSON schema of its parameters; Prefect's UI makes a form of it.
        limit: limit, collision_strategy, grace_period_seconds; None says nothing about it.
        schedules: By slug.
    """

    flow: str
    name: str
    entrypoint: str
    description: str
    tags: tuple[str, ...]
    queue: str
    form: dict[str, Any]
    parameters: Mapping[str, Any]
    limit: Mapping[str, Any] | None
    schedules: Mapping[str, AnySchedule]

    @property
    def full_name(self) -> str:
        """As Prefect names it."""
        return f"{self.flow}/{self.name}"

    def fields(self) -> dict[str, Any]:
        """What the server keeps of it, besides schedules, work pool and queue."""
        fields: dict[str, Any] = {
            "version": __version__,
            "description": self.description,
            "tags": sorted(self.tags),
            "entrypoint": self.entrypoint,
            "parameters": dict(self.parameters),
            "parameter_openapi_schema": self.form,
            "enforce_parameter_schema": True,
            "pull_steps": [],
        }
        if self.limit is not None:
            options = {name: value for name, value in self.limit.items() if name != "limit"}
            fields |= {"concurrency_limit": self.limit["limit"], "concurrency_options": options}
        return fields


def own_tag(deployment: str) -> str:
    """What marks the deployments of one store, `Settings.deployment`."""
    return f"weirbox:{deployment}"


def own_specs(deployment: str) -> list[Spec]:
    """The deployments that there are without any suite; `evaluate-run` is the first."""
    content = yaml.safe_load(FILE.read_text().replace(NAME, deployment))
    return [_spec(entry) for entry in content["deployments"]]


def _spec(entry: Mapping[str, Any]) -> Spec:
    flow: Flow[..., Any] = load_flow_from_entrypoint(entry["entrypoint"])
    return Spec(
        flow=flow.name,
        name=entry["name"],
        entrypoint=entry["entrypoint"],
        description=entry["description"],
        tags=tuple(entry["tags"]),
        queue=entry["work_pool"]["work_queue_name"],
        form=parameter_schema(flow).model_dump(mode="json", exclude_unset=True),
        parameters=entry.get("parameters", {}),
        limit=entry.get("concurrency_limit"),
        schedules={
            item["slug"]: _every(item["interval"], item["anchor_date"])
            for item in entry.get("schedules", ())
        },
    )


def suite_spec(suite: Suite, evaluate: Spec) -> Spec:
    """The deployment of a registered suite.

    Args:
        evaluate: The deployment of `evaluate-run`, which it is one more of.

    Raises:
        NotPossible: When the suite has its name.
    """
    if suite.suite == evaluate.name:
        raise NotPossible(
            f"suite {suite.suite!r} has the name of weirbox's own deployments: rename the suite, "
            "or set WEIRBOX_DEPLOYMENT to another name"
        )
    kind = suite.schedule.kind if suite.schedule is not None else RunKind.FULL
    request = {"suite": suite.suite, "kind": str(kind)}
    if kind is RunKind.DELTA:
        request["since"] = ANY_RUN
    return replace(
        evaluate,
        name=suite.suite,
        description=suite.description or f"Evaluate the suite {suite.suite}.",
        tags=(*evaluate.tags, f"suite:{suite.suite}"),
        form=_form_of_suite(evaluate.form, request),
        parameters={"request": request},
        schedules=_schedules(suite),
    )


def _schedules(suite: Suite) -> dict[str, AnySchedule]:
    schedule = suite.schedule
    if schedule is None:
        return {}
    if schedule.every_s is not None:
        return {SUITE_SLUG: _every(schedule.every_s, ANCHOR)}
    return {SUITE_SLUG: CronSchedule(cron=str(schedule.cron), timezone=schedule.zone)}


def _every(seconds: float, anchor: str) -> IntervalSchedule:
    return IntervalSchedule.model_validate({"interval": seconds, "anchor_date": anchor})


def _form_of_suite(form: dict[str, Any], request: dict[str, str]) -> dict[str, Any]:
    """The form of a suite's deployment: that suite and no other, and no planned run."""
    whole = form["properties"]["request"]
    name = whole["$ref"].rpartition("/")[2]
    model = form["definitions"][name]
    fields = {key: field for key, field in model["properties"].items() if key != "run_id"}
    suite = {"title": "Suite", "type": "string", "enum": [request["suite"]]}
    model = model | {
        "properties": fields | {"suite": suite},
        "required": ["suite"],
    }
    return form | {"definitions": form["definitions"] | {name: model}}
