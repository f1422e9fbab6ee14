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
from weirbox.datasets import Scan, open_dataset
from weirbox.domain.case import Case
from weirbox.domain.plan import Plan, entry_digest
from weirbox.domain.ruling import UniqueInRun
from weirbox.domain.run import Origin
from weirbox.domain.spec import Suite
from weirbox.domain.template import Missing, lookup
from weirbox.domain.words import RunKind, RunStatus, ScoreState, TrialStage, Verdict
from weirbox.errors import PlanError
from weirbox.pipeline.finalizing import finalize
from weirbox.pipeline.freezing import FrozenSuite, freeze
from weirbox.store import plans, queries
from weirbox.store.engine import Connection, Database
from weirbox.store.rows import case_key, pack, pack_case
from weirbox.store.types import to_nano, utc_now
from weirbox.store.writes import change_status, note

BATCH = 500
"""Cases per insert: bounds the memory of planning."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which cases of the dataset a run takes.

    Attributes:
        cases: Ids, for a delta run by list.
        since: A run, for a delta of the cases that are new or changed since.
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
    """Freeze a run in one transaction: all of it is there, or nothing.

    Args:
        folder: What relative paths in the suite start from.
        origin: What asked for the run.
        managed: Whether the coordinator is to have it driven.

    Raises:
        SuiteError, DatasetError, PlanError: When there is nothing to run, or what
            the suite names cannot be had. Nothing is written then.
    """
    frozen = freeze(suite, folder=folder, prompt_folders=prompt_folders)
    run_id = new_run_id(suite.suite)
    with database.write() as connection:
        scan = open_dataset(suite.dataset, folder=folder).scan()
        chosen = _choose(connection, scan, suite, selection)
        _insert_run(connection, run_id, suite, selection, origin or Origin(), managed)
        freezer = _CaseFreezer(connection, suite, run_id)
        for case in chosen:
            freezer.add(case)
        freezer.flush()
        _write_plan(connection, run_id, frozen, selection, scan, freezer, folder)
    if not freezer.trials:
        finalize(database, run_id)
    return Planned(run_id=run_id, trials=freezer.trials, warnings=scan.version.warnings)


def new_run_id(suite: str) -> str:
    """A fresh id that a person can read: suite, day and time, and six random digits."""
    return f"{suite}-{utc_now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


# --- which cases ----------------------------------------------------------------


def _choose(
    connection: Connection, scan: Scan, suite: Suite, selection: Selection
) -> Iterable[Case]:
    """The cases, lazily; what is compared with an earlier run is looked up at once, while
    the latest run is not yet this one."""
    if selection.kind is RunKind.PREVIEW:
        return _sample(scan, size=selection.size or suite.preview, seed=suite.seed)
    if selection.kind is not RunKind.DELTA:
        return scan
    if selection.since is None:
        return _listed(scan, selection.cases or ())
    if selection.cases is not None:
        raise PlanError("a delta run takes a list of cases or a run to compare with, not both")
    since = queries.find_run_id(connection, selection.since, suite=suite.suite)
    known = queries.case_digests(connection, since)
    return (case for case in scan if known.get(case_key(case.id)) != pack_case(case)[0])


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
    """Writes cases and their trials in batches, and finds values that must be unique."""

    def __init__(self, connection: Connection, suite: Suite, run_id: str) -> None:
        self._connection = connection
        self._suite = suite
        self._run_id = run_id
        self._unique = [rule for rule in suite.rules if isinstance(rule, UniqueInRun)]
        self._seen: dict[str, dict[str, str]] = {rule.name: {} for rule in self._unique}
        self._payloads: list[dict[str, Any]] = []
        self._trials: list[dict[str, Any]] = []
        self.twins: dict[str, dict[str, str]] = {rule.name: {} for rule in self._unique}
        self.trials = 0

    def add(self, case: Case) -> None:
        """Freeze one case with all its trials."""
        digest, body = pack_case(case)
        self._payloads.append({"digest": digest, "body": body})
        for trial in range(1, self._suite.repeats + 1):
            self._trials.append(self._row(case, digest, trial))
            self.trials += 1
        for rule in self._unique:
            self._note_value(rule, case)
        if len(self._trials) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        plans.add_payloads(self._connection, self._payloads)
        plans.insert_trials(self._connection, self._trials)
        self._payloads, self._trials = [], []

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


def _insert_run(
    connection: Connection,
    run_id: str,
    suite: Suite,
    selection: Selection,
    origin: Origin,
    managed: bool,
) -> None:
    plans.insert_run(
        connection,
        {
            "id": run_id,
            "suite": suite.suite,
            "kind": selection.kind,
            "status": RunStatus.PENDING,
            "reason": "",
            "plan": "",
            "dataset_name": "",
            "dataset_digest": "",
            "planned": 0,
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
        },
    )


def _write_plan(
    connection: Connection,
    run_id: str,
    frozen: FrozenSuite,
    selection: Selection,
    scan: Scan,
    freezer: _CaseFreezer,
    folder: str,
) -> None:
    plan = Plan(
        suite=frozen.suite,
        kind=selection.kind,
        dataset=scan.version,
        prompts=frozen.prompts,
        files=frozen.files,
        skipped_judges=frozen.skipped_judges,
        twins=freezer.twins,
        folder=folder,
    )
    digest, body = pack(plan.model_dump(mode="json"))
    contents = [{"digest": d, "body": c} for d, c in sorted(frozen.contents.items())]
    plans.add_payloads(connection, [{"digest": digest, "body": body}, *contents])
    plans.set_plan(
        connection,
        run_id,
        plan=digest,
        planned=freezer.trials,
        dataset_name=scan.version.name,
        dataset_digest=scan.version.digest,
    )
    note(connection, run_id, kind="planned", message=_planned(selection, freezer, scan))
    for warning in scan.version.warnings:
        note(connection, run_id, kind="warning", message=warning)
    for name, why in frozen.skipped_judges.items():
        note(connection, run_id, kind="skipped", message=f"judge {name!r} is skipped: {why}")
    if not freezer.trials:
        change_status(connection, run_id, to=RunStatus.COMPLETED, reason="nothing is new")


def _planned(selection: Selection, freezer: _CaseFreezer, scan: Scan) -> str:
    return (
        f"{selection.kind} run of {freezer.trials} trials over {scan.version.name} "
        f"({scan.version.records} records, {scan.version.digest[:12]})"
    )
