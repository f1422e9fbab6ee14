"""Read a judge's reply: what it says of a check, or why it says nothing usable.

The judge's own, last word counts. Text quoted from the answer never does, words
inside prose are no verdicts, and nothing is ever guessed, clamped or defaulted:
what cannot be read is a state with a reason.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from weirbox.domain.judging import Rubric
from weirbox.domain.score import Value
from weirbox.domain.seams import JudgeReply
from weirbox.domain.words import Judgement, Reason, ScoreState
from weirbox.judges.finding import (
    TWICE,
    Labelled,
    Object,
    blank,
    clean,
    find_labelled,
    find_objects,
    squash,
    word_key,
)

_VERDICTS = {
    "pass": Judgement.PASS,
    "passed": Judgement.PASS,
    "fail": Judgement.FAIL,
    "failed": Judgement.FAIL,
    "uncertain": Judgement.UNCERTAIN,
}
_TRUTHS = {"true": Judgement.PASS, "yes": Judgement.PASS} | {
    "false": Judgement.FAIL,
    "no": Judgement.FAIL,
}
_VERDICT_KEYS = ("verdict", "judgement", "judgment")
_TRUTH_KEYS = ("pass", "passed")
_REASON_KEYS = ("reason", "rationale", "explanation")

_NUMBER = re.compile(r"[+-]?\d{1,300}(?:\.\d{1,300})?")
_FRACTION = re.compile(rf"({_NUMBER.pattern})\s*/\s*({_NUMBER.pattern})")
_CONFIDENCE = r"\d?\.?\d+"
_REFUSAL = re.compile(
    r"\A\W*(?:(?:i['’]m|i am) (?:very |so )?sorry\W+|sorry\W+|i apologi[sz]e\W+|as an ai\b[^.]*?)?"
    r"(?:but )?(?:i (?:cannot|can['’]t|can not|could not|won['’]t|will not|(?:must )?decline to)"
    r"|i(?:['’]m| am) (?:unable|not able|not allowed) to)(?: \w+ly)? (?:help|assist|comply|answer"
    r"|respond|provide|do|judge|evaluate|grade|assess|rate|score|review|continue|engage|discuss"
    r"|participate|support|process|complete|fulfill?)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Reading:
    """What a reply comes to.

    Attributes:
        state: scored, unscored or (for a call that failed) errored.
        value: The verdict's word, the number, or the choice; None unless scored.
        passed: None when the reply does not bear on pass or fail.
        confidence: 0 to 1; None when the judge gave none, or one that is not on that scale.
    """

    state: ScoreState
    reason: Reason | None = None
    judgement: Judgement | None = None
    value: Value | None = None
    passed: bool | None = None
    confidence: float | None = None
    rationale: str = ""


def read_verdict(
    reply: JudgeReply, rubric: Rubric, *, answer_text: Callable[[], str] = lambda: ""
) -> Reading:
    """Read one reply.

    Args:
        answer_text: Gives everything under test that the judge was shown, and is only
            asked when needed. A verdict that stands in there counts only when it is
            the whole reply.
    """
    text = clean(reply.text)
    if reply.stop == "refusal":
        return _unscored(Reason.REFUSAL, text)
    if reply.stop == "length":
        return _unscored(Reason.TRUNCATED, text)
    if not text:
        return _unscored(Reason.EMPTY)
    reading = _bare(text, rubric) or _searched(text, rubric, answer_text)
    if reading.state is ScoreState.UNSCORED and not reading.rationale:
        return replace(reading, rationale=text)
    return reading


def _is_whole(one: Object, text: str) -> bool:
    return one.start == 0 and one.end == len(text)


def _searched(text: str, rubric: Rubric, answer_text: Callable[[], str]) -> Reading:
    """The reading of what stands somewhere in a reply, text quoted from the answer aside."""
    objects = find_objects(text)
    if len(objects) == 1 and objects[0].value is not None and _is_whole(objects[0], text):
        return _from_object(objects[0].value, rubric) or _unscored(Reason.PARSE_ERROR)
    prose = blank(text, objects)
    labels = list(find_labelled(prose, *_label(rubric)))
    own = _NotQuoted(text, answer_text)
    verdicts = [(one, _from_object(one.value, rubric)) for one in objects if one.value is not None]
    readings = [
        reading
        for one, reading in verdicts
        if reading is not None and own(text[one.start : one.end])
    ]
    own_labels = [label for label in labels if own(label.source)]
    if own_labels:
        readings.append(_from_labels(own_labels, text, rubric))
    if not readings and own.refused:
        return _unscored(Reason.AMBIGUOUS)
    if not readings:
        return _unscored(Reason.REFUSAL if _REFUSAL.match(text) else Reason.PARSE_ERROR)
    if len({(one.state, one.reason, one.value) for one in readings}) > 1:
        return _unscored(Reason.AMBIGUOUS)
    return readings[-1]


class _NotQuoted:
    """Whether a passage of a reply is the judge's own and not taken from the answer.

    A passage that is the whole reply is the judge's own, whatever the answer says.

    Attributes:
        refused: Whether any passage was found to be taken from the answer.
    """

    def __init__(self, reply: str, answer: Callable[[], str]) -> None:
        self._reply = squash(reply)
        self._answer = answer
        self.refused = False

    @functools.cached_property
    def _squashed_answer(self) -> str:
        return squash(self._answer())

    def __call__(self, passage: str) -> bool:
        squashed = squash(passage)
        if squashed == self._reply or squashed not in self._squashed_answer:
            return True
        self.refused = True
        return False


def _bare(text: str, rubric: Rubric) -> Reading | None:
    """The reading of a reply that is one word or number and nothing else."""
    if rubric.kind == "score":
        plain = word_key(text)
        on_scale = _NUMBER.fullmatch(plain) or _FRACTION.fullmatch(plain)
        return _interpret(plain, rubric) if on_scale else None
    reading = _interpret(text, rubric)
    one_word = re.fullmatch(r"\w+", word_key(text)) is not None
    return reading if reading.state is ScoreState.SCORED or one_word else None


def _from_object(found: dict[str, Any], rubric: Rubric) -> Reading | None:
    """The reading of one JSON object; None when it has none of the rubric's keys."""
    if rubric.kind == "verdict":
        readings = [_interpret(found[key], rubric) for key in _VERDICT_KEYS if key in found]
        readings += [_read_truth(found[key]) for key in _TRUTH_KEYS if key in found]
    else:
        readings = [_interpret(found[rubric.kind], rubric)] if rubric.kind in found else []
    if not readings:
        return None
    rationale = next((_as_text(found[key]) for key in _REASON_KEYS if key in found), "")
    if len({(one.reason, one.judgement, one.value) for one in readings}) > 1:
        return _unscored(Reason.AMBIGUOUS, rationale)
    confidence = _read_confidence(found.get("confidence"))
    return replace(readings[0], confidence=confidence, rationale=rationale)


