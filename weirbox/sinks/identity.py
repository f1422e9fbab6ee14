"""The ids that a judged trial has on every platform, made from what it is."""

from __future__ import annotations

import hashlib
import uuid

from weirbox.domain.base import canonical_json
from weirbox.domain.seams import TrialExport


def trace_id(trial: TrialExport) -> str:
    """The id of the trial's trace, 32 hex digits: the same whenever it is sent.

    It is of one judgement: a trial that is judged again becomes a trace of its own, since
    no platform replaces one as a whole; a trial that is only sent again does not.
    """
    return _hex("trace", trial)[:32]


def span_id(trial: TrialExport, place: str | int) -> str:
    """The id of one span, 16 hex digits.

    Args:
        place: ``root``, the position of an event in the trace, or a name.
    """
    return _hex("span", trial, place)[:16]


def score_id(trial: TrialExport, name: str) -> str:
    """The id of one score: a UUID in its usual form."""
    return str(uuid.UUID(_hex("score", trial, name)[:32], version=5))


def run_uuid(trial: TrialExport, place: str | int) -> str:
    """The id of one span where a platform wants UUIDs."""
    return str(uuid.UUID(_hex("span", trial, place)[:32], version=5))


def project_uuid(url: str, name: str) -> str:
    """The id of a project that is made at a platform, so that it is made once."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, canonical_json([url, name])))


def _hex(kind: str, trial: TrialExport, place: str | int = "") -> str:
    judgement = trial.judged_at or trial.round
    parts = [kind, trial.run_id, trial.entry_digest, trial.trial, judgement, place]
    return hashlib.sha256(canonical_json(parts).encode("ascii")).hexdigest()
