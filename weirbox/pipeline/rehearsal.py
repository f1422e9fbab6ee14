"""Look at a suite as a run would before it starts, without planning one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from weirbox.domain.case import DatasetVersion
from weirbox.domain.plan import Plan
from weirbox.domain.seams import ReadSecret, Workshop
from weirbox.domain.spec import HttpHarness, Suite
from weirbox.domain.words import RunKind
from weirbox.errors import PreflightError, WeirboxError
from weirbox.pipeline.freezing import FrozenSuite, freeze
from weirbox.pipeline.growing import opened
from weirbox.pipeline.kit import assemble, preflight_problems
from weirbox.store.engine import Database

SECRET = "secret:"
"""Stands before the name of a secret in the headers of an http harness."""


@dataclass(frozen=True)
class Rehearsed:
    """What was found.

    Attributes:
        problems: What a run would fail on.
        skipped: Judges that would be skipped, with the reason.
    """

    dataset: DatasetVersion
    problems: tuple[str, ...]
    skipped: dict[str, str]


def rehearse(
    database: Database,
    suite: Suite,
    *,
    folder: str,
    prompt_folders: tuple[str, ...],
    read_secret: ReadSecret,
) -> Rehearsed:
    """Read the whole dataset, build every part, and look for what is missing.

    Nothing is written, executed or paid.

    Raises:
        SuiteError, DatasetError, PlanError: As planning would.
    """
    frozen = freeze(suite, folder=folder, prompt_folders=prompt_folders)
    with opened(database, suite.dataset, folder=folder) as source:
        for _ in source:
            pass
        dataset = source.version
    problems = [
        *_missing_secrets(suite, read_secret),
        *asyncio.run(_part_problems(frozen, dataset, folder, read_secret)),
    ]
    return Rehearsed(dataset, tuple(problems), frozen.skipped_judges)


async def _part_problems(
    frozen: FrozenSuite, dataset: DatasetVersion, folder: str, read_secret: ReadSecret
) -> list[str]:
    digests = {file.path: file.digest for file in frozen.files}

    def read_file(path: str) -> bytes:
        if path not in digests:
            raise PreflightError(f"the suite names no file {path!r}")
        return frozen.contents[digests[path]]

    plan = Plan(
        suite=frozen.suite,
        kind=RunKind.FULL,
        dataset=dataset,
        prompts=frozen.prompts,
        files=frozen.files,
        skipped_judges=frozen.skipped_judges,
        folder=folder,
    )
    try:
        kit = assemble(plan, "rehearsal", Workshop(folder, read_file, read_secret))
    except WeirboxError as error:
        return [str(error)]
    try:
        return preflight_problems(kit)
    finally:
        await kit.aclose()


def _missing_secrets(suite: Suite, read_secret: ReadSecret) -> Iterator[str]:
    """The secrets that judges do not need, but compute and harness."""
    names = dict.fromkeys(suite.compute.secrets.values())
    if isinstance(suite.harness, HttpHarness):
        values = suite.harness.headers.values()
        names |= dict.fromkeys(v.removeprefix(SECRET) for v in values if v.startswith(SECRET))
    for name in names:
        try:
            read_secret(name)
        except WeirboxError as error:
            yield str(error)
