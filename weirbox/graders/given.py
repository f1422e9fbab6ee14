"""given: a score that was recorded with the trial."""

from __future__ import annotations

from weirbox.domain.case import Case
from weirbox.domain.given import GivenScore
from weirbox.domain.grading import Given
from weirbox.domain.score import Score
from weirbox.domain.seams import Handle
from weirbox.domain.trace import Observation
from weirbox.domain.words import Authority, Reason
from weirbox.graders.base import CodeGrader


class GivenGrader(CodeGrader[Given]):
    """Takes over what the recording says; where it says nothing, nothing was measured."""

    family_authority = Authority.OTHER

    async def measure(
        self, case: Case, observation: Observation, handle: Handle | None
    ) -> list[Score]:
        """Find the score of this grader's name."""
        found = observation.given.get(self.name)
        if found is None:
            return [self.unscored(Reason.MISSING_EVIDENCE, "the recording has no such score")]
        return [self._taken_over(found)]

    def _taken_over(self, found: GivenScore) -> Score:
        if found.value is not None:
            return self.scored(
                found.value,
                passed=self._passes(found),
                rationale=found.rationale,
                detail=found.detail,
            )
        return Score(
            name=self.name,
            state=found.state,
            reason=found.reason,
            authority=self._authority,
            required=self.spec.required,
            rationale=found.rationale or "the recording has no value for it",
            detail=found.detail,
        )

    def _passes(self, found: GivenScore) -> bool | None:
        if found.passed is not None:
            return found.passed
        if isinstance(found.value, bool):
            return found.value
        if self.spec.pass_at is None or not isinstance(found.value, int | float):
            return None
        return found.value >= self.spec.pass_at
