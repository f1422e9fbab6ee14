"""What the coordinator does about one run: a pure decision over the facts of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from weirbox.domain.words import RunStatus
from weirbox.settings import Settings
from weirbox.store.coordination import DispatchFacts, RunFacts

STALLS = 3
"""Stalls in a row that fail a run."""

DEATHS = 10
"""Drivers in a row that died before they ended a stage: a run that kills its drivers."""

START_S = 60.0
"""How long a driver may take from its beginning to its first claim: imports, a kit to build,
sinks to set up."""

BACK_OFF_S = 15.0
"""Pause before another driver is asked for after one that ended without a change; doubled
each time."""

MOST_BACK_OFF_S = 240.0
"""The longest such pause."""

FINALIZE_AGAIN_S = 600.0
"""How long the engine is given to finalize before it is asked again under another key."""


class FlowState(StrEnum):
    """Where a flow run stands that a driver is to come from."""

    WAITING = "waiting"  # scheduled, late, pending, paused: no worker has taken it up
    RUNNING = "running"
    CANCELLED = "cancelled"  # by a person, and surely so
    ENDED = "ended"  # any other terminal state, or unknown to the engine


class Ended(NamedTuple):
    """A dispatch whose driver is gone, and why."""

    dispatch: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do about a run; everything but `finalize` is committed before anything is done.

    Attributes:
        status: The terminal status it gets, with `reason`.
        reap: Whether expired claims are taken back.
        ended: Dispatches that are given up.
        request: How many drivers to ask for.
        changed: Whether a change is to be remembered.
        stalled: Whether one more stall is counted.
        finalize: Whether the engine is to finalize a completed run again, or to have one
            that ended early come to rest.
        waiting_since: Since when no worker has taken up any of its drivers.
    """

    status: RunStatus | None = None
    reason: str = ""
    reap: bool = False
    ended: tuple[Ended, ...] = ()
    request: int = 0
    changed: bool = False
    stalled: bool = False
    finalize: bool = False
    waiting_since: datetime | None = None

    @property
    def writes(self) -> bool:
        """Whether there is anything to commit besides that something has changed."""
        return self.status is not None or any((self.reap, self.ended, self.request, self.stalled))


def decide(
    found: RunFacts, states: Mapping[str, FlowState] | None, *, now: datetime, settings: Settings
) -> Decision:
    """Decide about one run.

    Args:
        states: Of the flow runs of its open dispatches. One that is not there was not
            asked about: it came up meanwhile. None when the engine does not answer:
            nothing is given up, asked for or counted as a stall then.
    """
    if found.status.terminal:
        return _about_ended(found, now=now, settings=settings)
    if found.superseded_by is not None:
        return Decision(
            status=RunStatus.SUPERSEDED,
            reason=f"superseded by {found.superseded_by}",
            reap=found.expired,
        )
    if not found.open:
        return Decision(status=RunStatus.COMPLETED, reap=found.expired)
    if not found.managed or states is None:
        changed = found.managed and _worth_keeping(found, now, settings)
        return Decision(reap=found.expired, changed=changed)
    return _about_live(found, states, now=now, settings=settings)


def _about_ended(found: RunFacts, *, now: datetime, settings: Settings) -> Decision:
    completed = found.status is RunStatus.COMPLETED
    concluded = found.finalized_at is not None if completed else found.settled_at is not None
    since = _seconds(found.completed_at or found.created_at, now)
    resting = completed or not found.held
    due = not concluded and resting and since >= settings.repair_s
    return Decision(reap=found.expired, finalize=due)


