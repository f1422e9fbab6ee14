"""What the rules of a suite found in one trial, an exploding rule included."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weirbox.domain.base import storable
from weirbox.domain.case import Case
from weirbox.domain.patterns import PatternTimeout
from weirbox.domain.score import Proposal, Score
from weirbox.domain.seams import Rule
from weirbox.domain.trace import Observation
from weirbox.domain.words import Authority, ProposedAction, Reason, RuleOutcome, ScoreState, Source
from weirbox.errors import USER_FAULTS

STACK_LINES = 20
"""How much of a failure's stack a finding keeps."""


@dataclass(frozen=True, kw_only=True)
class RuleFinding:
    """What one rule says of one trial.

    Attributes:
        check: The judge that a review escalates to; None for all.
        state: ``errored`` when the rule itself broke; its outcome is then review.
        reason: Set where `state` is ``errored``.
        stack: The end of the stack of a rule that broke.
    """

    rule_name: str
    check: str | None
    outcome: RuleOutcome
    message: str = ""
    proposal: Proposal | None = None
    state: ScoreState = ScoreState.SCORED
    reason: Reason | None = None
    stack: str = ""


def apply_all(
    rules: Sequence[Rule], case: Case, observation: Observation, twins: Mapping[str, str]
) -> list[RuleFinding]:
    """Apply every rule, in the suite's order.

    A rule that raises has neither passed the record nor found fault with it: the
    finding is a review, so a judge or a person looks at it.

    Args:
        twins: For rules of kind unique: the rule's name -> the id of another case with
            the same value.
    """
    return [_apply(rule, case, observation, twins.get(rule.name)) for rule in rules]


def finding_to_score(finding: RuleFinding) -> Score:
    """A finding as a row among the trial's scores; it does not bear on the verdict."""
    errored = finding.state is ScoreState.ERRORED
    return Score(
        name=finding.rule_name,
        state=finding.state,
        reason=finding.reason,
        value=None if errored else finding.outcome.value,
        passed=None,
        authority=Authority.OTHER,
        source=Source.RULE,
        required=True,
        rationale=finding.message,
        outcome=finding.outcome,
        detail={"stack": finding.stack} if finding.stack else None,
    )


def _apply(rule: Rule, case: Case, observation: Observation, twin: str | None) -> RuleFinding:
    try:
        result = rule.apply(case, observation, twin)
    except USER_FAULTS as error:
        return _exploded(rule, error)
    return RuleFinding(
        rule_name=rule.name,
        check=rule.check,
        outcome=result.outcome,
        message=storable(result.message),
        proposal=result.proposal,
    )


def _exploded(rule: Rule, error: BaseException) -> RuleFinding:
    message = storable(f"{type(error).__name__}: {error}")
    lines = "".join(traceback.format_exception(error)).splitlines()
    return RuleFinding(
        rule_name=rule.name,
        check=rule.check,
        outcome=RuleOutcome.REVIEW,
        message=message,
        proposal=Proposal(
            check=rule.name,
            action=ProposedAction.REVIEW,
            message=f"the rule itself broke: {message}",
        ),
        state=ScoreState.ERRORED,
        reason=Reason.TIMEOUT if isinstance(error, PatternTimeout) else Reason.GRADER_ERROR,
        stack=storable("\n".join(lines[-STACK_LINES:])),
    )
