"""A judged trial as one line of strictly valid JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from weirbox.domain.base import Frozen
from weirbox.domain.score import Score
from weirbox.domain.seams import TrialExport

_KEY = re.compile(rb'\{"entry_digest":("(?:[^"\\]|\\.)*")(?:,"round":(\d{1,9}),)?')
_SURROGATE = re.compile(r"\\ud[89a-f]")

NOT_FINITE = frozenset({"float:NaN", "float:Infinity", "float:-Infinity"})
"""How numbers that JSON cannot write stand in a line."""


class LineKey(NamedTuple):
    """Which trial a line holds; of two lines of one trial that of the later round counts.

    Attributes:
        entry: The JSON text of the entry digest.
    """

    entry: bytes
    round: int


def trial_line(trial: TrialExport) -> bytes:
    """Encode one trial as an ASCII line with its line feed.

    The entry digest and the round come first, so that `line_key` need not parse the line.
    Scores that were not measured have their state and reason, and no value. The
    output stands once, not in the observation again. NaN and infinities stand as
    the texts of `NOT_FINITE`; lone surrogates are escaped, since strict readers
    refuse them.
    """
    nested = {"observation", "scores", "proposals", "source_trace"}
    key = {"entry_digest": trial.entry_digest, "round": trial.round}
    record = key | trial.model_dump(exclude=nested)
    record["scores"] = [_score(score) for score in trial.scores]
    record["proposals"] = [_present(proposal) for proposal in trial.proposals]
    if trial.source_trace is not None:
        record["source_trace"] = _present(trial.source_trace)
    record["observation"] = trial.observation.model_dump(exclude={"output"}, exclude_defaults=True)
    return encoded(record) + b"\n"


def key_of(trial: TrialExport) -> LineKey:
    """What `line_key` finds in the trial's line."""
    return LineKey(encoded(trial.entry_digest), trial.round)


def line_key(line: bytes) -> LineKey | None:
    """A line's key; None when it is no trial's line. A line without a round is of the first."""
    match = _KEY.match(line)
    return match and LineKey(match.group(1), int(match.group(2) or 1))


def encoded(value: Any) -> bytes:
    """A JSON value as strictly valid JSON, in ASCII."""
    try:
        text = _dumps(value)
    except ValueError:
        text = _dumps(_strict(value))
    else:
        if _SURROGATE.search(text):
            text = _dumps(_strict(value))
    return text.encode("ascii")


_dumps = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
"""Made once: `json.dumps` makes an encoder for each value."""


def _strict(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, float) and not math.isfinite(value):
        return "float:NaN" if math.isnan(value) else f"float:{'-' * (value < 0)}Infinity"
    if isinstance(value, dict):
        return {_strict(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def _score(score: Score) -> dict[str, Any]:
    return {"name": score.name, "state": score.state, "reason": score.reason} | _present(score)


def _present(model: Frozen) -> dict[str, Any]:
    return {key: value for key, value in model.model_dump().items() if value is not None}
