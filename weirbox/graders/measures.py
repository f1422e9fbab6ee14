"""steps, cost and latency: what a trial took."""

from __future__ import annotations

import math
from abc import abstractmethod

from weirbox.domain.case import Case
from weirbox.domain.grading import MeasureGrader
from weirbox.domain.score import Score
from weirbox.domain.seams import Handle
from weirbox.domain.trace import Observation
from weirbox.domain.words import Authority, EventKind, Reason
from weirbox.graders.base import CodeGrader


def measure_grader(spec: MeasureGrader) -> CodeGrader[MeasureGrader]:
    """Make the grader of the spec's measure."""
    match spec.kind:
        case "steps":
            return StepsGrader(spec)
        case "cost":
            return CostGrader(spec)
        case "latency":
            return LatencyGrader(spec)


class _Measure(CodeGrader[MeasureGrader]):
    """Reads one number; what is unknown is unscored, never 0."""

    family_authority = Authority.OTHER
    unknown: str

    async def measure(
        self, case: Case, observation: Observation, handle: Handle | None
    ) -> list[Score]:
        """Read the number and compare it with `at_most`."""
        value = self.read(observation)
        if value is None:
            return [self.unscored(Reason.MISSING_EVIDENCE, self.unknown)]
        if not math.isfinite(value):
            return [self.errored(Reason.OUT_OF_RANGE, f"{self.spec.kind} is {value}")]
        passed = None if self.spec.at_most is None else value <= self.spec.at_most
        return [self.scored(value, passed=passed)]

    @abstractmethod
    def read(self, observation: Observation) -> int | float | None:
        """The number, or None where it is unknown."""


class StepsGrader(_Measure):
    """Counts LLM calls, or tool calls where the trace has no LLM calls."""

    unknown = "the trace has neither LLM calls nor tool calls"

    def read(self, observation: Observation) -> int | None:
        """The count."""
        kinds = [event.kind for event in observation.trace]
        return kinds.count(EventKind.LLM_CALL) or kinds.count(EventKind.TOOL_CALL) or None


class CostGrader(_Measure):
    """US dollars: the trial's own figure, or the sum over its LLM calls if all are known."""

    unknown = "the cost of the trial is unknown"

    def read(self, observation: Observation) -> float | None:
        """The sum."""
        if observation.usage.cost_usd is not None:
            return observation.usage.cost_usd
        costs = [
            event.usage.cost_usd if event.usage else None
            for event in observation.trace
            if event.kind is EventKind.LLM_CALL
        ]
        known = [cost for cost in costs if cost is not None]
        return math.fsum(known) if costs and len(known) == len(costs) else None


class LatencyGrader(_Measure):
    """The harness's seconds; a recorded answer, which took none, has none."""

    unknown = "the harness's time was not measured"

    def read(self, observation: Observation) -> float | None:
        """The seconds."""
        return observation.duration or None
