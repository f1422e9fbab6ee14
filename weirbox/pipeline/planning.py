"""Freeze a suite and its cases into a run: the only reader of the live dataset."""

from __future__ import annotations

import hashlib
import heapq
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from weirbox import rules
from weirbox.domain.case import Case, DatasetVersion
from weirbox.domain.plan import Plan, entry_digest
from weirbox.domain.ruling import UniqueInRun
from weirbox.domain.run import Origin
from weirbox.domain.spec import Suite
from weirbox.domain.template import Missing, lookup
from weirbox.domain.words import RunKind, RunStatus, ScoreState, TrialStage, Verdict
from weirbox.errors import PlanError
from weirbox.pipeline.finalizing import finalize
from weirbox.pipeline.freezing import FrozenSuite, freeze
from weirbox.pipeline.growing import CaseSource, opened
from weirbox.store import plans, queries
from weirbox.store.ending import supersede_older
from weirbox.store.engine import Connection, Database
from weirbox.store.registry import known_contents
from weirbox.store.rows import case_key, pack, pack_case
from weirbox.store.staging import BATCH, STAGED_TRIAL, Staging, staging
from weirbox.store.types import to_nano, utc_now
from weirbox.store.writes import change_status, note

ANY_RUN = "any"
"""What stands for all runs of the suite in `Selection.since`."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which cases of the dataset a run takes.

    Attributes:
        cases: Ids, for a delta run by list.
        since: A run, for a delta of the cases that are new or changed since; or ``any``,
            for those that no run of the suite has taken as they are: all, where there is none.
        size: How many cases a preview takes; the suite's own number if absent.
    """

    kind: RunKind = RunKind.FULL
    cases: tuple[str, ...] | None = None
    since: str | None = None
    size: int | None = None


FULL = Selection()


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A run that has been planned."""

    run_id: str
    trials: int
    warnings: tuple[str, ...]


def plan_run(
    database: Database,
    suite: Suite,
    *,
    folder: str,
    selection: Selection = FULL,
    prompt_folders: tuple[str, ...] = (),
    origin: Origin | None = None,
    managed: bool = False,
) -> Planned:
    """Freeze a run: all of it is there, or nothing.

    The cases gather beside the database while they are read, and one short transaction at
    the end takes them over, so that others do not wait for the reading of a dataset.

    Args:
        folder: What relative paths in the suite start from.
        origin: What asked for the run.
        managed: Whether the coordinator is to have it driven.

    Raises:
        SuiteError, DatasetError, PlanError: When there is nothing to run, or what
            the suite names cannot be had. Nothing is written then.
    """
    frozen = freeze(suite, folder=folder, prompt_folders=prompt_folders)
    selection, known = _look_back(database, suite, selection)
    run_id = new_run_id(suite.suite)
    with (
        opened(database, suite.dataset, folder=folder) as source,
        staging(database, STAGED_TRIAL) as staged,
    ):
        freezer = _CaseFreezer(staged, suite, run_id)
        for case in _choose(source, suite, selection, known):
            freezer.add(case)
        freezer.flush()
        staged.publish()
        digest, body = _pack_plan(frozen, selection, source.version, freezer, folder)
        row = _run_row(run_id, suite, selection, origin or Origin(), managed) | {
            "plan": digest,
            "planned": freezer.trials,
            "dataset_name": source.version.name,
            "dataset_digest": source.version.digest,
        }
        with staged.write() as connection:
            plans.add_payloads(connection, [{"digest": digest, "body": body}, *_contents(frozen)])
            plans.insert_run(connection, row)
            plans.insert_staged_trials(connection)
            _begin_timeline(connection, row, frozen, source.version)
    if not freezer.trials:
        finalize(database, run_id)
    return Planned(run_id=run_id, trials=freezer.trials, warnings=source.version.warnings)


def new_run_id(suite: str) -> str:
    """A fresh id that a person can read: suite, day and time, and six random digits."""
    return f"{suite}-{utc_now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


# --- which cases ----------------------------------------------------------------


def _look_back(
    database: Database, suite: Suite, selection: Selection
) -> tuple[Selection, dict[str, str]]:
    """What the selection is compared with: the contents that are known, by the case's key.

    A delta since any run is a full run where there is none.
    """
    if selection.since is None:
        return selection, {}
    if selection.cases is not None:
        raise PlanError("a delta run takes a list of cases or a run to compare with, not both")
    with database.read() as connection:
        if selection.since != ANY_RUN:
            since = queries.find_run_id(connection, selection.since, suite=suite.suite)
            return selection, queries.case_digests(connection, since)
        known = known_contents(connection, suite.suite)
    return (selection if known else FULL), known


def _choose(
    source: CaseSource, suite: Suite, selection: Selection, known: dict[str, str]
) -> Iterable[Case]:
    """The cases, lazily."""
    if selection.kind is RunKind.PREVIEW:
        return _sample(source, size=selection.size or suite.preview, seed=suite.seed)
    if selection.kind is not RunKind.DELTA:
        return source
    if selection.since is None:
        return _listed(source, selection.cases or ())
    return (case for case in source if known.get(case_key(case.id)) != pack_case(case)[0])


def _sample(cases: Iterable[Case], *, size: int, seed: int) -> list[Case]:
    """The same cases for the same seed, wherever they stand in the dataset."""

    def rank(numbered: tuple[int, Case]) -> str:
        text = f"{seed}\0{numbered[1].id}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    smallest = heapq.nsmallest(size, enumerate(cases), key=rank)
    return [case for _, case in sorted(smallest, key=lambda numbered: numbered[0])]


def _listed(cases: Iterable[Case], wanted: tuple[str, ...]) -> Iterator[Case]:
    missing = dict.fromkeys(wanted)
    if not missing:
        raise PlanError("a delta run needs a list of case ids, or the run to compare with")
    for case in cases:
        if case.id in missing:
            del missing[case.id]
            yield case
    if missing:
        names = ", ".join(repr(name) for name in islice(missing, 5))
        are = "is" if len(missing) == 1 else "are"
        raise PlanError(f"{len(missing)} of the listed cases {are} not in the dataset: {names}")


# --- writing --------------------------------------------------------------------


class _CaseFreezer:
    """Stages cases and their trials in batches, and finds values that must be unique."""

    def __init__(self, staged: Staging, suite: Suite, run_id: str) -> None:
        self._staged = staged
        self._suite = suite
        self._run_id = run_id
        self._unique = [rule for rule in suite.rules if isinstance(rule, UniqueInRun)]
        self._seen: dict[str, dict[str, str]] = {rule.name: {} for rule in self._unique}
        self._contents: list[tuple[str, bytes]] = []
        self._trials: list[dict[str, Any]] = []
        self.twins: dict[str, dict[str, str]] = {rule.name: {} for rule in self._unique}
        self.trials = 0

    def add(self, case: Case) -> None:
        """Freeze one case with all its trials."""
        digest, body = pack_case(case)
        self._contents.append((digest, body))
        for trial in range(1, self._suite.repeats + 1):
            self._trials.append(self._row(case, digest, trial))
            self.trials += 1
        for rule in self._unique:
            self._note_value(rule, case)
        if len(self._trials) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Stage what has gathered."""
        self._staged.add(self._contents, self._trials)
        self._contents, self._trials = [], []

    def _row(self, case: Case, digest: str, trial: int) -> dict[str, Any]:
        return {
            "run_id": self._run_id,
            "seq": self.trials,
            "case_id": case.id,
            "case_key": case_key(case.id),
            "trial": trial,
            "entry_digest": entry_digest(
                case_id=case.id, content_digest=case.content_digest, trial=trial
            ),
            "case_digest": digest,
            "category": _category(case, self._suite.category),
            "stage": TrialStage.EXECUTE,
            "attempt": 1,
            "state": ScoreState.PENDING,
            "verdict": Verdict.NONE,
            "cached": False,
        }

    def _note_value(self, rule: UniqueInRun, case: Case) -> None:
        value = rules.unique_value(rule, case.record)
        if value is None:
            return
        first = self._seen[rule.name].setdefault(value, case.id)
        if first != case.id:
            self.twins[rule.name][case.id] = first
            self.twins[rule.name].setdefault(first, case.id)


