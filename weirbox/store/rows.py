"""What goes in and out of the store: small frozen records and their conversion."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weirbox.domain.base import canonical_json, model_json
from weirbox.domain.case import Case
from weirbox.domain.score import JudgeCall, Proposal, Score
from weirbox.domain.trace import Observation, StageError, Usage
from weirbox.domain.words import (
    Disposition,
    ExportStatus,
    ScoreState,
    Stage,
    TrialStage,
    Verdict,
)
from weirbox.store.types import to_nano, to_usd

MISSING = "missing"
"""What stands for the sinks that have no succeeded row, as what stage export is to redo."""


def redo_text(checks: Iterable[str]) -> str:
    """The checks that stage judge is to measure again, as a trial's row has them."""
    return json.dumps(sorted(checks))


def redo_checks(redo: str | None) -> frozenset[str]:
    """The checks of `redo_text`; none for a stage that is done as a whole."""
    return frozenset(json.loads(redo)) if redo is not None else frozenset()


@dataclass(frozen=True)
class Ticket:
    """One claimed trial, as a driver takes it through the stages.

    Attributes:
        redo: At stage judge a `redo_text`, at stage export `MISSING`; None for all of it.
    """

    run_id: str
    seq: int
    case_id: str
    trial: int
    entry_digest: str
    case_digest: str
    category: str | None
    stage: TrialStage
    attempt: int
    round: int
    redo: str | None
    token: int
    observation: str | None
    cached: bool
    executed_at: datetime | None
    judged_at: datetime | None
    error_kind: str | None
    error_message: str | None

    @property
    def name(self) -> str:
        """What a person reads: the case, and the trial where there are several."""
        return self.case_id if self.trial == 1 else f"{self.case_id} #{self.trial}"


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """What the end of one stage of one trial changes, written in one transaction.

    Attributes:
        stage: The stage that ended.
        next_stage: Where the trial goes on; the same stage for another attempt.
        observation: Packed, by `pack_observation`.
        recollected: Whether the judge stage has pulled a trace again that the execution lacked:
            `error` is what is left of the execution's error then.
        calls: Free judge calls that were not booked one by one.
    """

    ticket: Ticket
    stage: Stage
    started_at: datetime
    ended_at: datetime
    next_stage: TrialStage
    observation: tuple[str, bytes] | None = None
    compute_s: float | None = None
    cached: bool = False
    error: StageError | None = None
    error_stage: Stage | None = None
    scores: tuple[Score, ...] = ()
    state: ScoreState | None = None
    verdict: Verdict | None = None
    disposition: Disposition | None = None
    deciding: str | None = None
    proposals: tuple[Proposal, ...] = ()
    exports: tuple[ExportRecord, ...] = ()
    calls: tuple[JudgeCall, ...] = ()
    reuse_key: str | None = None
    recollected: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """What became of a trial at one sink."""

    sink: str
    status: ExportStatus
    url: str | None
    message: str


def case_key(case_id: str) -> str:
    """What indexes a case id: ids may be longer than an index can hold."""
    return hashlib.sha256(case_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def pack(value: Any) -> tuple[str, bytes]:
    """A JSON value's canonical bytes, with their digest in front."""
    body = canonical_json(value).encode("ascii")
    return hashlib.sha256(body).hexdigest(), body


def unpack(body: bytes) -> Any:
    """The JSON value of packed bytes."""
    return json.loads(body)


def pack_case(case: Case) -> tuple[str, bytes]:
    """A case as a payload, without its place."""
    return pack(model_json(case.model_copy(update={"place": ""})))


def unpack_case(body: bytes) -> Case:
    """The case of a payload."""
    return Case.model_validate(unpack(body))


def pack_observation(observation: Observation) -> tuple[str, bytes]:
    """An observation as a payload, with its digest in front."""
    return pack(model_json(observation))


def unpack_observation(body: bytes) -> Observation:
    """The observation of a payload."""
    return Observation.model_validate(unpack(body))


def value_columns(value: Any) -> dict[str, Any]:
    """A score's value as typed columns: 1, 1.0, True and "1" stay different."""
    if value is None:
        return {"value_kind": None, "value_number": None, "value_text": None}
    if isinstance(value, bool):
        return {"value_kind": "bool", "value_number": float(value), "value_text": None}
    if isinstance(value, int):
        return {"value_kind": "int", "value_number": _as_float(value), "value_text": str(value)}
    if isinstance(value, float):
        return {"value_kind": "float", "value_number": value, "value_text": None}
    return {"value_kind": "text", "value_number": None, "value_text": str(value)}


def column_value(kind: str | None, number: float | None, text: str | None) -> Any:
    """The value that `value_columns` took apart."""
    match kind:
        case None:
            return None
        case "bool":
            return bool(number)
        case "int":
            return int(text or 0)
        case "float":
            return math.nan if number is None else number  # SQLite keeps a NaN as NULL
        case _:
            return text or ""


def _as_float(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def score_columns(run_id: str, seq: int, score: Score) -> dict[str, Any]:
    """A score's narrow row."""
    return {
        "run_id": run_id,
        "seq": seq,
        "name": score.name,
        "state": score.state,
        "reason": score.reason,
        **value_columns(score.value),
        "passed": score.passed,
        "authority": score.authority,
        "source": score.source,
        "required": score.required,
        "confidence": score.confidence,
        "tier": score.tier,
        "model": score.model,
        "outcome": score.outcome,
        "judgement": score.judgement,
        "duration": score.duration,
    }


def score_from(row: Any, rationale: str = "", detail: Any = None) -> Score:
    """The score of a narrow row and, where it was loaded, its wide part."""
    return Score(
        name=row.name,
        state=row.state,
        reason=row.reason,
        value=column_value(row.value_kind, row.value_number, row.value_text),
        passed=row.passed,
        authority=row.authority,
        source=row.source,
        required=row.required,
        confidence=row.confidence,
        tier=row.tier,
        model=row.model,
        outcome=row.outcome,
        judgement=row.judgement,
        duration=row.duration,
        rationale=rationale,
        detail=detail,
    )


def call_columns(ticket: Ticket, call: JudgeCall, at: datetime, key: str | None) -> dict[str, Any]:
    """A judge call's row."""
    usage = call.usage
    return {
        "run_id": ticket.run_id,
        "seq": ticket.seq,
        "round": ticket.round,
        "check_name": call.check,
        "tier": call.tier,
        "model": call.model,
        "provider": call.provider,
        "request_digest": call.request_digest,
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "cost_nusd": to_nano(usage.cost_usd),
        "cached": call.cached,
        "ok": call.ok,
        "message": call.message,
        "reply": call.reply,
        "duration": call.duration,
        "at": at,
        "key": key,
    }


def call_from(row: Any) -> JudgeCall:
    """The judge call of a row."""
    return JudgeCall(
        check=row.check_name,
        tier=row.tier,
        model=row.model,
        provider=row.provider,
        request_digest=row.request_digest,
        usage=Usage(
            input_tokens=row.input_tokens,
            cached_tokens=row.cached_tokens,
            cache_write_tokens=row.cache_write_tokens,
            output_tokens=row.output_tokens,
            cost_usd=to_usd(row.cost_nusd),
        ),
        cached=row.cached,
        ok=row.ok,
        message=row.message,
        reply=row.reply,
        duration=row.duration,
    )
