"""Scores, judge calls, proposals and what a trial comes to."""

from __future__ import annotations

from typing import Self

from pydantic import JsonValue, model_validator

from weirbox.domain.base import Frozen
from weirbox.domain.trace import Usage
from weirbox.domain.words import (
    Authority,
    Disposition,
    Judgement,
    ProposedAction,
    Reason,
    RuleOutcome,
    ScoreState,
    Source,
    Tier,
    Verdict,
)

Value = bool | int | float | str


class Score(Frozen):
    """One grader's, rule's or judge's result on one trial.

    Attributes:
        name: The check, unique within the trial.
        value: Kept as it is typed; None unless `state` is scored.
        passed: None when the score does not bear on pass or fail.
        required: Whether a trial without this score goes to review.
        confidence: 0 to 1, where a judge gave one.
        tier: The tier whose verdict stands.
        duration: Seconds it took.
    """

    name: str
    state: ScoreState = ScoreState.SCORED
    reason: Reason | None = None
    value: Value | None = None
    passed: bool | None = None
    authority: Authority = Authority.OTHER
    source: Source = Source.GRADER
    required: bool = True
    confidence: float | None = None
    rationale: str = ""
    tier: Tier | None = None
    model: str | None = None
    outcome: RuleOutcome | None = None
    judgement: Judgement | None = None
    detail: JsonValue = None
    duration: float | None = None

    @model_validator(mode="after")
    def _state_and_value_agree(self) -> Self:
        if self.state is ScoreState.SCORED and self.value is None:
            raise ValueError(f"score {self.name!r} is scored but has no value")
        if self.state is not ScoreState.SCORED and self.value is not None:
            raise ValueError(f"score {self.name!r} is {self.state} but has a value")
        if self.state in (ScoreState.UNSCORED, ScoreState.ERRORED) and self.reason is None:
            raise ValueError(f"score {self.name!r} is {self.state} without a reason")
        return self


class JudgeCall(Frozen):
    """One call of a judge, booked whether or not its verdict stands.

    Attributes:
        request_digest: Over model, prompt and parameters: the key of reuse.
        usage: Tokens and cost; cost None means unknown, never zero.
        cached: A reply from a recording or from an earlier call; costs nothing.
        reply: The provider's text, for reuse after a crash and for the case page.
    """

    check: str
    tier: Tier
    model: str
    provider: str
    request_digest: str
    usage: Usage = Usage()
    cached: bool = False
    ok: bool = True
    message: str = ""
    reply: JsonValue = None
    duration: float = 0.0


class Proposal(Frozen):
    """A suggestion for a failed check; a person decides."""

    check: str
    action: ProposedAction
    message: str
    suggestion: JsonValue = None


class Judged(Frozen):
    """What the judge stage decided about one trial."""

    scores: tuple[Score, ...]
    verdict: Verdict
    disposition: Disposition
    state: ScoreState
    deciding: str = ""
    proposals: tuple[Proposal, ...] = ()
