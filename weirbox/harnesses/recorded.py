"""Answers that were produced elsewhere."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from weirbox.domain.base import Frozen
from weirbox.domain.case import Case
from weirbox.domain.seams import Handle, TrialContext, Workshop
from weirbox.domain.spec import RecordedHarness
from weirbox.domain.template import Missing, fill, lookup
from weirbox.domain.trace import Observation, TraceEvent, Usage
from weirbox.domain.words import ErrorKind
from weirbox.errors import HarnessError, SuiteError
from weirbox.harnesses.values import case_values


class Recording(Frozen):
    """One line of a file of recorded answers.

    Attributes:
        trial: The trial it answers; absent means every trial without a line of its own.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    output: JsonValue
    trial: int | None = Field(default=None, ge=1)
    trace: tuple[TraceEvent, ...] = ()
    usage: Usage = Usage()
    model: str | None = None


class Recorded:
    """Gives recorded answers; see `RecordedHarness`."""

    needs_compute = False

    def __init__(self, spec: RecordedHarness, workshop: Workshop) -> None:
        self._spec = spec
        self._recordings: dict[tuple[str, int | None], Recording] = {}
        if spec.path is not None:
            file = str(Path(workshop.folder, spec.path).resolve())
            self._recordings = _read(workshop.read_file(file), spec.path)

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        """Look the answer up.

        Raises:
            HarnessError: Of kind `MISSING_RECORDING`.
        """
        started = time.perf_counter()
        found = self._find(case, context.trial)
        return Observation(
            output=found.output,
            trace=found.trace,
            usage=found.usage,
            model=found.model,
            duration=time.perf_counter() - started,
            correlation=context.correlation,
        )

    async def aclose(self) -> None:
        """Nothing is open."""

    def _find(self, case: Case, trial: int) -> Recording:
        if self._spec.path is not None:
            for key in ((case.id, trial), (case.id, None)):
                if key in self._recordings:
                    return self._recordings[key]
            raise _missing(case, f"{self._spec.path!r} has no line for it (trial {trial})")
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


def _read(content: bytes, path: str) -> dict[tuple[str, int | None], Recording]:
    found: dict[tuple[str, int | None], Recording] = {}
    lines: dict[tuple[str, int | None], int] = {}
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            recording = Recording.model_validate(json.loads(line.decode("utf-8-sig")))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise SuiteError(f"{path}, line {number}: {where}: {first['msg']}") from None
        except (ValueError, RecursionError) as error:
            raise SuiteError(f"{path}, line {number}: not JSON in UTF-8: {error}") from None
        key = (recording.id, recording.trial)
        if key in found:
            raise SuiteError(
                f"{path}, line {number}: id {recording.id!r} is recorded twice for the same "
                f"trial; line {lines[key]} has it too"
            )
        found[key], lines[key] = recording, number
    return found
