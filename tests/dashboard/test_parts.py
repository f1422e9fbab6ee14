"""The parts of pages that need no page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dashboard.parts import labels, numbers
from dashboard.parts.chain import Link, Role, chain
from dashboard.parts.text import as_text, one_line, visible
from weirbox.domain.score import Score
from weirbox.domain.words import (
    Authority,
    Disposition,
    Reason,
    RunStatus,
    ScoreState,
    Verdict,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain é 😀\n\tline", "plain é 😀\n\tline", id="what-a-reader-sees-stays"),
        pytest.param("a\x00b\x1b[31m", "a\\x00b\\x1b[31m", id="control-characters"),
        pytest.param("abc\u202etxt.exe", "abc\\u202etxt.exe", id="reversed-direction"),
        pytest.param("lone \ud800 surrogate", "lone \\ud800 surrogate", id="lone-surrogate"),
        pytest.param("a\rb", "a\\x0db", id="carriage-return"),
    ],
)
def test_what_a_reader_would_not_see_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(text).encode("utf-8")


@pytest.mark.parametrize(
    ("text", "length", "cell"),
    [
        pytest.param("short", None, "short", id="short"),
        pytest.param("a\nb\tc", None, "a ⏎ b c", id="lines"),
        pytest.param("x" * 12, None, "xxxxxxxxxx… (12 characters)", id="cut-here"),
        pytest.param("x" * 10, 10_000, "xxxxxxxxxx… (10,000 characters)", id="cut-before"),
    ],
)
def test_a_cell_is_one_line_and_says_when_it_is_cut(
    text: str, length: int | None, cell: str
) -> None:
    assert one_line(text, length=length, limit=10) == cell


def test_json_is_indented_and_text_stays_as_it_is() -> None:
    assert as_text({"a": "é"}) == '{\n  "a": "é"\n}'
    assert as_text("null") == "null"


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        (0.4, "just now"),
        (-5, "just now"),
        (59, "59 s ago"),
        (61, "1 min ago"),
        (7300, "2 h ago"),
        (40 * 3600, "40 h ago"),
        (3 * 86_400, "3 d ago"),
    ],
)
def test_an_age_is_said_in_one_unit(passed: float, said: str) -> None:
    assert numbers.age(NOON - timedelta(seconds=passed), NOON) == said


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (numbers.seconds(0.0421), "42 ms"),
        (numbers.seconds(3.52), "3.5 s"),
        (numbers.seconds(125), "2 min 5 s"),
        (numbers.seconds(7260), "2 h 1 min"),
        (numbers.seconds(3 * 86_400), "3 d 0 h"),
        (numbers.money(0.0004), "$0.0004"),
        (numbers.money(1234.5), "$1,234.50"),
        (numbers.percent(30 / 37), "81.1 %"),
        (numbers.clock(NOON), "2026-01-02 12:00:00 UTC"),
    ],
)
def test_numbers_are_said_with_their_unit(found: str, said: str) -> None:
    assert found == said


def test_what_is_unknown_is_a_dash_and_never_zero() -> None:
    unknown = [numbers.seconds(None), numbers.money(None), numbers.percent(None)]
    unknown += [numbers.age(None), numbers.clock(None), numbers.count(None)]
    assert unknown == [numbers.DASH] * 6
    assert numbers.money(0.0) == "$0.00"


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        (labels.VERDICT, Verdict),
        (labels.DISPOSITION, Disposition),
        (labels.STATE, ScoreState),
        (labels.STATUS, RunStatus),
    ],
)
def test_every_word_has_a_sign_of_its_own_beside_its_colour(
    looks: dict[Any, labels.Label], words: Any
) -> None:
    assert set(looks) == set(words)
    assert [look.word for look in looks.values()] == [str(word) for word in looks]
    assert len({look.sign for look in looks.values()}) == len(looks)


def test_a_bad_answer_and_a_broken_measurement_never_share_a_colour() -> None:
    failed = labels.VERDICT[Verdict.FAIL].color
    broken = {labels.STATE[ScoreState.ERRORED].color, labels.STATUS[RunStatus.FAILED].color}
    assert failed not in broken
    assert len(set(labels.HEX.values())) == len(labels.HEX)


def _score(name: str, authority: Authority, passed: bool | None, **more: Any) -> Score:
    if passed is None:
        unmeasured = {"state": ScoreState.ERRORED, "reason": Reason.GRADER_ERROR}
        return Score(name=name, authority=authority, **(unmeasured | more))
    return Score(name=name, authority=authority, value=passed, passed=passed, **more)


TESTS = _score("tests", Authority.GROUND_TRUTH, True)
BROKEN_TESTS = _score("tests", Authority.GROUND_TRUTH, None)
MATCH = _score("match", Authority.OBJECTIVE, False)
LENGTH = _score("length", Authority.OBJECTIVE, True)
JUDGE = _score("quality", Authority.JUDGE, True)
LATENCY = Score(name="latency", authority=Authority.OTHER, value=0.2)


@pytest.mark.parametrize(
    ("scores", "verdict", "deciding", "links"),
    [
        pytest.param(
            [JUDGE, LATENCY, TESTS],
            Verdict.PASS,
            "ground_truth",
            [
                Link(Authority.GROUND_TRUTH, Role.DECIDES, (TESTS,)),
                Link(Authority.JUDGE, Role.OUTRANKED, (JUDGE,)),
            ],
            id="a-tier-that-passed-outranks",
        ),
        pytest.param(
            [LENGTH, MATCH, JUDGE],
            Verdict.FAIL,
            "match",
            [
                Link(Authority.OBJECTIVE, Role.DECIDES, (LENGTH, MATCH), "match"),
                Link(Authority.JUDGE, Role.OUTRANKED, (JUDGE,)),
            ],
            id="the-check-that-failed-is-named",
        ),
        pytest.param(
            [BROKEN_TESTS, JUDGE],
            Verdict.PASS,
            "judge",
            [
                Link(Authority.GROUND_TRUTH, Role.NOT_MEASURED, (BROKEN_TESTS,)),
                Link(Authority.JUDGE, Role.DECIDES, (JUDGE,)),
            ],
            id="an-unmeasured-tier-passes-on",
        ),
        pytest.param(
            [BROKEN_TESTS],
            Verdict.NONE,
            "",
            [Link(Authority.GROUND_TRUTH, Role.NOT_MEASURED, (BROKEN_TESTS,))],
            id="nothing-decides",
        ),
        pytest.param([LATENCY], Verdict.NONE, "", [], id="no-check-says-pass-or-fail"),
        pytest.param(
            [TESTS],
            None,
            "",
            [Link(Authority.GROUND_TRUTH, Role.NOT_MEASURED, (TESTS,))],
            id="not-judged-yet",
        ),
    ],
)
def test_the_chain_shows_the_stored_decision(
    scores: list[Score], verdict: Verdict | None, deciding: str, links: list[Link]
) -> None:
    assert chain(scores, verdict=verdict, deciding=deciding) == links
