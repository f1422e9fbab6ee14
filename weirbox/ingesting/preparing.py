"""Make results into the suite that a run is planned of.

Everything is read and checked before anything is planned. What the run needs is written into
two files of the caller's folder, the recordings and (without a suite) the cases, which
planning freezes by their content; they are needed no longer than that.

Memory: an id, two digests and the positions of each trial; never the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import JsonValue

from weirbox.datasets.entries import RecordProblem, shown
from weirbox.datasets.identity import Tally
from weirbox.domain.base import canonical_json, digest, model_json, storable
from weirbox.domain.case import Case
from weirbox.domain.grading import Given, ScriptScore
from weirbox.domain.platforms import NAME
from weirbox.domain.spec import DatasetFormat, DatasetSpec, RecordedHarness, Suite
from weirbox.domain.trace import TraceEvent
from weirbox.domain.words import EventKind
from weirbox.errors import UserError
from weirbox.ingesting.pushed import Pushed, read_pushed
from weirbox.ingesting.sources import Source

MOST_SCORES = 500
"""Different score names: each is a check of the run."""

LISTED = 5
"""Ids that a message names."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a run of the results is planned of.

    Attributes:
        suite: Names files of the folder that `prepare` was given.
        cases: The ids to run, where the results cover a part of the suite's dataset.
        summary: One sentence that says what came.
        warnings: What a user should know.
    """

    suite: Suite
    cases: tuple[str, ...] | None
    summary: str
    warnings: tuple[str, ...]


@dataclass
class _SeenCase:
    position: int
    said: dict[str, str]
    further: str


@dataclass
class _Gathered:
    """What is known of the results once they are read."""

    cases: dict[str, _SeenCase] = field(default_factory=dict)
    trials: dict[tuple[str, int], int] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)
    repeats: int = 1
    failed: int = 0


def prepare(
    source: Source,
    folder: Path,
    *,
    suite: Suite | None = None,
    dataset: Iterable[Case] = (),
    name: str | None = None,
) -> Prepared:
    """Read and check results, and make a suite of them.

    Args:
        folder: An empty folder, which has to last until the run is planned.
        suite: Whose dataset, checks, judges, budget and sinks apply; without one the
            results are the dataset, and every score in them is a check.
        dataset: The cases of the suite's dataset, read once.
        name: What the suite is called; default: its own name, or what the source says.

    Raises:
        UserError: At the first mistake, with its place.
    """
    name = _suite_name(name, suite, source)
    recordings, cases = folder / "trials" / source.name, folder / "cases" / source.name
    for file in (recordings, cases):
        file.parent.mkdir()
    gathered = _Gathered()
    with ExitStack() as stack:
        lines = stack.enter_context(recordings.open("w", encoding="ascii"))
        own = stack.enter_context(cases.open("w", encoding="ascii")) if suite is None else None
        for entry in source.entries():
            try:
                _gather(gathered, read_pushed(entry), source, lines, own)
            except RecordProblem as problem:
                raise UserError(
                    f"{source.where}, {source.unit} {entry.position}: {problem}"
                ) from None
    if not gathered.cases:
        raise UserError(f"{source.where}: nothing to ingest: there are no records")
    warnings = [*source.warnings, *_missing_trials(gathered)]
    chosen = None
    if suite is None:
        if not gathered.scores:
            raise UserError(
                f"{source.where}: no record has scores, and there is no suite to judge them "
                "with: give one, in Python as suite=..., on the command line as --suite SUITE.yaml"
            )
        made = Suite(
            suite=name,
            description=f"Results of {storable(source.name)}",
            dataset=DatasetSpec(path=str(cases), format=DatasetFormat.JSONL),
            harness=RecordedHarness(kind="recorded", path=str(recordings)),
            graders=tuple(_graders(gathered, gathered.scores)),
            repeats=gathered.repeats,
        )
    else:
        chosen, told = _compared(gathered, source, suite, dataset)
        free, untaken = _free_names(gathered, suite)
        warnings += told + untaken
        made = suite.model_copy(
            update={
                "suite": name,
                "harness": RecordedHarness(kind="recorded", path=str(recordings)),
                "graders": (*suite.graders, *_graders(gathered, free)),
                "repeats": gathered.repeats,
            }
        )
    return Prepared(
        suite=made, cases=chosen, summary=_summary(gathered, source), warnings=tuple(warnings)
    )


def _suite_name(name: str | None, suite: Suite | None, source: Source) -> str:
    if name is not None and not NAME.fullmatch(name):
        raise UserError(
            f"the name {name!r} is none for a suite: 1 to 100 letters, digits, '.', '_' or '-', "
            "starting with a letter or digit"
        )
    if name is not None or suite is not None:
        return name or (suite.suite if suite is not None else "")
    title = re.sub(r"[^A-Za-z0-9._-]+", "-", source.title).lstrip("._-")[:100]
    return title or "ingested"


# --- one record -------------------------------------------------------------------


def _gather(
    gathered: _Gathered, pushed: Pushed, source: Source, lines: IO[str], own: IO[str] | None
) -> None:
    """Take a record in: check it against those before it, and write what it says."""
    key = (pushed.case_id, pushed.trial)
    if key in gathered.trials:
        raise RecordProblem(
            f"trial {pushed.trial} of case {shown(pushed.case_id)} is there twice; "
            f"{source.unit} {gathered.trials[key]} has it too: number the trials of a case with "
            "'trial', or give different ids"
        )
    if own is None and pushed.derived:
        raise RecordProblem("a record needs the 'id' of its case in the suite's dataset")
    gathered.trials[key] = pushed.position
    gathered.repeats = max(gathered.repeats, pushed.trial)
    failed = pushed.recording.error is not None
    gathered.failed += failed
    for name in pushed.recording.scores:
        gathered.scores[name] = gathered.scores.get(name, 0) + (not failed)
    if len(gathered.scores) > MOST_SCORES:
        raise RecordProblem(
            f"more than {MOST_SCORES} different names of scores: a name is the same in all records"
        )
    first = gathered.cases.get(pushed.case_id)
    said = {name: digest(value) for name, value in pushed.case.items()}
    further = digest(pushed.further)
    if first is None:
        gathered.cases[pushed.case_id] = _SeenCase(pushed.position, said, further)
    else:
        _refuse_another_case(pushed, said, first, source)
    if first is None and own is not None:
        case = {"id": pushed.case_id, "input": None} | pushed.case | pushed.further
        own.write(canonical_json(case) + "\n")
    in_record = own is not None and (first is None or first.further == further)
    lines.write(canonical_json(_recorded(pushed, further=not in_record)) + "\n")


def _refuse_another_case(
    pushed: Pushed, said: dict[str, str], first: _SeenCase, source: Source
) -> None:
    """A case has one input and one target; later records may leave them out."""
    for name, found in said.items():
        if first.said.get(name) != found:
            raise RecordProblem(
                f"the {name} of case {shown(pushed.case_id)} is another than in {source.unit} "
                f"{first.position}, which has the case's first record: give different ids, or "
                f"leave the {name} out"
            )


def _recorded(pushed: Pushed, *, further: bool) -> dict[str, JsonValue]:
    """The line of the recordings; what the case's record does not have goes into the trace."""
    recording = pushed.recording
    if further and pushed.further:
        event = TraceEvent(kind=EventKind.LOG, name="record", data=pushed.further)
        recording = recording.model_copy(update={"trace": (*recording.trace, event)})
    written: Any = model_json(recording)
    return {**written, "trial": pushed.trial, "output": recording.output}


