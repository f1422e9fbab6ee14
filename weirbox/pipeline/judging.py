"""The judge stage of one trial: observation graders, rules, routing, judges, decision.

Safe to run twice: calls that were paid for are read back from their rows, and the
stage's own rows are written once, under the driver's claim.
"""

from __future__ import annotations

from collections.abc import Sequence

from weirbox import graders, rules
from weirbox.domain.case import Case
from weirbox.domain.policy import POLICIES
from weirbox.domain.score import Judged, Score
from weirbox.domain.seams import Grader, Ledger
from weirbox.domain.trace import Observation, StageError
from weirbox.domain.words import Authority, Disposition, Reason, ScoreState, Source
from weirbox.pipeline import deciding
from weirbox.pipeline.kit import Kit
from weirbox.store.rows import Ticket


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
        scores += _unmeasured(kit, {score.name for score in scores}, why)
    scores += _without_judge(kit)
    return deciding.decide(
        scores,
        case=case,
        routing=kit.plan.suite.routing,
        error=error,
        from_rules=[finding.proposal for finding in findings if finding.proposal is not None],
    )


def unjudged(executed_scores: Sequence[Score], kit: Kit, error: StageError) -> Judged:
    """What a trial comes to when its judging broke: what was measured before it stands."""
    known = {score.name for score in executed_scores}
    decision = deciding.verdict_of(executed_scores)
    return Judged(
        scores=(*executed_scores, *_unmeasured(kit, known, error.message), *_without_judge(kit)),
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


def _unmeasured(kit: Kit, known: set[str], why: str) -> list[Score]:
    """A score for every check that could not be measured."""
    missing: list[Score] = []
    everyone: tuple[Grader, ...] = (*kit.compute_graders, *kit.graders)
    for grader in everyone:
        if grader.name not in known:
            missing.append(_errored(grader.name, Source.GRADER, Authority.OTHER, why))
    for rule in kit.rules:
        missing.append(_errored(rule.name, Source.RULE, Authority.OTHER, why))
    for spec in kit.plan.suite.judges:
        if spec.name not in kit.plan.skipped_judges:
            missing.append(_errored(spec.name, Source.JUDGE, Authority.JUDGE, why))
    return missing


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
