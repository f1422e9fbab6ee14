"""What the scores of a trial come to, decided without a store or a clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weirbox.domain.case import Case, ParseError
from weirbox.domain.score import Proposal, Score
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
from weirbox.pipeline.deciding import (
    JudgeScope,
    RuleFinding,
    clean_share,
    decide,
    disposition_of,
    proposals_of,
    trial_state,
    verdict_of,
    wants_judging,
)

CASE = Case(id="one", input="question", target="answer")
ROUTING = Routing()


def graded(
    name: str, passed: bool | None, authority: Authority = Authority.OBJECTIVE, **more: Any
) -> Score:
    return Score(name=name, value=1, passed=passed, authority=authority, **more)


def ruled(name: str, outcome: RuleOutcome) -> Score:
    return Score(name=name, value=outcome.value, source=Source.RULE, outcome=outcome)


def judged(name: str, judgement: Judgement, confidence: float | None = None) -> Score:
    passed = {Judgement.PASS: True, Judgement.FAIL: False, Judgement.UNCERTAIN: None}
    return Score(
        name=name,
        value=judgement.value,
        passed=passed[judgement],
        judgement=judgement,
        confidence=confidence,
        source=Source.JUDGE,
        authority=Authority.JUDGE,
    )


def missing(
    name: str,
    state: ScoreState,
    reason: Reason,
    *,
    required: bool = True,
    authority: Authority = Authority.JUDGE,
) -> Score:
    return Score(name=name, state=state, reason=reason, required=required, authority=authority)


TRUTH, OBJECTIVE, JUDGE, OTHER = Authority

VERDICTS: dict[str, tuple[list[Score], Verdict, str]] = {
    "nothing": ([], Verdict.NONE, ""),
    "values that do not bear": ([graded("steps", None)], Verdict.NONE, ""),
    "one tier passes": (
        [graded("a", True, JUDGE), graded("b", True, JUDGE)],
        Verdict.PASS,
        "judge",
    ),
    "all of the tier must pass": (
        [graded("a", True), graded("b", False), graded("c", False)],
        Verdict.FAIL,
        "b",
    ),
    "ground truth outranks every other tier": (
        [graded("j", False, JUDGE), graded("m", False), graded("t", True, TRUTH)],
        Verdict.PASS,
        "ground_truth",
    ),
    "ground truth fails whatever the judge says": (
        [graded("j", True, JUDGE), graded("t", False, TRUTH)],
        Verdict.FAIL,
        "t",
    ),
    "objective outranks judges": (
        [graded("j", True, JUDGE), graded("m", False)],
        Verdict.FAIL,
        "m",
    ),
    "judges outrank others": (
        [graded("o", False, OTHER), graded("j", True, JUDGE)],
        Verdict.PASS,
        "judge",
    ),
    "a tier that was not measured leaves it to the next": (
        [
            missing("t", ScoreState.ERRORED, Reason.INVALID_RUN, authority=TRUTH),
            graded("j", True, JUDGE),
        ],
        Verdict.PASS,
        "judge",
    ),
    "errors alone are no fail": (
        [missing("j", ScoreState.ERRORED, Reason.PROVIDER_ERROR)],
        Verdict.NONE,
        "",
    ),
}


@pytest.mark.parametrize(("scores", "verdict", "deciding"), VERDICTS.values(), ids=VERDICTS.keys())
def test_the_highest_tier_measured_decides(
    scores: list[Score], verdict: Verdict, deciding: str
) -> None:
    assert verdict_of(scores) == (verdict, deciding)


any_score = st.builds(
    graded,
    name=st.sampled_from("abcdef"),
    passed=st.sampled_from([True, False, None]),
    authority=st.sampled_from(list(Authority)),
)
any_missing = st.builds(
    missing,
    name=st.just("x"),
    state=st.sampled_from([ScoreState.UNSCORED, ScoreState.ERRORED, ScoreState.SKIPPED]),
    reason=st.sampled_from(list(Reason)),
    required=st.booleans(),
    authority=st.sampled_from(list(Authority)),
)


@given(st.lists(any_score, max_size=6), any_missing, st.integers(0, 6))
def test_a_check_without_a_score_never_changes_the_verdict(
    scores: list[Score], extra: Score, place: int
) -> None:
    assert verdict_of([*scores[:place], extra, *scores[place:]]) == verdict_of(scores)


@given(st.lists(any_score, max_size=6), any_missing)
def test_a_required_check_without_a_score_is_never_clean(scores: list[Score], extra: Score) -> None:
    found = disposition_of([*scores, extra], routing=ROUTING)
    left_out = extra.state is ScoreState.SKIPPED and extra.reason is Reason.POLICY_SKIP
    if extra.required and not left_out:
        assert found is not Disposition.CLEAN
    if left_out:
        assert found is disposition_of(scores, routing=ROUTING)


@given(st.lists(any_score, max_size=6))
def test_a_pass_by_the_highest_tier_has_no_failing_check_in_it(scores: list[Score]) -> None:
    verdict, deciding = verdict_of(scores)
    failing = {(s.authority.value, s.name) for s in scores if s.passed is False}
    if verdict is Verdict.PASS:
        assert deciding not in {authority for authority, _ in failing}
    if verdict is Verdict.FAIL:
        assert deciding in {name for _, name in failing}


FAIL_RULE = ruled("r", RuleOutcome.FAIL)

DISPOSITIONS: dict[str, tuple[list[Score], Disposition]] = {
    "all pass": ([graded("a", True), judged("j", Judgement.PASS)], Disposition.CLEAN),
    "rule fail": ([FAIL_RULE, judged("j", Judgement.PASS)], Disposition.QUARANTINED),
    "rule review stays in review though its judge passes": (
        [ruled("r", RuleOutcome.REVIEW), judged("j", Judgement.PASS, 1.0)],
        Disposition.REVIEW,
    ),
    "rules pass": ([ruled("r", RuleOutcome.PASS)], Disposition.CLEAN),
    "judge fail at the threshold": (
        [judged("j", Judgement.FAIL, 0.70)],
        Disposition.QUARANTINED,
    ),
    "judge fail under the threshold": ([judged("j", Judgement.FAIL, 0.69)], Disposition.REVIEW),
    "judge fail without a confidence": ([judged("j", Judgement.FAIL)], Disposition.REVIEW),
    "judge uncertain": ([judged("j", Judgement.UNCERTAIN, 0.9)], Disposition.REVIEW),
    "confident judge against ground truth": (
        [graded("t", True, TRUTH), judged("j", Judgement.FAIL, 0.9)],
        Disposition.QUARANTINED,
    ),
    "grader fail": ([graded("a", False, TRUTH)], Disposition.REVIEW),
    "grader fail that is not required": (
        [graded("a", False, required=False)],
        Disposition.REVIEW,
    ),
    "required unscored": (
        [missing("a", ScoreState.UNSCORED, Reason.MISSING_EVIDENCE)],
        Disposition.REVIEW,
    ),
    "optional unscored": (
        [missing("a", ScoreState.UNSCORED, Reason.MISSING_EVIDENCE, required=False)],
        Disposition.CLEAN,
    ),
    "required errored": (
        [missing("a", ScoreState.ERRORED, Reason.PROVIDER_ERROR)],
        Disposition.REVIEW,
    ),
    "optional errored": (
        [missing("a", ScoreState.ERRORED, Reason.PROVIDER_ERROR, required=False)],
        Disposition.CLEAN,
    ),
    "budget, even of an optional check": (
        [missing("a", ScoreState.UNSCORED, Reason.BUDGET, required=False)],
        Disposition.REVIEW,
    ),
    "no judge, even for an optional check": (
        [missing("a", ScoreState.SKIPPED, Reason.NO_JUDGE, required=False)],
        Disposition.REVIEW,
    ),
    "left out by policy": (
        [missing("a", ScoreState.SKIPPED, Reason.POLICY_SKIP)],
        Disposition.CLEAN,
    ),
    "a value that does not bear": ([graded("steps", None)], Disposition.CLEAN),
}


@pytest.mark.parametrize(("scores", "expected"), DISPOSITIONS.values(), ids=DISPOSITIONS.keys())
def test_dispositions(scores: list[Score], expected: Disposition) -> None:
    assert disposition_of(scores, routing=ROUTING) is expected


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_a_stage_error_is_reviewed_and_a_parse_error_quarantined(kind: ErrorKind) -> None:
    found = disposition_of(
        [graded("a", True)], routing=ROUTING, error=StageError(kind=kind, message="broke")
    )
    parse = kind is ErrorKind.PARSE
    assert found is (Disposition.QUARANTINED if parse else Disposition.REVIEW)


def test_the_suite_sets_the_confidence_that_quarantines() -> None:
    strict = Routing(quarantine_confidence=0.0)
    assert disposition_of([judged("j", Judgement.FAIL)], routing=strict) is Disposition.QUARANTINED


PASSED = RuleFinding("ok", RuleOutcome.PASS)
REVIEWED = RuleFinding("odd", RuleOutcome.REVIEW, "tone")

ROUTES: dict[str, tuple[list[RuleFinding], float, JudgeScope, set[str], str]] = {
    "no rules": ([], 0.0, JudgeScope.ALL, set(), "the suite has no rules"),
    "a fail": (
        [REVIEWED, RuleFinding("bad", RuleOutcome.FAIL)],
        1.0,
        JudgeScope.NONE,
        set(),
        "rule 'bad' failed",
    ),
    "reviews that name judges": (
        [PASSED, REVIEWED, RuleFinding("long", RuleOutcome.REVIEW, "style")],
        1.0,
        JudgeScope.CHECKS,
        {"tone", "style"},
        "escalated by 'odd', 'long'",
    ),
    "a review that names none": (
        [REVIEWED, RuleFinding("any", RuleOutcome.REVIEW)],
        0.0,
        JudgeScope.ALL,
        {"anything"},
        "escalated by 'odd', 'any'",
    ),
    "a rule that raised": (
        [PASSED, RuleFinding("broken", None, "tone")],
        0.0,
        JudgeScope.CHECKS,
        {"tone"},
        "escalated by 'broken'",
    ),
    "clean at rate 1": ([PASSED], 1.0, JudgeScope.ALL, {"anything"}, "clean, sampled"),
    "clean at rate 0": ([PASSED], 0.0, JudgeScope.NONE, set(), "clean, not sampled"),
}


@pytest.mark.parametrize(
    ("findings", "rate", "scope", "asked", "reason"), ROUTES.values(), ids=ROUTES.keys()
)
def test_rules_decide_which_judges_are_asked(
    findings: list[RuleFinding], rate: float, scope: JudgeScope, asked: set[str], reason: str
) -> None:
    found = wants_judging(case_id="one", rate=rate, findings=findings)
    assert (found.scope, found.reason) == (scope, reason)
    assert all(found.asks(judge) for judge in asked)
    assert found.asks("unnamed") is (scope is JudgeScope.ALL)


SHARES = {"abc": 0xBA7816BF / 0xFFFFFFFF, "": 0xE3B0C442 / 0xFFFFFFFF}  # FIPS 180-4 examples


@pytest.mark.parametrize(("case_id", "share"), SHARES.items())
def test_the_sample_is_chosen_by_the_hash_of_the_case_id(case_id: str, share: float) -> None:
    assert clean_share(case_id) == share
    routes = [
        wants_judging(case_id=case_id, rate=rate, findings=[PASSED]).scope
        for rate in (share, share + 1e-9)
    ]
    assert routes == [JudgeScope.NONE, JudgeScope.ALL]


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
def test_the_share_of_clean_trials_that_is_judged_is_about_the_rate(rate: float) -> None:
    n = 20_000
    asked = sum(
        wants_judging(case_id=f"case-{i}", rate=rate, findings=[PASSED]).asks("j") for i in range(n)
    )
    assert abs(asked - rate * n) < 5 * (rate * (1 - rate) * n) ** 0.5


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_rate_never_drops_a_case_from_the_sample(
    case_id: str, one: float, two: float
) -> None:
    low, high = sorted((one, two))
    if wants_judging(case_id=case_id, rate=low, findings=[PASSED]).asks("j"):
        assert wants_judging(case_id=case_id, rate=high, findings=[PASSED]).asks("j")


def test_a_case_id_with_a_lone_surrogate_can_be_sampled() -> None:
    assert 0 <= clean_share("\ud800") <= 1


def test_every_failed_check_gets_one_proposal_in_the_order_of_the_scores() -> None:
    scores = [
        graded("tests", False, TRUTH),
        graded("match", False, rationale="differs at character 3"),
        graded("fine", True),
        ruled("dated", RuleOutcome.FAIL),
        ruled("odd", RuleOutcome.REVIEW),
        judged("tone", Judgement.FAIL, 0.2),
        missing("lost", ScoreState.ERRORED, Reason.TIMEOUT),
    ]
    own = Proposal(check="dated", action=ProposedAction.MERGE, message="same as case 7")
    found = proposals_of(scores, case=CASE, from_rules=[own])
    assert [(p.check, p.action, p.suggestion) for p in found] == [
        ("tests", ProposedAction.RERUN, None),
        ("match", ProposedAction.CORRECT, "answer"),
        ("dated", ProposedAction.MERGE, None),
        ("tone", ProposedAction.REJECT, None),
    ]
    assert found[1].message == "differs at character 3"
    assert found[2] == own


def test_nothing_is_suggested_where_the_case_has_no_target() -> None:
    (found,) = proposals_of([graded("match", False)], case=Case(id="one"))
    assert (found.action, found.suggestion) == (ProposedAction.RERUN, None)


def test_a_rule_that_fails_without_a_proposal_of_its_own_gets_a_review() -> None:
    (found,) = proposals_of([FAIL_RULE], case=CASE)
    assert found == Proposal(
        check="r", action=ProposedAction.REVIEW, message="rule 'r' did not pass"
    )


LOST = missing("a", ScoreState.ERRORED, Reason.TIMEOUT)
UNREAD = missing("a", ScoreState.UNSCORED, Reason.PARSE_ERROR)
LEFT_OUT = missing("a", ScoreState.SKIPPED, Reason.POLICY_SKIP)
WAITING = Score(name="a", state=ScoreState.PENDING)

STATES: dict[str, tuple[list[Score], ScoreState]] = {
    "one of many": ([LOST, UNREAD, LEFT_OUT, graded("b", None)], ScoreState.SCORED),
    "a rule alone": ([ruled("r", RuleOutcome.PASS), LEFT_OUT], ScoreState.SCORED),
    "none usable": ([LOST, UNREAD, LEFT_OUT], ScoreState.UNSCORED),
    "all errored": ([LOST, LEFT_OUT], ScoreState.ERRORED),
    "all left out": ([LEFT_OUT], ScoreState.SKIPPED),
    "waiting": ([LOST, WAITING], ScoreState.PENDING),
    "no checks": ([], ScoreState.SKIPPED),
}


@pytest.mark.parametrize(("scores", "state"), STATES.values(), ids=STATES.keys())
def test_a_trial_is_counted_under_one_state(scores: list[Score], state: ScoreState) -> None:
    assert trial_state(scores) is state


ERROR_STATES = {
    ErrorKind.HARNESS_TIMEOUT: ScoreState.SCORED,
    ErrorKind.HARNESS_EXIT: ScoreState.SCORED,
    ErrorKind.COLLECT: ScoreState.ERRORED,
    ErrorKind.PROVISION: ScoreState.ERRORED,
    ErrorKind.PARSE: ScoreState.ERRORED,
}


@pytest.mark.parametrize(("kind", "state"), ERROR_STATES.items())
def test_a_stage_error_makes_a_trial_errored_unless_it_counts_as_measured(
    kind: ErrorKind, state: ScoreState
) -> None:
    error = StageError(kind=kind, message="broke")
    assert trial_state([graded("tests", False, TRUTH)], error=error) is state


def test_an_unreadable_record_is_quarantined_and_its_correction_proposed() -> None:
    case = Case(id="one", parse_error=ParseError(message="line 3: no closing brace", raw="{"))
    found = decide([], case=case, routing=ROUTING)
    assert (found.verdict, found.disposition, found.state) == (
        Verdict.NONE,
        Disposition.QUARANTINED,
        ScoreState.ERRORED,
    )
    assert [(p.action, p.message) for p in found.proposals] == [
        (ProposedAction.CORRECT, "line 3: no closing brace")
    ]


def test_a_failed_pull_of_the_trace_leaves_ground_truth_standing() -> None:
    scores = [
        graded("tests", True, TRUTH),
        missing("steps", ScoreState.UNSCORED, Reason.MISSING_EVIDENCE, authority=OBJECTIVE),
    ]
    found = decide(scores, case=CASE, routing=ROUTING)
    assert found.model_dump(include={"verdict", "disposition", "state", "deciding"}) == {
        "verdict": Verdict.PASS,
        "disposition": Disposition.REVIEW,
        "state": ScoreState.SCORED,
        "deciding": "ground_truth",
    }
    assert found.scores == tuple(scores)


def test_a_confident_fail_quarantines_with_a_proposal() -> None:
    found = decide([judged("tone", Judgement.FAIL, 0.9)], case=CASE, routing=ROUTING)
    assert (found.disposition, found.deciding) == (Disposition.QUARANTINED, "tone")
    assert [p.check for p in found.proposals] == ["tone"]


@given(st.lists(any_score, max_size=6))
def test_deciding_again_decides_the_same_and_proposes_for_failed_checks_only(
    scores: list[Score],
) -> None:
    found = decide(scores, case=CASE, routing=ROUTING)
    assert found == decide(scores, case=CASE, routing=ROUTING)
    assert {p.check for p in found.proposals} == {s.name for s in scores if s.passed is False}