def _category(case: Case, path: str | None) -> str | None:
    if path is None:
        return None
    try:
        found = lookup(case.record, path)
    except Missing:
        return None
    return None if found is None else str(found)


def _run_row(
    run_id: str, suite: Suite, selection: Selection, origin: Origin, managed: bool
) -> dict[str, Any]:
    return {
        "id": run_id,
        "suite": suite.suite,
        "kind": selection.kind,
        "status": RunStatus.PENDING,
        "reason": "",
        "drivers": suite.concurrency.drivers,
        "budget_nusd": to_nano(suite.budget.usd),
        "budget_calls": suite.budget.calls,
        "spent_nusd": 0,
        "calls": 0,
        "supersede_key": origin.supersede_key(suite.suite),
        "origin": origin.model_dump(exclude_none=True) or None,
        "managed": managed,
        "tags": list(suite.tags),
        "created_at": utc_now(),
    }


def _pack_plan(
    frozen: FrozenSuite,
    selection: Selection,
    dataset: DatasetVersion,
    freezer: _CaseFreezer,
    folder: str,
) -> tuple[str, bytes]:
    plan = Plan(
        suite=frozen.suite,
        kind=selection.kind,
        dataset=dataset,
        prompts=frozen.prompts,
        files=frozen.files,
        skipped_judges=frozen.skipped_judges,
        twins=freezer.twins,
        folder=folder,
    )
    return pack(plan.model_dump(mode="json"))


def _contents(frozen: FrozenSuite) -> list[dict[str, Any]]:
    return [{"digest": d, "body": c} for d, c in sorted(frozen.contents.items())]


def _begin_timeline(
    connection: Connection, run: dict[str, Any], frozen: FrozenSuite, dataset: DatasetVersion
) -> None:
    planned = (
        f"{run['kind']} run of {run['planned']} trials over {dataset.name} "
        f"({dataset.records} records, {dataset.digest[:12]})"
    )
    note(connection, run["id"], kind="planned", message=planned)
    for warning in dataset.warnings:
        note(connection, run["id"], kind="warning", message=warning)
    for name, why in frozen.skipped_judges.items():
        note(connection, run["id"], kind="skipped", message=f"judge {name!r} is skipped: {why}")
    supersede_older(connection, run["id"])
    if not run["planned"]:
        change_status(connection, run["id"], to=RunStatus.COMPLETED, reason="nothing is new")