def _about_live(
    found: RunFacts, states: Mapping[str, FlowState], *, now: datetime, settings: Settings
) -> Decision:
    if any(_state(d, states) is FlowState.CANCELLED for d in found.dispatches):
        return Decision(
            status=RunStatus.CANCELLED,
            reason="its driver was cancelled in Prefect",
            reap=found.expired,
        )
    ended = [Ended(d.id, why) for d in found.dispatches if (why := _gone(d, states, now, settings))]
    gone = {one.dispatch for one in ended}
    alive = [d for d in found.dispatches if d.id not in gone]
    idle = sum(d.id in gone and not d.worked for d in found.dispatches)
    waiting = [d for d in alive if _waits(d, states)]
    driven = found.drivers_seen + sum(d.held for d in alive)
    since = min((d.requested_at for d in waiting), default=None) if not driven else None
    if found.deaths >= DEATHS:
        reason = f"{found.deaths} drivers in a row died before they ended a stage of any trial"
        return Decision(status=RunStatus.FAILED, reason=reason, reap=found.expired)
    changed = found.signature != found.seen
    stalled = not changed and since is None and _stalled(found, now, settings)
    if stalled and found.stalls + 1 >= STALLS:
        return Decision(
            status=RunStatus.FAILED, reason=_stall_reason(found, settings), ended=tuple(ended)
        )
    return Decision(
        reap=found.expired,
        ended=tuple(ended),
        request=_missing(found, alive, found.failed + idle, now),
        changed=_worth_keeping(found, now, settings)
        or (since is not None and _old(found, now, settings.stall_s / 2)),
        stalled=stalled,
        waiting_since=since,
    )


def _missing(found: RunFacts, alive: list[DispatchFacts], failed: int, now: datetime) -> int:
    """How many drivers to ask for now: up to the run's own number, while trials are free."""
    missing = found.drivers - found.drivers_seen - len(alive)
    if missing <= 0 or not (found.free or found.expired):
        return 0
    if not found.begun and not found.dispatched and _seconds(found.created_at, now) < START_S:
        return 0  # whoever planned it is about to drive it
    if failed and found.last_requested is not None:
        pause = min(BACK_OFF_S * 2 ** (failed - 1), MOST_BACK_OFF_S)
        if _seconds(found.last_requested, now) < pause:
            return 0
    return missing


def _state(dispatch: DispatchFacts, states: Mapping[str, FlowState]) -> FlowState:
    return states.get(dispatch.flow_run or "", FlowState.WAITING)


def _waits(dispatch: DispatchFacts, states: Mapping[str, FlowState]) -> bool:
    return dispatch.started_at is None and _state(dispatch, states) is FlowState.WAITING


def _gone(
    dispatch: DispatchFacts, states: Mapping[str, FlowState], now: datetime, settings: Settings
) -> str:
    """Why a driver is given up; empty while it may live.

    The engine's word is not enough: a flow run whose process was killed stays Running for
    ever. A driver whose claim ran out is dead, or will open another one if it is not.
    """
    if dispatch.held:
        return ""
    state = _state(dispatch, states)
    if state is FlowState.ENDED:
        return f"its flow run is {state}"
    if dispatch.last_seen is not None:
        silent = _seconds(dispatch.last_seen, now)
        if silent > _patience(dispatch, settings):
            return f"it has shown no claim for {silent:.0f} s"
        return ""
    if state is FlowState.RUNNING and _seconds(dispatch.requested_at, now) > START_S:
        return "its flow run is running, but it never began to drive"
    return ""


def _patience(dispatch: DispatchFacts, settings: Settings) -> float:
    """For how long a driver that began may show no claim: one that lives renews its claim, and
    opens another one as soon as it has given one back."""
    if not dispatch.claimed:
        return START_S
    return 0.0 if dispatch.lapsed else settings.lease_s


def _stalled(found: RunFacts, now: datetime, settings: Settings) -> bool:
    since = found.seen_at or found.created_at
    return _seconds(since, now) >= settings.stall_s * (found.stalls + 1)


def _stall_reason(found: RunFacts, settings: Settings) -> str:
    last = found.last_message and f"; the last driver: {found.last_message}"
    return f"nothing changed {STALLS} times in a row for {settings.stall_s:g} s{last}"


def _worth_keeping(found: RunFacts, now: datetime, settings: Settings) -> bool:
    """Whether there is a change that is worth a write: not on each tick of a run that gets on."""
    if found.signature == found.seen:
        return False
    return found.stalls > 0 or _old(found, now, settings.stall_s / 4)


def _old(found: RunFacts, now: datetime, age_s: float) -> bool:
    """Whether the last change that was kept is older than that."""
    return found.seen_at is None or _seconds(found.seen_at, now) > age_s


def _seconds(since: datetime, now: datetime) -> float:
    return (now - since).total_seconds()
