"""A score as platforms take it: a number, a label, or that there is none, and why.

What was not measured never has a number: its label says its state and reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from weirbox.domain.score import Score
from weirbox.domain.seams import RunHeader, TrialExport
from weirbox.domain.words import ScoreState, Source
from weirbox.sinks.identity import score_id
from weirbox.sinks.spans import where_whole
from weirbox.sinks.texts import Texts


@dataclass(frozen=True, kw_only=True)
class SentScore:
    """One score of a trial.

    Attributes:
        id: The same whenever the score is sent.
        measured: Whether there is a value.
        value: The value as it is typed; a text where it is no finite number.
        number: The value as a number, 1 and 0 for true and false; None for texts.
        label: The value in words; ``STATE: REASON`` for what was not measured.
        why: The rationale; for what was not measured with state and reason in front.
        by_model: Whether a judge gave it.
        facts: Everything else that is known of it, as texts.
    """

    id: str
    name: str
    measured: bool
    value: bool | int | float | str | None
    number: float | None
    label: str | None
    why: str
    by_model: bool
    model: str | None
    facts: Mapping[str, str]


def scores_of(trial: TrialExport, run: RunHeader) -> list[SentScore]:
    """The scores of a trial, in order."""
    texts = Texts(where_whole(trial, run))
    return [_sent(trial, score, texts) for score in trial.scores]


def _sent(trial: TrialExport, score: Score, texts: Texts) -> SentScore:
    measured = score.state is ScoreState.SCORED
    state = f"{score.state}: {score.reason}" if score.reason else score.state.value
    rationale = texts.text(score.rationale)
    value = score.value
    if isinstance(value, str):
        value = texts.text(value)
    elif value is not None and _number(value) is None:
        value = str(value)
    return SentScore(
        id=score_id(trial, score.name),
        name=texts.text(score.name),
        measured=measured,
        value=value,
        number=_number(value),
        label=_label(value, score.passed) if measured else state,
        why=rationale if measured else f"{state}. {rationale}".removesuffix(". "),
        by_model=score.source is Source.JUDGE,
        model=score.model,
        facts=_facts(score, texts),
    )


def _number(value: bool | int | float | str | None) -> float | None:
    if value is None or isinstance(value, str):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _label(value: bool | int | float | str | None, passed: bool | None) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if passed is None else ("pass" if passed else "fail")


def _facts(score: Score, texts: Texts) -> dict[str, str]:
    known = {
        "state": score.state,
        "reason": score.reason,
        "source": score.source,
        "authority": score.authority,
        "required": score.required,
        "passed": score.passed,
        "confidence": score.confidence,
        "tier": score.tier,
        "model": score.model,
        "outcome": score.outcome,
        "judgement": score.judgement,
        "detail": score.detail,
    }
    return {name: texts.json(value) for name, value in known.items() if value is not None}
