"""The judge stage of one trial: observation graders, rules, routing, judges, decision.

Safe to run twice: calls that were paid for are read back from their rows, and the
stage's own rows are written once, under the driver's claim.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from weirbox import graders, rules
from weirbox.domain.case import Case
from weirbox.domain.policy import POLICIES
from weirbox.domain.score import Judged, Proposal, Score
from weirbox.domain.seams import Grader, Ledger
from weirbox.domain.trace import Observation, StageError
from weirbox.domain.words import Authority, Disposition, Reason, ScoreState, Source
from weirbox.pipeline import deciding
from weirbox.pipeline.kit import Kit
from weirbox.store.rows import Ticket, redo_checks


async def judge(
    case: Case,
    ticket: Ticket,
    observation: Observation,
    executed_scores: Sequence[Score],
    *,
    kit: Kit,
    ledger: Ledger,
) -> Judged:
    """Decide about one trial; every failure of a grader, rule or judge is a score."""
    error = observation.error
    graded = error is None or POLICIES[error.kind].grade
    scores = list(executed_scores)
    findings: list[rules.RuleFinding] = []
    if graded:
        for grader in kit.graders:
            scores += await graders.grade_safely(grader, case, observation, None)
        findings = rules.apply_all(kit.rules, case, observation, twins_of(kit, case))
        scores += [rules.finding_to_score(finding) for finding in findings]
        scores += await _ask_judges(case, ticket, observation, findings, kit=kit, ledger=ledger)
    else:
        why = "the execution failed, so there was nothing to measure"
        scores += _unmeasured(kit, scores, why)
    scores += _without_judge(kit)
    return deciding.decide(
        scores,
        case=case,
        routing=kit.plan.suite.routing,
        error=error,
        from_rules=[finding.proposal for finding in findings if finding.proposal is not None],
    )


@dataclass(frozen=True)
class Standing:
    """What stands of a trial that is to measure some of its checks again.

    Attributes:
        scores: In the suite's order; those of the checks in question were put aside.
    """

    scores: tuple[Score, ...]
    proposals: tuple[Proposal, ...]

    def fresh(self, judged: Judged) -> tuple[Score, ...]:
        """The scores that are new."""
        known = {score.name for score in self.scores}
        return tuple(score for score in judged.scores if score.name not in known)


async def judge_again(
    case: Case,
    ticket: Ticket,
    observation: Observation,
    standing: Standing,
    *,
    kit: Kit,
    ledger: Ledger,
) -> Judged:
    """Measure the checks that the ticket names, and decide anew over all scores.

    The rules are not applied again: routing stays as it was, so a judge that it had left
    out is left out still.
    """
    again = redo_checks(ticket.redo)
    scores = list(standing.scores)
    for grader in kit.graders:
        if grader.name in again:
            scores += await graders.grade_safely(grader, case, observation, None)
    asked = await kit.panel.judge(
        case, observation, trial=ticket.trial, checks=again, ledger=ledger
    )
    scores += [score for score in asked if score.name in again]
    return deciding.decide(
        kit.in_order(scores),
        case=case,
        routing=kit.plan.suite.routing,
        error=observation.error,
        from_rules=standing.proposals,
    )


def unjudged(measured: Sequence[Score], kit: Kit, error: StageError) -> Judged:
    """What a trial comes to when its judging broke: what was measured before it stands."""
    decision = deciding.verdict_of(measured)
    known = {score.name for score in measured}
    missing = [*_unmeasured(kit, measured, error.message), *_without_judge(kit)]
    return Judged(
        scores=(*measured, *(score for score in missing if score.name not in known)),
        verdict=decision.verdict,
        disposition=Disposition.REVIEW,
        state=ScoreState.ERRORED,
        deciding=decision.deciding,
    )


def twins_of(kit: Kit, case: Case) -> dict[str, str]:
    """For each unique rule, the case that has the same value as this one."""
    return {name: twins[case.id] for name, twins in kit.plan.twins.items() if case.id in twins}


async def _ask_judges(
    case: Case,
    ticket: Ticket,
    observation: Observation,
    findings: Sequence[rules.RuleFinding],
    *,
    kit: Kit,
    ledger: Ledger,
) -> list[Score]:
    routing = deciding.wants_judging(
        case_id=case.id,
        rate=kit.plan.suite.routing.clean_sample_rate,
        findings=[deciding.RuleFinding(f.rule_name, f.outcome, f.check) for f in findings],
    )
    checks = [judge.name for judge in kit.plan.suite.judges if routing.asks(judge.name)]
    return await kit.panel.judge(
        case, observation, trial=ticket.trial, checks=checks, ledger=ledger
    )


def _unmeasured(kit: Kit, measured: Collection[Score], why: str) -> list[Score]:
    """A score for every check that could not be measured."""
    everyone: tuple[Grader, ...] = (*kit.compute_graders, *kit.graders)
    missing = [_errored(one.name, Source.GRADER, Authority.OTHER, why) for one in everyone]
    missing += [_errored(rule.name, Source.RULE, Authority.OTHER, why) for rule in kit.rules]
    missing += [
        _errored(spec.name, Source.JUDGE, Authority.JUDGE, why)
        for spec in kit.plan.suite.judges
        if spec.name not in kit.plan.skipped_judges
    ]
    known = {kit.check_of(score.name) for score in measured}
    return [score for score in missing if score.name not in known]


def _errored(name: str, source: Source, authority: Authority, why: str) -> Score:
    return Score(
        name=name,
        state=ScoreState.ERRORED,
        reason=Reason.STAGE_ERROR,
        source=source,
        authority=authority,
        rationale=why,
    )


def _without_judge(kit: Kit) -> list[Score]:
    return [
        Score(
            name=name,
            state=ScoreState.SKIPPED,
            reason=Reason.NO_JUDGE,
            source=Source.JUDGE,
            authority=Authority.JUDGE,
            rationale=why,
        )
        for name, why in kit.plan.skipped_judges.items()
    ]
