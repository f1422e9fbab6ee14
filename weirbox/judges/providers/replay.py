"""Recorded replies: judges without a network, without cost, and the same every time."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, JsonValue, ValidationError

from weirbox.domain.base import Frozen, canonical_json
from weirbox.domain.judging import ReplayProvider
from weirbox.domain.seams import JudgeReply, JudgeRequest, Workshop
from weirbox.domain.trace import Usage
from weirbox.domain.words import Reason, Tier
from weirbox.errors import ProviderError, WeirboxError
from weirbox.judges.providers.failures import failure


class RecordedError(Frozen):
    """A failure to rehearse.

    Attributes:
        status: An HTTP status, which then says what follows.
        reason: Instead of a status, or more exactly than it.
    """

    status: int | None = Field(default=None, ge=100, le=599)
    reason: Reason | None = None
    message: str = ""
    retry_after: float | None = None
    retryable: bool | None = None


class Recording(Frozen):
    """One line of a recording; without a case it stands for every case that has none."""

    check: str
    case: str | int | None = None
    tier: Tier = Tier.PRIMARY
    trial: int | None = None
    reply: JsonValue = None
    stop: str = "end"
    usage: Usage = Usage()
    model: str = ""
    error: RecordedError | None = None


class _Key(NamedTuple):
    check: str
    case: str | None
    tier: Tier
    trial: int | None


class Replay:
    """Serves recorded replies by check, case, tier and, where recorded, trial.

    Several replies for one key are served in order, once for each call of a trial;
    the last one again when a trial asks more often.
    """

    def __init__(self, name: str, spec: ReplayProvider, workshop: Workshop) -> None:
        self._name = name
        self._spec = spec
        self._workshop = workshop
        self._path = (
            spec.path
            if os.path.isabs(spec.path)
            else str(Path(workshop.folder, spec.path).resolve())
        )
        self._recordings: dict[_Key, list[Recording]] | None = None
        self._served: dict[_Key, int] = defaultdict(int)

    @property
    def name(self) -> str:
        """The name in the suite's ``providers``."""
        return self._name

    def bound_usd(self, request: JudgeRequest) -> float | None:
        """Nothing is paid for a recorded reply."""
        return 0.0

    def preflight(self, model: str) -> str | None:
        """Why the recording cannot be read, or None."""
        try:
            self._load()
        except ProviderError as error:
            return str(error)
        return None

    async def aclose(self) -> None:
        """Nothing is open."""

    async def ask(self, request: JudgeRequest) -> JudgeReply:
        """Serve the next recorded reply. Raises `ProviderError` when there is none."""
        recording = self._next(request)
        if self._spec.delay_s:
            await asyncio.sleep(self._spec.delay_s)
        free = recording.usage.model_copy(update={"cost_usd": 0.0})
        if recording.error is not None:
            raise self._rehearsed(recording.error, request, free)
        reply = recording.reply
        text = reply if isinstance(reply, str) else "" if reply is None else canonical_json(reply)
        return JudgeReply(
            text=text,
            stop=recording.stop,
            usage=free,
            model=recording.model or request.model,
            cached=True,
        )

    def _next(self, request: JudgeRequest) -> Recording:
        recordings = self._load()
        key = _Key(request.check, request.case_id, request.tier, request.trial)
        found = next(
            (recordings[k] for k in _from_exact_to_any(key) if k in recordings),
            None,
        )
        if not found:
            raise ProviderError(
                f"provider {self._name!r}: {self._path} has no reply for check "
                f"{request.check!r}, case {request.case_id!r}, tier {request.tier.value!r} "
                f"(trial {request.trial})"
            )
        if len(found) == 1:
            return found[0]
        served = self._served[key]
        self._served[key] = served + 1
        return found[min(served, len(found) - 1)]

    def _rehearsed(
        self, error: RecordedError, request: JudgeRequest, usage: Usage
    ) -> ProviderError:
        who = f"provider {self._name!r} ({request.model})"
        made = failure(error.status or 500, error.message, who=who, retry_after=error.retry_after)
        reason = error.reason or made.reason
        retryable = made.retryable if error.status is not None else reason is Reason.TIMEOUT
        return ProviderError(
            str(made) if error.status is not None else f"{who}: {error.message or reason.value}",
            reason=reason,
            usage=usage,
            retryable=retryable if error.retryable is None else error.retryable,
            retry_after=error.retry_after,
            throttled=made.throttled,
        )

    def _load(self) -> dict[_Key, list[Recording]]:
        if self._recordings is None:
            self._recordings = self._read()
        return self._recordings

    def _read(self) -> dict[_Key, list[Recording]]:
        where = f"provider {self._name!r}: {self._path}"
        try:
            lines = self._workshop.read_file(self._path).decode("utf-8-sig").split("\n")
        except (OSError, LookupError, UnicodeDecodeError, WeirboxError) as error:
            raise ProviderError(
                f"{where} cannot be read: {type(error).__name__}: {error}"
            ) from error
        recordings: dict[_Key, list[Recording]] = defaultdict(list)
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            one = _parsed(line, f"{where}, line {number}")
            case = None if one.case is None else str(one.case)
            recordings[_Key(one.check, case, one.tier, one.trial)].append(one)
        return dict(recordings)


def _from_exact_to_any(key: _Key) -> tuple[_Key, ...]:
    of_case = (key, key._replace(trial=None))
    return (*of_case, *(k._replace(case=None) for k in of_case))


def _parsed(line: str, where: str) -> Recording:
    try:
        value: Any = json.loads(line)
        return Recording.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the line"
        raise ProviderError(f"{where}: {place}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ProviderError(f"{where}: this is no JSON: {error}") from error
