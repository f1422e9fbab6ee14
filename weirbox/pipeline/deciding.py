"""What the scores of a trial come to: verdict, disposition, proposals, and who is asked.

Pure decisions over values; the caller commits what they return.

Three principles settle what the vocabulary leaves open:

- Only measurements bear on the verdict. A check that errored or is unscored neither
  passes nor fails: it overturns nothing, and where the whole of a higher tier was not
  measured, the next tier decides. That never hides anything, since a required check
  without a score sends the trial to review.
- A confidence that nobody stated is no confidence: a judge's fail without one counts
  as 0 and goes to review, where a person looks, rather than to quarantine.
- A rule that raised says nothing: what it would have decided is escalated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from weirbox.domain.case import Case
from weirbox.domain.policy import POLICIES
from weirbox.domain.score import Judged, Proposal, Score
from weirbox.domain.spec import Routing
from weirbox.domain.trace import StageError
from weirbox.domain.words import (
    Authority,
    Disposition,
    ErrorKind,
    Judgement,
    ProposedAction,
    Reason,
    RuleOutcome,
    ScoreState,
    Source,
    Verdict,
)

_BY_AUTHORITY = tuple(Authority)
"""The tiers of checks, the highest first."""

_ALWAYS_REVIEWED = frozenset({Reason.BUDGET, Reason.NO_JUDGE})
"""What sends a trial to review even when the check is not required."""

PARSE = "parse"
"""The check that a proposal for an unreadable record names."""


class Decision(NamedTuple):
    """A verdict and what decided it.

    Attributes:
        deciding: The first failing check, or the tier all of which passed; empty
            when nothing was measured.
    """

    verdict: Verdict
    deciding: str


def verdict_of(scores: Sequence[Score]) -> Decision:
    """Decide by authority: only the highest tier that was measured, and all of it must pass."""
    bearing = [
        score for score in scores if score.state is ScoreState.SCORED and score.passed is not None
    ]
    for authority in _BY_AUTHORITY:
        tier = [score for score in bearing if score.authority is authority]
        if tier:
            failed = next((score.name for score in tier if not score.passed), None)
            if failed is not None:
                return Decision(Verdict.FAIL, failed)
            return Decision(Verdict.PASS, authority.value)
    return Decision(Verdict.NONE, "")


def disposition_of(
    scores: Sequence[Score],
    *,
    routing: Routing,
    error: StageError | None = None,
) -> Disposition:
    """Decide what is to be done with the trial's record.

    Quarantined: an unreadable record, a rule's fail, or a judge's fail that is
    confident enough. Review: a stage error, a rule's review, a failed or uncertain
    check, a check without a judge or a budget, a required check without a score.
    A check that routing left out (policy_skip) holds nothing up. Otherwise clean.
    """
    if error is not None and error.kind is ErrorKind.PARSE:
        return Disposition.QUARANTINED
    if any(_quarantines(score, routing.quarantine_confidence) for score in scores):
        return Disposition.QUARANTINED
    if error is not None or any(_needs_review(score) for score in scores):
        return Disposition.REVIEW
    return Disposition.CLEAN


def _quarantines(score: Score, confidence: float) -> bool:
    if score.source is Source.RULE:
        return score.outcome is RuleOutcome.FAIL
    return (
        score.source is Source.JUDGE and failed(score) and (score.confidence or 0.0) >= confidence
    )


def _needs_review(score: Score) -> bool:
    if score.state is ScoreState.SCORED:
        uncertain = score.judgement is Judgement.UNCERTAIN
        return failed(score) or uncertain or score.outcome is RuleOutcome.REVIEW
    if score.state is ScoreState.SKIPPED and score.reason is Reason.POLICY_SKIP:
        return False
    return score.required or score.reason in _ALWAYS_REVIEWED


def failed(score: Score) -> bool:
    """Whether the check was measured and did not pass."""
    return score.state is ScoreState.SCORED and (
        score.passed is False
        or score.outcome is RuleOutcome.FAIL
        or score.judgement is Judgement.FAIL
    )


class RuleFinding(NamedTuple):
    """What routing needs to know of one rule on one trial.

    Attributes:
        outcome: None when the rule itself raised.
        check: The judge that a review escalates to; None for all.
    """

    rule: str
    outcome: RuleOutcome | None
    check: str | None = None


class JudgeScope(StrEnum):
    """Which judges are asked about a trial."""

    ALL = "all"
    CHECKS = "checks"  # only those that the reviewing rules name
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class JudgeRouting:
    """Which judges are asked about a trial, and why.

    Attributes:
        checks: The judges that are asked, when `scope` is CHECKS.
        reason: For people, such as ``clean, sampled``.
    """

    scope: JudgeScope
    reason: str
    checks: frozenset[str] = frozenset()

    def asks(self, judge: str) -> bool:
        """Whether this judge is asked; a judge that is not is skipped (policy_skip)."""
        return self.scope is JudgeScope.ALL or judge in self.checks


def wants_judging(*, case_id: str, rate: float, findings: Sequence[RuleFinding]) -> JudgeRouting:
    """Decide whether a trial is worth paying judges for.

    Args:
        case_id: All trials of a case are sampled alike, in every run.
        rate: The suite's clean_sample_rate, 0 to 1.
        findings: One per rule of the suite; none means that it has no rules, and
            every trial is judged.
    """
    if not findings:
        return JudgeRouting(scope=JudgeScope.ALL, reason="the suite has no rules")
    failing = [finding.rule for finding in findings if finding.outcome is RuleOutcome.FAIL]
    if failing:
        return JudgeRouting(scope=JudgeScope.NONE, reason=f"rule {failing[0]!r} failed")
    escalating = [finding for finding in findings if finding.outcome is not RuleOutcome.PASS]
    if escalating:
        reason = "escalated by " + ", ".join(repr(finding.rule) for finding in escalating)
        checks = frozenset(finding.check for finding in escalating if finding.check is not None)
        if any(finding.check is None for finding in escalating):
            return JudgeRouting(scope=JudgeScope.ALL, reason=reason)
        return JudgeRouting(scope=JudgeScope.CHECKS, checks=checks, reason=reason)
    if rate >= 1 or clean_share(case_id) < rate:
        return JudgeRouting(scope=JudgeScope.ALL, reason="clean, sampled")
    return JudgeRouting(scope=JudgeScope.NONE, reason="clean, not sampled")


def clean_share(case_id: str) -> float:
    """Where a case stands between 0 and 1, by the hash of its id; evenly spread."""
    hashed = hashlib.sha256(case_id.encode("utf-8", "surrogatepass")).hexdigest()
    return int(hashed[:8], 16) / 0xFFFFFFFF


def proposals_of(
    scores: Sequence[Score], *, case: Case, from_rules: Sequence[Proposal] = ()
) -> tuple[Proposal, ...]:
    """One proposal for every failed check, in the order of the scores; none is ever applied.

    Args:
        scores: All scores of the trial.
        case: Its target is suggested where an answer differs from a reference.
        from_rules: What the rules themselves propose; it goes before a proposal of ours.
    """
    proposals: dict[str, Proposal] = {}
    if case.parse_error is not None:
        proposals[PARSE] = Proposal(
            check=PARSE, action=ProposedAction.CORRECT, message=case.parse_error.message
        )
    for proposal in from_rules:
        proposals.setdefault(proposal.check, proposal)
    for score in scores:
        if failed(score):
            proposals.setdefault(score.name, _proposal(score, case))
    order = {score.name: place for place, score in enumerate(scores)}
    return tuple(sorted(proposals.values(), key=lambda proposal: order.get(proposal.check, -1)))


def _proposal(score: Score, case: Case) -> Proposal:
    message = score.rationale or f"{score.source} {score.name!r} did not pass"
    if score.source is Source.JUDGE:
        return Proposal(check=score.name, action=ProposedAction.REJECT, message=message)
    if score.source is Source.RULE:
        return Proposal(check=score.name, action=ProposedAction.REVIEW, message=message)
    if score.authority is Authority.OBJECTIVE and case.target is not None:
        return Proposal(
            check=score.name,
            action=ProposedAction.CORRECT,
            message=message,
            suggestion=case.target,
        )
    return Proposal(check=score.name, action=ProposedAction.RERUN, message=message)


def trial_state(scores: Sequence[Score], *, error: StageError | None = None) -> ScoreState:
    """The one state a trial is counted under in the progress of its run.

    Errored when a stage failed in a way that does not count as a measurement.
    Otherwise the first of scored, pending, unscored, errored that any check is;
    skipped when every check was.
    """
    if error is not None and not POLICIES[error.kind].count:
        return ScoreState.ERRORED
    states = {score.state for score in scores}
    order = (ScoreState.SCORED, ScoreState.PENDING, ScoreState.UNSCORED, ScoreState.ERRORED)
    return next((state for state in order if state in states), ScoreState.SKIPPED)


def decide(
    scores: Sequence[Score],
    *,
    case: Case,
    routing: Routing,
    error: StageError | None = None,
    from_rules: Sequence[Proposal] = (),
) -> Judged:
    """Decide everything about one trial.

    The same arguments give the same result, so judging a trial again after a
    crash changes nothing.

    Args:
        scores: All scores of the trial, in the suite's order.
        case: The case; its parse error quarantines.
        routing: The suite's thresholds.
        error: The stage error of the trial, if a stage failed.
        from_rules: What the rules propose.
    """
    if case.parse_error is not None:
        error = StageError(kind=ErrorKind.PARSE, message=case.parse_error.message)
    decision = verdict_of(scores)
    return Judged(
        scores=tuple(scores),
        verdict=decision.verdict,
        disposition=disposition_of(scores, routing=routing, error=error),
        state=trial_state(scores, error=error),
        deciding=decision.deciding,
        proposals=proposals_of(scores, case=case, from_rules=from_rules),
    )