def _from_labels(labels: list[Labelled], text: str, rubric: Rubric) -> Reading:
    """The judge's last word among labelled ones; those that head a line go first."""
    heads = [label for label in labels if label.heads_line]
    last = heads[-1] if heads else labels[-1]
    reading = _interpret(last.word, rubric)
    later = [_interpret(label.word, rubric) for label in labels if label.start > last.start]
    if any(one.value != reading.value for one in later):
        return _unscored(Reason.AMBIGUOUS)
    given = [found.word for found in find_labelled(text, "confidence", _CONFIDENCE)]
    confidence = _read_confidence(given[-1]) if given else None
    return replace(reading, confidence=confidence, rationale=text)


def _label(rubric: Rubric) -> tuple[str, str]:
    if rubric.kind == "score":
        return "score", rf"{_FRACTION.pattern}|{_NUMBER.pattern}"
    if rubric.kind == "verdict":
        return "|".join(_VERDICT_KEYS), r"\w+"
    menu = "|".join(re.escape(word) for word in sorted(rubric.choices, key=len, reverse=True))
    return "choice", rf"{menu}|\w+"


def _interpret(raw: Any, rubric: Rubric) -> Reading:
    if raw is TWICE:
        return _unscored(Reason.AMBIGUOUS)
    if rubric.kind == "score":
        return _read_score(raw, rubric)
    if not isinstance(raw, str) or not raw.strip():
        return _unscored(Reason.PARSE_ERROR)
    if rubric.kind == "choice":
        return _read_choice(raw, rubric)
    return _judged(_VERDICTS.get(word_key(raw)))


