"""What all graders share: the score's form, its clock, and failures as values."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

from pydantic import JsonValue

from weirbox.domain.base import storable
from weirbox.domain.case import Case
from weirbox.domain.grading import GraderBase
from weirbox.domain.policy import POLICIES
from weirbox.domain.score import Score, Value
from weirbox.domain.seams import Grader, Handle
from weirbox.domain.template import Missing, lookup
from weirbox.domain.trace import Observation
from weirbox.domain.words import Authority, Reason, ScoreState
from weirbox.errors import USER_FAULTS, ComputeLost

STACK_LINES = 20
"""How much of a failure's stack a score keeps."""

Spec = TypeVar("Spec", bound=GraderBase)


class CodeGrader(ABC, Generic[Spec]):
    """A grader as a suite describes it.

    Attributes:
        family_authority: What its scores weigh unless the suite says otherwise.
        needs_compute: Whether it runs before compute is released.
    """

    family_authority: ClassVar[Authority]
    needs_compute: bool = False

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    @property
    def name(self) -> str:
        """The check's name."""
        return self.spec.name

    async def grade(
        self, case: Case, observation: Observation, *, handle: Handle | None
    ) -> list[Score]:
        """Score the observation; every score carries the seconds it took."""
        start = time.perf_counter()
        scores = await self.measure(case, observation, handle)
        duration = time.perf_counter() - start
        return [score.model_copy(update={"duration": duration}) for score in scores]

    @abstractmethod
    async def measure(
        self, case: Case, observation: Observation, handle: Handle | None
    ) -> list[Score]:
        """Score the observation."""

    def scored(
        self,
        value: Value,
        *,
        passed: bool | None,
        rationale: str = "",
        detail: JsonValue = None,
        key: str | None = None,
    ) -> Score:
        """A measured score; `key` tells the scores of one grader apart."""
        return Score(
            name=self._score_name(key),
            value=value,
            passed=passed,
            authority=self._authority,
            required=self.spec.required,
            rationale=storable(rationale),
            detail=detail,
        )

    def unscored(
        self,
        reason: Reason,
        rationale: str,
        *,
        detail: JsonValue = None,
        key: str | None = None,
    ) -> Score:
        """A score where nothing usable came out."""
        return self._without_value(ScoreState.UNSCORED, reason, rationale, detail, key)

    def errored(
        self,
        reason: Reason,
        rationale: str,
        *,
        detail: JsonValue = None,
        key: str | None = None,
    ) -> Score:
        """A score where something on this side broke."""
        return self._without_value(ScoreState.ERRORED, reason, rationale, detail, key)

    def broken(self, error: BaseException) -> Score:
        """What an exception becomes: its type and message, and the end of its stack."""
        return self.errored(Reason.GRADER_ERROR, describe(error), detail={"stack": stack_of(error)})

    @property
    def _authority(self) -> Authority:
        return self.spec.authority or self.family_authority

    def _score_name(self, key: str | None) -> str:
        return self.name if key is None else f"{self.name}.{key}"

    def _without_value(
        self,
        state: ScoreState,
        reason: Reason,
        rationale: str,
        detail: JsonValue,
        key: str | None,
    ) -> Score:
        return Score(
            name=self._score_name(key),
            state=state,
            reason=reason,
            authority=self._authority,
            required=self.spec.required,
            rationale=storable(rationale),
            detail=detail,
        )


class ReferenceGrader(CodeGrader[Spec]):
    """A grader that compares the answer with one or more targets."""

    family_authority = Authority.OBJECTIVE

    async def measure(
        self, case: Case, observation: Observation, handle: Handle | None
    ) -> list[Score]:
        """Compare; without targets or without an answer there is nothing to compare."""
        targets = self.targets(case)
        if not targets:
            return [self.unscored(Reason.MISSING_EVIDENCE, "the case has no target")]
        if observation.output is None:
            return [self._without_answer(observation)]
        return [await self.compare(observation.output, targets)]

    @abstractmethod
    def targets(self, case: Case) -> list[JsonValue]:
        """What the answer may be; empty when the case does not say."""

    @abstractmethod
    async def compare(self, answer: JsonValue, targets: list[JsonValue]) -> Score:
        """Compare an answer with at least one target."""

    @abstractmethod
    def missed(self, rationale: str) -> Score:
        """The score of a trial that came to no answer through its own fault."""

    def _without_answer(self, observation: Observation) -> Score:
        error = observation.error
        if error is None:
            return self.unscored(Reason.EMPTY, "the harness gave no output")
        if POLICIES[error.kind].count:
            return self.missed(f"no output: {error.message}")
        return self.unscored(Reason.STAGE_ERROR, f"no output: {error.message}")


def targets_of(case: Case, path: str | None) -> list[JsonValue]:
    """The targets of a case: the items of a list, or the one there is; nulls are none."""
    try:
        target = case.target if path is None else lookup(case.record, path)
    except Missing:
        return []
    found = target if isinstance(target, list) else [target]
    return [item for item in found if item is not None]


class ComputeGrader(CodeGrader[Spec]):
    """A grader that lays files into compute and runs something there: ground truth."""

    family_authority = Authority.GROUND_TRUTH
    needs_compute = True

    def __init__(self, spec: Spec, files: Mapping[str, str | bytes]) -> None:
        """Args:
        files: What is laid: templates as texts, other files as bytes.
        """
        super().__init__(spec)
        self.files = files


async def grade_safely(
    grader: Grader, case: Case, observation: Observation, handle: Handle | None
) -> list[Score]:
    """Grade; whatever the grader raises becomes an errored score.

    Cancelling passes through, and so does `ComputeLost`: the trial has to be
    executed again, which a score could not ask for.
    """
    start = time.perf_counter()
    try:
        return await grader.grade(case, observation, handle=handle)
    except ComputeLost:
        raise
    except USER_FAULTS as error:
        score = (
            grader.broken(error)
            if isinstance(grader, CodeGrader)
            else Score(
                name=grader.name,
                state=ScoreState.ERRORED,
                reason=Reason.GRADER_ERROR,
                rationale=describe(error),
                detail={"stack": stack_of(error)},
            )
        )
        return [score.model_copy(update={"duration": time.perf_counter() - start})]


def describe(error: BaseException) -> str:
    """An exception in one line: its type and its message."""
    return storable(f"{type(error).__name__}: {error}")


def stack_of(error: BaseException) -> str:
    """The last lines of an exception's stack."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return storable("\n".join(lines[-STACK_LINES:]))
