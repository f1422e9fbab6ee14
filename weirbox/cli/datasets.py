"""Datasets in the store, and registered suites."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from weirbox.cli.edge import Screen
from weirbox.cli.wording import cut, grid, moment, plural
from weirbox.domain.spec import DatasetSpec
from weirbox.errors import SuiteError, UserError
from weirbox.pipeline.growing import add_dataset
from weirbox.runtime import open_runtime
from weirbox.store import dataset_versions, registry
from weirbox.store.dataset_versions import Changes, StoredVersion

if TYPE_CHECKING:
    from weirbox.settings import Settings
    from weirbox.store.registry import RegisteredSuite

SHOWN = 20
"""The most cases of a kind that `diff` lists for a person."""

CASE = 100
"""Characters of a case's id that are shown."""

DIGEST = 12
"""Characters of a digest that are shown."""


def add_file(
    screen: Screen,
    settings: Settings,
    file: str,
    *,
    name: str,
    append: bool,
    reading: Mapping[str, Any],
) -> None:
    """Add a file's cases as a new version of a dataset.

    Args:
        reading: How the file is read, as a suite's dataset says it; None is the default.
    """
    given = {key: value for key, value in reading.items() if value is not None}
    spec = _checked({"path": file, **given})
    _checked({"name": name})
    with open_runtime(settings) as runtime:
        added = add_dataset(runtime.database, spec, folder=os.getcwd(), name=name, append=append)
    for warning in added.warnings:
        screen.tell(f"warning: {warning}")
    version = added.version
    if added.new:
        screen.tell(f"{version.label}: {plural(version.records, 'record')}, {_said(added.changes)}")
    else:
        screen.tell(f"nothing new: {version.label} has the same cases")
    for suite in added.suites:
        screen.tell(f"suite {suite!r} will be run on what is new, by the coordinator")
    body = _json(version, added.changes)
    screen.json(body | {"new": added.new, "suites": added.suites, "warnings": added.warnings})


def _checked(data: dict[str, Any]) -> DatasetSpec:
    try:
        return DatasetSpec.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        option = "-".join(map(str, found["loc"])).replace("_", "-")
        raise UserError(
            f"--{option} {found['input']!r}: {found['msg'].removeprefix('Value error, ')}"
        ) from None


def show_datasets(screen: Screen, settings: Settings) -> None:
    """List every dataset with its newest version."""
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        found = dataset_versions.datasets(connection)
    if found:
        rows = [
            (
                *(one.name, one.digest[:DIGEST], moment(one.created_at), one.source),
                *(str(one.version), str(one.records)),
            )
            for one in found
        ]
        head = ("dataset", "digest", "added at", "source", "version", "records")
        screen.print_whole(grid(head, rows, right=2))
    else:
        screen.tell("there is no dataset; add one with: weirbox dataset add FILE --name NAME")
    screen.json([_json(one) for one in found])


def show_versions(screen: Screen, settings: Settings, name: str, limit: int) -> None:
    """List the versions of a dataset, newest first, with what each changed."""
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        newest = dataset_versions.find_version(connection, name)
        found = dataset_versions.versions(connection, name, limit=limit + 1)
        changed = [
            dataset_versions.changes(connection, before, after) for after, before in pairwise(found)
        ]
    if found[-1].version == 1:
        changed.append(Changes(added=found[-1].records))
    shown = list(zip(found[:limit], changed, strict=False))
    rows = [
        (
            *(one.label, one.digest[:DIGEST], moment(one.created_at), one.source),
            *map(str, (one.records, changes.added, changes.removed, changes.changed)),
        )
        for one, changes in shown
    ]
    head = ("version", "digest", "added at", "source", "records", "added", "removed", "changed")
    screen.print_whole(grid(head, rows, right=4))
    if newest.version > len(shown):
        screen.tell(f"the newest {len(shown)} of {newest.version}; more with --limit")
    screen.json([_json(one, changes) for one, changes in shown])


def show_diff(screen: Screen, settings: Settings, name: str, before: int, after: int) -> None:
    """Show which cases differ between two versions; the JSON has all of them."""
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        old, new = (
            dataset_versions.find_version(connection, name, version) for version in (before, after)
        )
        changes = dataset_versions.changes(connection, old, new)
        limit = None if screen.as_json else SHOWN
        ids = dataset_versions.changed_ids(connection, old, new, limit=limit)
    screen.tell(f"{old.label} to {new.label}: {_said(changes)}")
    rows = [(kind, cut(case, CASE)) for kind, cases in ids.items() for case in cases[:SHOWN]]
    if rows:
        screen.out.print(grid(("", "case"), rows))
    more = {kind: count - SHOWN for kind, count in asdict(changes).items() if count > SHOWN}
    if more:
        left = ", ".join(f"{count} {kind}" for kind, count in more.items())
        screen.tell(f"and {left} more; --json has them all")
    screen.json({"name": name, "before": before, "after": after, "counts": asdict(changes)} | ids)


def _said(changes: Changes) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in asdict(changes).items())


def _json(version: StoredVersion, changes: Changes | None = None) -> dict[str, Any]:
    body = asdict(version) | {"created_at": version.created_at.isoformat()}
    return body | (asdict(changes) if changes is not None else {})


# --- suites -----------------------------------------------------------------------


def show_suites(screen: Screen, settings: Settings) -> None:
    """List the registered suites."""
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        found = [_suite_json(suite) for suite in registry.registered_suites(connection)]
    if found:
        head = ("suite", "dataset", "schedule", "auto_run", "registered at")
        screen.print_whole(grid(head, [_suite_row(suite) for suite in found]))
    else:
        screen.tell("no suite is registered; register one with: weirbox deploy FILE")
    for suite in found:
        if suite["problem"]:
            screen.tell(f"warning: {suite['problem']}")
    screen.json([suite | {"registered_at": suite["registered_at"].isoformat()} for suite in found])


def _suite_row(suite: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        suite["name"],
        suite["dataset"] or "?",
        suite["schedule"] or "",
        suite["auto_run"] or "",
        moment(suite["registered_at"]),
    )


def _suite_json(registered: RegisteredSuite) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": registered.name,
        **dict.fromkeys(("dataset", "schedule", "auto_run", "problem")),
        "folder": registered.folder,
        "registered_at": registered.registered_at,
    }
    try:
        suite = registered.suite
    except SuiteError as error:
        return body | {"problem": str(error)}
    schedule = None if suite.schedule is None else str(suite.schedule)
    return body | {
        "dataset": _dataset(suite.dataset),
        "schedule": schedule,
        "auto_run": suite.auto_run,
    }


def _dataset(spec: DatasetSpec) -> str:
    if spec.name is not None:
        return spec.name if spec.version is None else f"{spec.name}@{spec.version}"
    return spec.path or plural(len(spec.records or ()), "record")
