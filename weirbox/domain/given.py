"""Scores that were given elsewhere, in whatever form a file has them."""

from __future__ import annotations

import math
from typing import Any

from pydantic import JsonValue, StrictBool, model_validator

from weirbox.domain.base import Frozen
from weirbox.domain.words import Reason, ScoreState

UNSCORED = "unscored"
"""What a file may write in the place of a value that there is none of."""

FIELDS = ("value", "passed", "state", "reason", "rationale", "detail")
"""What an object that stands for a score may say; whatever else it says is kept as detail."""

_WHY = {
    ScoreState.UNSCORED: Reason.EMPTY,
    ScoreState.ERRORED: Reason.GRADER_ERROR,
    ScoreState.SKIPPED: Reason.POLICY_SKIP,
}
"""The reason where a file states none that the vocabulary has."""

_STATED = frozenset({ScoreState.SCORED, *_WHY})


class GivenScore(Frozen):
    """One score of a recorded trial: a number, a boolean, a text, null, or an object of these.

    What is no value is never a number: null, an empty text, ``unscored``, NaN and the
    infinities are unscored.

    Attributes:
        value: Kept as it is typed; None unless `state` is scored.
        passed: Whether it passed, where the file says so.
        detail: Whatever else the file says of it.
    """

    value: bool | int | float | str | None = None
    passed: StrictBool | None = None
    state: ScoreState = ScoreState.SCORED
    reason: Reason | None = None
    rationale: str = ""
    detail: JsonValue = None

    @model_validator(mode="before")
    @classmethod
    def _in_any_form(cls, raw: Any) -> Any:
        if isinstance(raw, GivenScore):
            return raw
        if not isinstance(raw, dict):
            raw = {"value": raw}
        if not {"value", "passed", "state", "reason"} & raw.keys():
            raise ValueError("an object that stands for a score has a 'value' or a 'passed'")
        return _settled(raw)


def _settled(raw: dict[str, Any]) -> dict[str, Any]:
    """An object's fields with its state made definite; settling it again changes nothing."""
    value, passed, state = raw.get("value"), raw.get("passed"), _state(raw.get("state"))
    detail = _detail(raw)
    if isinstance(value, list | dict):
        raise ValueError("a score's value is a number, a boolean, a text or null")
    if value is None and isinstance(passed, bool) and state in (None, ScoreState.SCORED):
        value = passed
    reason, said = _reason(raw.get("reason"))
    if (missing := _unusable(value)) is not None and state in (None, ScoreState.SCORED):
        if state is ScoreState.SCORED and raw.get("value") is None:
            raise ValueError("a score that is 'scored' has a 'value' or a 'passed'")
        state, reason = ScoreState.UNSCORED, reason or missing
    if state is None:
        state = ScoreState.SCORED
    settled = {"state": state, "rationale": raw.get("rationale") or said, "detail": detail}
    if state is ScoreState.SCORED:
        return settled | {"value": value, "passed": passed}
    if value is not None and value != UNSCORED and detail is None:
        settled["detail"] = {"value": value}
    return settled | {"reason": reason or _WHY[state]}


def _state(stated: Any) -> ScoreState | None:
    if stated is None:
        return None
    if stated not in _STATED:
        raise ValueError(f"a score's 'state' is one of {', '.join(sorted(_STATED))}")
    return ScoreState(stated)


def _reason(stated: Any) -> tuple[Reason | None, str]:
    """A reason of the vocabulary, or what is said instead of one."""
    if isinstance(stated, str) and stated in set(Reason):
        return Reason(stated), ""
    return None, stated if isinstance(stated, str) else ""


def _detail(raw: dict[str, Any]) -> Any:
    others = {key: value for key, value in raw.items() if key not in FIELDS}
    if not others:
        return raw.get("detail")
    return others if raw.get("detail") is None else others | {"detail": raw["detail"]}


def _unusable(value: Any) -> Reason | None:
    """Why a value is none that can be kept and averaged."""
    if value is None or value == UNSCORED or (isinstance(value, str) and not value.strip()):
        return Reason.EMPTY
    if isinstance(value, str):
        return None
    try:
        return None if math.isfinite(value) else Reason.OUT_OF_RANGE
    except OverflowError:
        return Reason.OUT_OF_RANGE
