"""Rules: strict about types, clear about what is wrong, and never silent when they break."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from weirbox import rules
from weirbox.domain.case import Case
from weirbox.domain.ruling import RuleSpec, UniqueInRun
from weirbox.domain.seams import Rule, Workshop
from weirbox.domain.trace import Observation
from weirbox.domain.values import json_equal
from weirbox.domain.words import Authority, ProposedAction, Reason, RuleOutcome, ScoreState, Source
from weirbox.errors import SuiteError
from weirbox.rules import RuleFinding

SPEC: TypeAdapter[Any] = TypeAdapter(RuleSpec)
NAN, INFINITY, HUGE = math.nan, math.inf, 10**400


def rule(spec: dict[str, Any], source: str = "") -> Rule:
    def no_secret(name: str) -> str:
        raise AssertionError(name)

    workshop = Workshop(
        folder="/suite", read_file=lambda path: source.encode(), read_secret=no_secret
    )
    return rules.build(SPEC.validate_python({"name": "check", **spec}), workshop)


def find(
    spec: dict[str, Any],
    record: Any,
    *,
    output: Any = None,
    twin: str | None = None,
    source: str = "",
) -> RuleFinding:
    (finding,) = rules.apply_all(
        [rule(spec, source)],
        Case(id="c1", record=record),
        Observation(output=output),
        {"check": twin} if twin else {},
    )
    return finding


AMOUNT = {"path": "amount"}
TYPE = {"kind": "type", **AMOUNT}
RANGE = {"kind": "range", **AMOUNT, "at_least": 0, "at_most": 10}
PATTERN = {"kind": "regex", **AMOUNT, "pattern": r"[A-Z]{2}\d+"}
ALLOWED = {"kind": "allowed", **AMOUNT, "values": (1, "x", None, {"a": 1})}
DATE = {"kind": "date", **AMOUNT}
REFERENCE = {"kind": "reference", **AMOUNT, "to": "other"}
UNIQUE = {"kind": "unique", **AMOUNT}

# each line: the rule, the value of "amount" (and of "other"), and whether the rule holds
HOLDS: dict[str, tuple[dict[str, Any], Any, Any, bool]] = {
    "string": (TYPE | {"type": "string"}, "x", None, True),
    "number is no string": (TYPE | {"type": "string"}, 1, None, False),
    "number": (TYPE | {"type": "number"}, 1.5, None, True),
    "huge number": (TYPE | {"type": "number"}, HUGE, None, True),
    "digits are no number": (TYPE | {"type": "number"}, "12", None, False),
    "true is no number": (TYPE | {"type": "number"}, True, None, False),
    "nan is no number": (TYPE | {"type": "number"}, NAN, None, False),
    "infinity is no number": (TYPE | {"type": "number"}, INFINITY, None, False),
    "integer": (TYPE | {"type": "integer"}, 3, None, True),
    "1.0 is an integer": (TYPE | {"type": "integer"}, 1.0, None, True),
    "1.5 is none": (TYPE | {"type": "integer"}, 1.5, None, False),
    "true is no integer": (TYPE | {"type": "integer"}, True, None, False),
    "infinity is no integer": (TYPE | {"type": "integer"}, INFINITY, None, False),
    "boolean": (TYPE | {"type": "boolean"}, False, None, True),
    "0 is no boolean": (TYPE | {"type": "boolean"}, 0, None, False),
    "object": (TYPE | {"type": "object"}, {}, None, True),
    "array": (TYPE | {"type": "array"}, [], None, True),
    "text is no array": (TYPE | {"type": "array"}, "[]", None, False),
    "null": (TYPE | {"type": "null"}, None, None, True),
    "null is no string": (TYPE | {"type": "string"}, None, None, False),
    "in range": (RANGE, 5, None, True),
    "at the lower bound": (RANGE, 0, None, True),
    "at the upper bound": (RANGE, 10.0, None, True),
    "below": (RANGE, -0.001, None, False),
    "above": (RANGE, 10.001, None, False),
    "far above": (RANGE, HUGE, None, False),
    "far above one bound": ({"kind": "range", **AMOUNT, "at_least": 0}, HUGE, None, True),
    "nan in range": (RANGE, NAN, None, False),
    "infinity without a bound": ({"kind": "range", **AMOUNT, "at_least": 0}, INFINITY, None, False),
    "digits in range": (RANGE, "5", None, False),
    "true in range": (RANGE, True, None, False),
    "null in range": (RANGE, None, None, False),
    "pattern": (PATTERN, "AB12", None, True),
    "pattern in a part": (PATTERN, "AB12x", None, False),
    "pattern before a newline": (PATTERN, "AB12\n", None, False),
    "pattern on a number": (PATTERN | {"pattern": r"\d+"}, 12, None, False),
    "allowed": (ALLOWED, "x", None, True),
    "1.0 where 1 is allowed": (ALLOWED, 1.0, None, True),
    "'1' where 1 is allowed": (ALLOWED, "1", None, False),
    "true where 1 is allowed": (ALLOWED, True, None, False),
    "null where it is allowed": (ALLOWED, None, None, True),
    "object where it is allowed": (ALLOWED, {"a": 1.0}, None, True),
    "date": (DATE, "2024-02-29", None, True),
    "no such day": (DATE, "2023-02-29", None, False),
    "date and time": (DATE, "2024-02-29T10:00:00Z", None, True),
    "date and time with a space": (DATE, "2024-02-29 10:00", None, True),
    "another order": (DATE, "29.02.2024", None, False),
    "a time alone": (DATE, "10:00", None, False),
    "number as a date": (DATE, 20240229, None, False),
    "null as a date": (DATE, None, None, False),
    "on the first day": (DATE | {"not_before": "2024-01-01"}, "2024-01-01", None, True),
    "within the first day": (DATE | {"not_before": "2024-01-01"}, "2024-01-01T00:00Z", None, True),
    "before it": (DATE | {"not_before": "2024-01-01"}, "2023-12-31T23:59:59", None, False),
    "within the last day": (DATE | {"not_after": "2024-12-31"}, "2024-12-31T23:59", None, True),
    "after it": (DATE | {"not_after": "2024-12-31"}, "2025-01-01", None, False),
    "aware against naive": (
        DATE | {"not_after": "2024-01-01T12:00"},
        "2024-01-01T13:00+02:00",
        None,
        True,
    ),
    "naive against aware": (
        DATE | {"not_before": "2024-01-01T12:00+02:00"},
        "2024-01-01T09:59",
        None,
        False,
    ),
    "not after now": (DATE | {"not_after": "now"}, "2024-01-01T00:00", None, True),
    "a day to come": (
        DATE | {"not_after": "now"},
        (datetime.now(UTC).date() + timedelta(days=2)).isoformat(),
        None,
        False,
    ),
    "not before now": (DATE | {"not_before": "now"}, "2024-01-01", None, False),
    "not before a field": (DATE | {"not_before": "field:other"}, "2024-02-01", "2024-01-01", True),
    "before a field": (DATE | {"not_before": "field:other"}, "2024-01-01", "2024-02-01", False),
    "a field that is no date": (DATE | {"not_after": "field:other"}, "2024-01-01", "soon", False),
    "equal": (REFERENCE | {"relation": "equal"}, 1, 1.0, True),
    "equal types": (REFERENCE | {"relation": "equal"}, 1, "1", False),
    "equal, 1 and true": (REFERENCE | {"relation": "equal"}, 1, True, False),
    "different": (REFERENCE | {"relation": "different"}, "a", "b", True),
    "not different": (REFERENCE | {"relation": "different"}, [1], [1.0], False),
    "less": (REFERENCE | {"relation": "less"}, 1, 2, True),
    "less, equal": (REFERENCE | {"relation": "less"}, 2, 2.0, False),
    "less-or-equal": (REFERENCE | {"relation": "less-or-equal"}, 2, 2.0, True),
    "greater": (REFERENCE | {"relation": "greater"}, HUGE, 2.5, True),
    "greater-or-equal": (REFERENCE | {"relation": "greater-or-equal"}, 1, 2, False),
    "less, nan": (REFERENCE | {"relation": "less"}, NAN, 2, False),
    "greater-or-equal, nan": (REFERENCE | {"relation": "greater-or-equal"}, NAN, 2, False),
    "less, digits and number": (REFERENCE | {"relation": "less"}, "1", 2, False),
    "less, dates of other forms": (
        REFERENCE | {"relation": "less"},
        "2024-01-01T23:00Z",
        "2024-01-02T00:30+01:00",
        True,
    ),
    "less, texts": (REFERENCE | {"relation": "less"}, "a", "b", True),
    "in a list": (REFERENCE | {"relation": "in"}, 1, ["x", 1.0], True),
    "in a list by type": (REFERENCE | {"relation": "in"}, 1, ["1", True], False),
    "in an object": (REFERENCE | {"relation": "in"}, "k", {"k": 1}, True),
    "in a text": (REFERENCE | {"relation": "in"}, "b", "abc", True),
    "in a number": (REFERENCE | {"relation": "in"}, 1, 123, False),
    "null is no value of its own": (UNIQUE, None, None, False),
    "unique": (UNIQUE, "a", None, True),
    "required": ({"kind": "required", "paths": ("amount",)}, 0, None, True),
    "required, false": ({"kind": "required", "paths": ("amount",)}, False, None, True),
    "required, null": ({"kind": "required", "paths": ("amount",)}, None, None, False),
    "required, empty": ({"kind": "required", "paths": ("amount",)}, "", None, False),
    "required, blank": ({"kind": "required", "paths": ("amount",)}, " \n", None, False),
}


@pytest.mark.parametrize("name", HOLDS)
def test_a_rule_holds_or_breaks(name: str) -> None:
    spec, value, other, holds = HOLDS[name]
    finding = find(spec, {"amount": value, "other": other})
    assert finding.state is ScoreState.SCORED
    assert finding.outcome is (RuleOutcome.PASS if holds else RuleOutcome.FAIL)
    assert bool(finding.message) is not holds
    assert (finding.proposal is None) is holds


@pytest.mark.parametrize("on", ["record", "output"])
@pytest.mark.parametrize("name", HOLDS)
def test_a_rule_says_the_same_of_a_json_output(name: str, on: str) -> None:
    spec, value, other, holds = HOLDS[name]
    if spec["kind"] == "unique":
        return
    finding = find(spec | {"on": "output"}, None, output={"amount": value, "other": other})
    assert finding.outcome is (RuleOutcome.PASS if holds else RuleOutcome.FAIL)


KINDS: dict[str, dict[str, Any]] = {
    "type": TYPE | {"type": "string"},
    "range": RANGE,
    "regex": PATTERN,
    "allowed": ALLOWED,
    "date": DATE,
    "unique": UNIQUE,
    "reference": REFERENCE | {"relation": "different"},
    "required": {"kind": "required", "paths": ("amount",)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_value_breaks_a_rule_unless_when_leaves_it_out(kind: str) -> None:
    finding = find(KINDS[kind], {"other": 1})
    assert (finding.outcome, finding.message) == (RuleOutcome.FAIL, "amount is missing")
    for absent in ({"other": 1}, {"amount": None, "other": 1}):
        excused = find(KINDS[kind] | {"when": "amount"}, absent)
        assert (excused.outcome, excused.proposal) == (RuleOutcome.PASS, None)


def test_when_lets_a_rule_hold_where_its_path_is_there() -> None:
    finding = find(RANGE | {"when": "paid.at"}, {"amount": 11, "paid": {"at": "x"}})
    assert finding.outcome is RuleOutcome.FAIL


def test_a_missing_other_field_breaks_the_rule_by_name() -> None:
    assert find(REFERENCE | {"relation": "less"}, {"amount": 1}).message == "other is missing"
    dated = find(DATE | {"not_after": "field:end.day"}, {"amount": "2024-01-01"})
    assert dated.message == "end.day is missing"


MESSAGES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "type": (
        TYPE | {"type": "number"},
        "12",
        'amount is "12" (string); it must be of type number',
    ),
    "range": (RANGE, 11, "amount is 11 (number); it must be a number, at least 0 and at most 10"),
    "regex": (
        PATTERN,
        "x",
        r"amount is "
        r""""x" (string); the whole text must match '[A-Z]{2}\\d+'""",
    ),
    "allowed": (ALLOWED, 2, 'amount is 2 (number); allowed: 1, "x", null, {"a": 1}'),
    "date": (
        DATE | {"not_after": "2024-01-31"},
        "2024-02-01",
        "amount is 2024-02-01, after 2024-01-31",
    ),
    "reference": (
        REFERENCE | {"relation": "less-or-equal"},
        9,
        "amount is 9 (number); it must be less or equal to other, which is 5 (number)",
    ),
    "order": (
        REFERENCE | {"relation": "less"},
        [1],
        "[1] (array) and 5 (number) have no order",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_names_the_path_what_was_found_and_what_is_allowed(name: str) -> None:
    spec, value, message = MESSAGES[name]
    finding = find(spec | {"propose": "correct"}, {"amount": value, "other": 5})
    assert finding.message == message
    assert finding.proposal is not None
    assert finding.proposal.model_dump() == {
        "check": "check",
        "action": ProposedAction.CORRECT,
        "message": message,
        "suggestion": None,
    }


def test_required_names_every_path_that_is_absent() -> None:
    spec = {"kind": "required", "paths": ("a", "b.c", "d", "e")}
    finding = find(spec, {"a": None, "b": {}, "d": "", "e": 1})
    assert finding.message == "a is null; b.c is missing; d is empty"


def test_long_values_and_long_lists_are_cut_in_messages() -> None:
    finding = find(ALLOWED | {"values": tuple(range(1000))}, {"amount": "y" * 10_000})
    assert len(finding.message) < 250
    assert "and 990 more" in finding.message


def test_otherwise_review_escalates_to_the_check_it_names() -> None:
    finding = find(RANGE | {"otherwise": "review", "check": "amounts"}, {"amount": 11})
    assert (finding.outcome, finding.check) == (RuleOutcome.REVIEW, "amounts")
    assert finding.proposal is not None


# outputs


OUTPUTS: dict[str, tuple[Any, RuleOutcome, str]] = {
    "JSON": ({"amount": 5}, RuleOutcome.PASS, ""),
    "JSON text": ('{"amount": 5}', RuleOutcome.PASS, ""),
    "JSON text out of range": ('{"amount": 50}', RuleOutcome.FAIL, "amount is 50"),
    "JSON text with NaN": ('{"amount": NaN}', RuleOutcome.FAIL, "NaN"),
    "prose": ("It is 5.", RuleOutcome.FAIL, 'the output is not JSON: "It is 5."'),
    "empty text": ("", RuleOutcome.FAIL, "the output is not JSON"),
    "nested without end": ("[" * 100_000, RuleOutcome.FAIL, "the output is not JSON"),
    "a number of 5,000 digits": ("1" * 5000, RuleOutcome.FAIL, "the output is not JSON"),
    "a list": ("[5]", RuleOutcome.FAIL, "amount is missing"),
    "nothing": (None, RuleOutcome.FAIL, "there is no output"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_rule_on_the_output_reads_it_as_json(name: str) -> None:
    output, outcome, words = OUTPUTS[name]
    finding = find(RANGE | {"on": "output"}, {"amount": 99}, output=output)
    assert (finding.state, finding.outcome) == (ScoreState.SCORED, outcome)
    assert words in finding.message


def test_paths_lead_into_lists_and_through_keys_with_dots() -> None:
    record = {"items": [{"price": 11}], "a.b": 11}
    for path in ("items.0.price", "a.b"):
        assert find(RANGE | {"path": path}, record).message.startswith(f"{path} is 11")


# unique


def test_a_twin_breaks_a_unique_rule_by_name() -> None:
    finding = find(UNIQUE | {"propose": "merge"}, {"amount": "A1"}, twin="c7")
    assert finding.outcome is RuleOutcome.FAIL
    assert finding.message == (
        "amount is \"A1\" (string), as in case 'c7'; no two cases may share it"
    )
    assert finding.proposal is not None
    assert finding.proposal.action is ProposedAction.MERGE


def unique_value(record: Any, **options: Any) -> str | None:
    spec = UniqueInRun(kind="unique", name="u", path="k", **options)
    return rules.unique_value(spec, record)


def test_unique_values_are_the_same_for_equal_json_values_only() -> None:
    assert unique_value({"k": 1}) == unique_value({"k": 1.0})
    assert unique_value({"k": {"a": 1, "b": [2]}}) == unique_value({"k": {"b": [2.0], "a": 1}})
    values: list[Any] = [1, "1", True, False, 0, "", [], {}, [1], {"k": 1}, "\ud800", 2**53 + 1]
    assert len({unique_value({"k": value}) for value in values}) == len(values)


@pytest.mark.parametrize("record", [{}, {"k": None}, None, [], "text", 5])
def test_a_missing_or_null_value_has_no_twin(record: Any) -> None:
    assert unique_value(record) is None


def test_a_record_that_when_leaves_out_has_no_twin() -> None:
    assert unique_value({"k": 1}, when="active") is None
    assert unique_value({"k": 1, "active": True}, when="active") == unique_value({"k": 1})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON, JSON)
def test_json_equality_agrees_with_pythons_where_no_boolean_is_involved(
    one: Any, other: Any
) -> None:
    assert json_equal(one, one)
    if "True" not in f"{one}{other}" and "False" not in f"{one}{other}":
        assert json_equal(one, other) == (one == other)


# python


def python(body: str, record: Any = None, **options: Any) -> RuleFinding:
    source = f"def f(record):\n    {body}\n"
    return find({"kind": "python", "function": "mine.py:f", **options}, record, source=source)


def test_a_users_function_gives_a_message_or_none() -> None:
    body = "return None if record['a'] < 5 else f'a is {record[\"a\"]}'"
    assert python(body, {"a": 1}).outcome is RuleOutcome.PASS
    broken = python(body, {"a": 7})
    assert (broken.outcome, broken.message) == (RuleOutcome.FAIL, "a is 7")


def test_a_users_function_that_changes_its_record_changes_a_copy() -> None:
    record = {"a": [1]}
    assert python("record['a'].append(2)", record).outcome is RuleOutcome.PASS
    assert record == {"a": [1]}


EXPLOSIONS = {
    "raises": ("return 1 / 0", "ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit(0)", "SystemExit: 0"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "stops": ("raise StopIteration", "StopIteration: "),
    "returns false": ("return False", "returned False; return None, or a message"),
    "returns no words": ("return ' '", "return None, or a message"),
}


@pytest.mark.parametrize("name", EXPLOSIONS)
def test_an_exploding_rule_goes_to_review_and_neither_passes_nor_quarantines(name: str) -> None:
    body, words = EXPLOSIONS[name]
    finding = python(body, {}, otherwise="fail", check="judge", propose="reject")
    assert finding.outcome is RuleOutcome.REVIEW
    assert (finding.state, finding.reason) == (ScoreState.ERRORED, Reason.GRADER_ERROR)
    assert finding.check == "judge"
    assert words in finding.message
    assert finding.proposal is not None
    assert finding.proposal.action is ProposedAction.REVIEW


def test_one_exploding_rule_leaves_the_others_and_their_order() -> None:
    source = "def f(record):\n    raise ValueError('no')\n"
    applied = rules.apply_all(
        [
            rule(RANGE | {"name": "first"}),
            rule({"name": "second", "kind": "python", "function": "mine.py:f"}, source),
            rule(UNIQUE | {"name": "third"}),
        ],
        Case(id="c1", record={"amount": 11}),
        Observation(),
        {"third": "c9", "first": "c8"},
    )
    assert [(finding.rule_name, finding.outcome) for finding in applied] == [
        ("first", RuleOutcome.FAIL),
        ("second", RuleOutcome.REVIEW),
        ("third", RuleOutcome.FAIL),
    ]
    assert "line 2, in f" in applied[1].stack


def test_a_runaway_pattern_goes_to_review_as_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weirbox.domain.patterns.SEARCH_LIMIT_S", 0.1)
    finding = find(PATTERN | {"pattern": "(a|aa)+"}, {"amount": "a" * 80 + "b"})
    assert finding.outcome is RuleOutcome.REVIEW
    assert (finding.state, finding.reason) == (ScoreState.ERRORED, Reason.TIMEOUT)


def test_an_async_function_is_refused_when_it_is_built() -> None:
    with pytest.raises(SuiteError, match="is async"):
        rule({"kind": "python", "function": "mine.py:f"}, "async def f(record): ...")


# findings as scores


def test_a_finding_is_a_score_that_bears_on_no_verdict() -> None:
    score = rules.finding_to_score(find(RANGE | {"otherwise": "review"}, {"amount": 11}))
    assert (score.name, score.state, score.value) == ("check", ScoreState.SCORED, "review")
    assert (score.passed, score.outcome) == (None, RuleOutcome.REVIEW)
    assert (score.source, score.authority, score.required) == (Source.RULE, Authority.OTHER, True)
    assert "amount is 11" in score.rationale
    passed = rules.finding_to_score(find(RANGE, {"amount": 1}))
    assert (passed.value, passed.outcome, passed.passed) == ("pass", RuleOutcome.PASS, None)


def test_an_exploding_rules_score_is_errored_and_has_no_value() -> None:
    score = rules.finding_to_score(python("return 1 / 0", {}))
    assert (score.state, score.reason, score.value) == (
        ScoreState.ERRORED,
        Reason.GRADER_ERROR,
        None,
    )
    assert score.outcome is RuleOutcome.REVIEW
    assert isinstance(score.detail, dict)
    assert "ZeroDivisionError" in str(score.detail["stack"])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a bad pattern": (PATTERN | {"pattern": "[a"}, "'[a' is no regular expression"),
    "an empty pattern": (PATTERN | {"pattern": ""}, "matches everything"),
    "no bound": ({"kind": "range", **AMOUNT}, "needs 'at_least' or 'at_most'"),
    "bounds the wrong way round": (RANGE | {"at_least": 11}, "at least 11 and at most 10"),
    "a bound that is no number": (RANGE | {"at_most": NAN}, "finite"),
    "dates the wrong way round": (
        DATE | {"not_before": "2024-02-01", "not_after": "2024-01-01"},
        "not before 2024-02-01 and not after 2024-01-01",
    ),
    "a bound that is no date": (DATE | {"not_after": "soon"}, "'soon' is neither an ISO date"),
    "a field without a path": (DATE | {"not_after": "field:"}, "neither an ISO date"),
    "an empty path": (RANGE | {"path": ""}, "at least 1 character"),
    "a unique output": (UNIQUE | {"on": "output"}, "compares the records of a plan"),
    "a function without a name": ({"kind": "python", "function": "rules"}, "module:name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_suite_is_refused_for(name: str) -> None:
    spec, words = REFUSED[name]
    with pytest.raises(ValidationError) as caught:
        SPEC.validate_python({"name": "check", **spec})
    assert words in str(caught.value)


def test_a_bound_may_be_a_date_as_yaml_reads_it() -> None:
    bound = find(DATE | {"not_after": date(2024, 1, 31)}, {"amount": "2024-02-01"})
    assert bound.outcome is RuleOutcome.FAIL