def _read_truth(raw: Any) -> Reading:
    """The value of a key such as ``pass``: a boolean, or a word that is read as a word."""
    if isinstance(raw, bool):
        return _judged(Judgement.PASS if raw else Judgement.FAIL)
    if raw is TWICE:
        return _unscored(Reason.AMBIGUOUS)
    if not isinstance(raw, str) or not raw.strip():
        return _unscored(Reason.PARSE_ERROR)
    return _judged((_VERDICTS | _TRUTHS).get(word_key(raw)))


def _judged(judgement: Judgement | None, *, value: str | None = None) -> Reading:
    if judgement is None:
        return _unscored(Reason.OFF_MENU)
    return Reading(
        ScoreState.SCORED,
        judgement=judgement,
        value=value or judgement.value,
        passed=None if judgement is Judgement.UNCERTAIN else judgement is Judgement.PASS,
    )


def _read_choice(raw: str, rubric: Rubric) -> Reading:
    exact = [choice for choice in rubric.choices if choice == raw.strip()]
    alike = exact or [choice for choice in rubric.choices if word_key(choice) == word_key(raw)]
    if len(alike) != 1:
        return _unscored(Reason.AMBIGUOUS if alike else Reason.OFF_MENU)
    meaning = rubric.choices[alike[0]]
    if meaning is None:
        return Reading(ScoreState.SCORED, value=alike[0])
    return _judged(Judgement(meaning), value=alike[0])


def _read_score(raw: Any, rubric: Rubric) -> Reading:
    number = _read_number(raw, best=rubric.scale[1])
    if number is None:
        return _unscored(Reason.PARSE_ERROR)
    if not rubric.scale[0] <= number <= rubric.scale[1]:
        return _unscored(Reason.OUT_OF_RANGE)
    if rubric.pass_at is None:
        return Reading(ScoreState.SCORED, value=number)
    passed = number >= rubric.pass_at
    judgement = Judgement.PASS if passed else Judgement.FAIL
    return Reading(ScoreState.SCORED, judgement=judgement, value=number, passed=passed)


def _read_number(raw: Any, *, best: float) -> int | float | None:
    """A number as it is typed; ``4/5`` is 4 where the scale ends at 5; None if it is none."""
    if isinstance(raw, int | float):
        return None if isinstance(raw, bool) or raw != raw else raw  # NaN differs from itself
    if not isinstance(raw, str):
        return None
    plain = word_key(raw)
    fraction = _FRACTION.fullmatch(plain)
    if fraction is not None:
        return _typed(fraction[1]) if float(fraction[2]) == best else None
    return _typed(plain) if _NUMBER.fullmatch(plain) else None


def _typed(digits: str) -> int | float:
    return float(digits) if "." in digits else int(digits)


def _read_confidence(raw: Any) -> float | None:
    number = _read_number(raw, best=math.inf)
    return float(number) if number is not None and 0 <= number <= 1 else None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _unscored(reason: Reason, rationale: str = "") -> Reading:
    return Reading(ScoreState.UNSCORED, reason=reason, rationale=rationale)
