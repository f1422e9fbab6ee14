"""Answers that were produced elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from weirbox.domain.case import Case
from weirbox.domain.recording import Recording, first_mistake
from weirbox.domain.seams import Handle, TrialContext, Workshop
from weirbox.domain.spec import RecordedHarness
from weirbox.domain.template import Missing, fill, lookup
from weirbox.domain.trace import Observation, StageError
from weirbox.domain.words import ErrorKind
from weirbox.errors import HarnessError, SuiteError
from weirbox.harnesses.values import case_values

Key = tuple[str, int | None]
"""A case's id and a trial; None stands for every trial without a line of its own."""


class Recorded:
    """Gives recorded answers; see `RecordedHarness`.

    Memory: the file, and where each recording stands in it.
    """

    needs_compute = False

    def __init__(self, spec: RecordedHarness, workshop: Workshop) -> None:
        self._spec = spec
        self._content = b""
        self._lines: dict[Key, slice] = {}
        if spec.path is not None:
            file = str(Path(workshop.folder, spec.path).resolve())
            self._content = workshop.read_file(file)
            self._lines = _index(self._content, spec.path)

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        """Look the answer up.

        Raises:
            HarnessError: Of kind `MISSING_RECORDING`.
        """
        found = self._find(case, context.trial)
        error = found.error
        return Observation(
            output=found.output,
            trace=found.trace,
            usage=found.usage,
            model=found.model,
            duration=found.duration or 0.0,
            correlation=context.correlation,
            error=StageError(kind=ErrorKind.HARNESS_ERROR, message=error) if error else None,
            given=found.scores,
        )

    async def aclose(self) -> None:
        """Nothing is open."""

    def _find(self, case: Case, trial: int) -> Recording:
        if self._spec.path is not None:
            for key in ((case.id, trial), (case.id, None)):
                if key in self._lines:
                    return _parse(self._content[self._lines[key]])
            name = Path(self._spec.path).name
            raise _missing(case, f"{name!r} has no line for it (trial {trial})")
        try:
            return Recording(id=case.id, output=self._from_case(case, trial))
        except Missing as error:
            source = "its record" if self._spec.field is not None else "it"
            raise _missing(case, f"{source} has no {error.args[0]!r}") from None

    def _from_case(self, case: Case, trial: int) -> JsonValue:
        if self._spec.field is not None:
            found: JsonValue = lookup(case.record, self._spec.field)
            return found
        values: dict[str, Any] = case_values(case, trial)
        values["case"]["target"] = case.target
        return fill(self._spec.template or "", values)


def _missing(case: Case, why: str) -> HarnessError:
    place = f" ({case.place})" if case.place else ""
    return HarnessError(
        f"no recorded answer for case {case.id!r}{place}: {why}", kind=ErrorKind.MISSING_RECORDING
    )


def _index(content: bytes, path: str) -> dict[Key, slice]:
    """Where each recording stands; every one of them is read once, so that mistakes show."""
    found: dict[Key, slice] = {}
    numbers: dict[Key, int] = {}
    start = number = 0
    while start < len(content):
        number += 1
        end = content.find(b"\n", start)
        place = slice(start, len(content) if end < 0 else end)
        start = place.stop + 1
        if not content[place].strip():
            continue
        try:
            recording = _parse(content[place])
        except ValidationError as error:
            raise SuiteError(f"{path}, line {number}: {first_mistake(error)}") from None
        except (ValueError, RecursionError) as error:
            raise SuiteError(f"{path}, line {number}: not JSON in UTF-8: {error}") from None
        key = (recording.id, recording.trial)
        if key in found:
            raise SuiteError(
                f"{path}, line {number}: id {recording.id!r} is recorded twice for the same "
                f"trial; line {numbers[key]} has it too"
            )
        found[key], numbers[key] = place, number
    return found


def _parse(line: bytes) -> Recording:
    return Recording.model_validate(json.loads(line.decode("utf-8-sig")))