# --- all records ------------------------------------------------------------------


def _graders(gathered: _Gathered, names: Iterable[str]) -> Iterable[Given]:
    """A check for each name; required where every record that did not fail has it."""
    measured = len(gathered.trials) - gathered.failed
    for name in sorted(names):
        yield Given(kind="given", name=name, required=gathered.scores[name] >= measured)


def _free_names(gathered: _Gathered, suite: Suite) -> tuple[list[str], list[str]]:
    """The scores' names that no check of the suite has, and what is said of the others."""
    given = {grader.name for grader in suite.graders if isinstance(grader, Given)}
    checks = {check.name for check in (*suite.graders, *suite.rules, *suite.judges)} - given
    several = tuple(f"{g.name}." for g in suite.graders if isinstance(g, ScriptScore))
    taken = [name for name in gathered.scores if name in checks or name.startswith(several)]
    free = [name for name in gathered.scores if name not in given and name not in taken]
    if not taken:
        return free, []
    return free, [
        f"scores that are not taken over, as checks of the suite have their names: {_listed(taken)}"
    ]


def _missing_trials(gathered: _Gathered) -> list[str]:
    planned = len(gathered.cases) * gathered.repeats
    missing = planned - len(gathered.trials)
    if not missing:
        return []
    return [
        f"{missing} of {planned} trials ({gathered.repeats} of each case) have no record: they "
        "are errored (missing_recording)"
    ]


def _compared(
    gathered: _Gathered, source: Source, suite: Suite, dataset: Iterable[Case]
) -> tuple[tuple[str, ...] | None, list[str]]:
    """The cases to run where they are not all of the dataset, and what a user should know."""
    unknown, others, left_out = dict(gathered.cases), Tally(), 0
    for case in dataset:
        seen = unknown.pop(case.id, None)
        if seen is None:
            left_out += 1
        elif seen.said.get("input", digest(case.input)) != digest(case.input):
            others.add(shown(case.id))
    if unknown:
        places = [
            f"{shown(id_)} ({source.unit} {seen.position})"
            for id_, seen in list(unknown.items())[:LISTED]
        ]
        more = f" and {len(unknown) - LISTED} more" if len(unknown) > LISTED else ""
        raise UserError(
            f"{source.where}: cases that the dataset of suite {suite.suite!r} does not have: "
            f"{len(unknown)}: {', '.join(places)}{more}: give the ids of the dataset, or leave "
            "the suite out"
        )
    warnings = []
    if left_out:
        warnings.append(
            f"cases of the dataset that are not among the results, and not in this run: {left_out}"
        )
    if others.count:
        warnings.append(
            "cases whose input in the results is not the dataset's, which counts: "
            f"{others.count}: {others.examples()}"
        )
    return (tuple(gathered.cases) if left_out else None), warnings


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(map(shown, names[:LISTED])) + more


def _summary(gathered: _Gathered, source: Source) -> str:
    return (
        f"{len(gathered.trials)} trials of {len(gathered.cases)} cases from "
        f"{storable(source.name)}, {gathered.failed} of them failed"
    )
