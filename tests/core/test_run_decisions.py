"""What the coordinator decides about one run, as a pure function of its facts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weirbox.domain.words import RunStatus
from weirbox.pipeline.run_decisions import DEATHS, STALLS, START_S, Decision, FlowState, decide
from weirbox.settings import Settings
from weirbox.store.coordination import DispatchFacts, RunFacts

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)

SETTINGS = Settings(lease_s=30, stall_s=120, repair_s=60)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


RUNNING = RunFacts(
    run_id="run",
    status=RunStatus.RUNNING,
    managed=True,
    drivers=2,
    created_at=ago(1000),
    completed_at=None,
    finalized_at=None,
    settled_at=None,
    seen="same",
    seen_at=ago(10),
    stalls=0,
    open=True,
    free=True,
    begun=True,
    expired=False,
    held=2,
    drivers_seen=2,
    deaths=0,
    signature="same",
    superseded_by=None,
    dispatches=(),
    dispatched=0,
    failed=0,
    last_requested=None,
    last_message="",
)
"""A run of two drivers, which both live, and which changed 10 s ago."""


def dispatch(**changes: Any) -> DispatchFacts:
    """A dispatch that was asked for 5 s ago and waits."""
    waiting = DispatchFacts(
        id=1,
        key="drive:run:0",
        flow_run="f1",
        requested_at=ago(5),
        started_at=None,
        held=False,
        claimed=False,
        lapsed=False,
        worked=False,
        last_seen=None,
    )
    return replace(waiting, **changes)


def began(seconds: float, **changes: Any) -> DispatchFacts:
    """A dispatch whose driver began, and has shown itself since then only."""
    return dispatch(requested_at=ago(2000), started_at=ago(2000), last_seen=ago(seconds), **changes)


WAITING = {"f1": FlowState.WAITING}
RUNS = {"f1": FlowState.RUNNING}
ENDED = {"f1": FlowState.ENDED}
CANCELLED = {"f1": FlowState.CANCELLED}

ALONE: dict[str, Any] = {"drivers_seen": 0, "drivers": 1}

DECISIONS: dict[str, tuple[dict[str, Any], dict[str, FlowState] | None, Decision]] = {
    "a run that gets on needs nothing": ({}, {}, Decision()),
    "a change is not kept on every tick": ({"signature": "new"}, {}, Decision()),
    "a change is kept when the last is old": (
        {"signature": "new", "seen_at": ago(31)},
        {},
        Decision(changed=True),
    ),
    "the first sight is kept": ({"seen": None, "seen_at": None}, {}, Decision(changed=True)),
    "a change after a stall is kept at once": (
        {"signature": "new", "stalls": 1},
        {},
        Decision(changed=True),
    ),
    "expired claims are taken back": ({"expired": True}, {}, Decision(reap=True)),
    "all stages done: completed": (
        {"open": False, "free": False},
        {},
        Decision(status=RunStatus.COMPLETED),
    ),
    "a pending run with nothing to do: completed": (
        {"open": False, "status": RunStatus.PENDING, "begun": False, "managed": False},
        {},
        Decision(status=RunStatus.COMPLETED),
    ),
    "a newer run of the same key supersedes": (
        {"superseded_by": "newer"},
        {},
        Decision(status=RunStatus.SUPERSEDED, reason="superseded by newer"),
    ),
    # drivers
    "one driver is missing": ({"drivers_seen": 1}, {}, Decision(request=1)),
    "all are missing": ({"drivers_seen": 0}, {}, Decision(request=2)),
    "nobody is needed while others hold all that is left": (
        {"drivers_seen": 1, "free": False},
        {},
        Decision(),
    ),
    "somebody is needed when a dead driver held all that is left": (
        {"drivers_seen": 1, "free": False, "expired": True},
        {},
        Decision(reap=True, request=1),
    ),
    "more drivers than asked for are left alone": ({"drivers_seen": 5}, {}, Decision()),
    "a run of a command line is not driven": (
        {"managed": False, "drivers_seen": 0, "seen": None},
        {},
        Decision(),
    ),
    "whoever has just planned it drives it": (
        {"status": RunStatus.PENDING, "begun": False, "drivers_seen": 0, "created_at": ago(30)},
        {},
        Decision(),
    ),
    "a planner that died does not": (
        {
            "status": RunStatus.PENDING,
            "begun": False,
            "drivers_seen": 0,
            "created_at": ago(START_S + 1),
        },
        {},
        Decision(request=2),
    ),
    "a driver that waits is not asked for again": (
        ALONE | {"dispatches": (dispatch(),)},
        WAITING,
        Decision(waiting_since=ago(5)),
    ),
    "one whose asking was cut off counts as well": (
        ALONE | {"dispatches": (dispatch(flow_run=None),)},
        {},
        Decision(waiting_since=ago(5)),
    ),
    "it does not wait for a worker while another drives": (
        {"drivers_seen": 1, "dispatches": (dispatch(),)},
        WAITING,
        Decision(),
    ),
    "one that starts does not wait any more": (
        ALONE | {"dispatches": (dispatch(),)},
        RUNS,
        Decision(),
    ),
    "one that began and builds its kit is alive": (
        ALONE | {"dispatches": (began(START_S - 1),)},
        RUNS,
        Decision(),
    ),
    "one that holds a claim is alive, whatever the engine says": (
        ALONE | {"dispatches": (began(1, held=True),)},
        ENDED,
        Decision(),
    ),
    "one whose flow run has ended is gone": (
        ALONE | {"dispatches": (began(1),)},
        ENDED,
        Decision(ended=((1, "its flow run is ended"),), request=1),
    ),
    "one whose flow run runs for ever, but shows no claim, is gone": (
        ALONE | {"dispatches": (began(START_S + 1),)},
        RUNS,
        Decision(ended=((1, "it has shown no claim for 61 s"),), request=1),
    ),
    "one whose claim ran out is gone": (
        ALONE | {"dispatches": (began(1, claimed=True, lapsed=True),)},
        RUNS,
        Decision(ended=((1, "it has shown no claim for 1 s"),), request=1),
    ),
    "one that has given its claim back is about to open another": (
        ALONE | {"dispatches": (began(29, claimed=True),)},
        RUNS,
        Decision(),
    ),
    "and is gone when it does not": (
        ALONE | {"dispatches": (began(31, claimed=True),)},
        RUNS,
        Decision(ended=((1, "it has shown no claim for 31 s"),), request=1),
    ),
    "one that runs and never begins is gone": (
        ALONE | {"dispatches": (dispatch(requested_at=ago(START_S + 1)),)},
        RUNS,
        Decision(ended=((1, "its flow run is running, but it never began to drive"),), request=1),
    ),
    "a person who cancels it before it began means the run": (
        ALONE | {"dispatches": (dispatch(),)},
        CANCELLED,
        Decision(status=RunStatus.CANCELLED, reason="its driver was cancelled in Prefect"),
    ),
    "and so does one who cancels it while it drives": (
        ALONE | {"dispatches": (began(1, held=True),), "expired": True},
        CANCELLED,
        Decision(
            status=RunStatus.CANCELLED, reason="its driver was cancelled in Prefect", reap=True
        ),
    ),
    "after a driver that came to nothing there is a pause": (
        ALONE | {"failed": 1, "last_requested": ago(14)},
        {},
        Decision(),
    ),
    "also after one that is only now found gone": (
        ALONE | {"dispatches": (began(1),), "last_requested": ago(14)},
        ENDED,
        Decision(ended=((1, "its flow run is ended"),)),
    ),
    "but not after one that had worked": (
        ALONE | {"dispatches": (began(1, worked=True),), "last_requested": ago(14)},
        ENDED,
        Decision(ended=((1, "its flow run is ended"),), request=1),
    ),
    "which ends": (ALONE | {"failed": 1, "last_requested": ago(15)}, {}, Decision(request=1)),
    "and gets longer": (ALONE | {"failed": 3, "last_requested": ago(59)}, {}, Decision()),
    "but not for ever": (
        ALONE | {"failed": 40, "last_requested": ago(240), "seen_at": ago(100)},
        {},
        Decision(request=1),
    ),
    # stalls
    "nothing changed for long: a stall": ({"seen_at": ago(120)}, {}, Decision(stalled=True)),
    "the next one takes as long again": ({"seen_at": ago(239), "stalls": 1}, {}, Decision()),
    "and is counted then": (
        {"seen_at": ago(240), "stalls": 1},
        {},
        Decision(stalled=True),
    ),
    "the third fails the run": (
        {"seen_at": ago(360), "stalls": STALLS - 1, "last_message": "its flow run is ended"},
        {},
        Decision(
            status=RunStatus.FAILED,
            reason="nothing changed 3 times in a row for 120 s; "
            "the last driver: its flow run is ended",
        ),
    ),
    "waiting for a worker is no stall": (
        ALONE | {"dispatches": (dispatch(requested_at=ago(9000)),), "seen_at": ago(55)},
        WAITING,
        Decision(waiting_since=ago(9000)),
    ),
    "and puts off the next": (
        ALONE | {"dispatches": (dispatch(requested_at=ago(9000)),), "seen_at": ago(400)},
        WAITING,
        Decision(waiting_since=ago(9000), changed=True),
    ),
    "without the engine's answer nothing is given up, asked for or counted": (
        {"drivers_seen": 0, "seen_at": ago(9000), "dispatches": (dispatch(),)},
        None,
        Decision(),
    ),
    "and expired claims are taken back all the same": (
        {"drivers_seen": 0, "expired": True},
        None,
        Decision(reap=True),
    ),
    "a run that kills its drivers is failed": (
        ALONE | {"deaths": DEATHS},
        {},
        Decision(
            status=RunStatus.FAILED,
            reason="10 drivers in a row died before they ended a stage of any trial",
        ),
    ),
    # runs that have ended
    "a completed run is given time to be finalized": (
        {"status": RunStatus.COMPLETED, "completed_at": ago(59)},
        {},
        Decision(),
    ),
    "and is finalized again then": (
        {"status": RunStatus.COMPLETED, "completed_at": ago(60), "managed": False},
        {},
        Decision(finalize=True),
    ),
    "a finalized one is left alone": (
        {"status": RunStatus.COMPLETED, "completed_at": ago(60), "finalized_at": ago(1)},
        None,
        Decision(),
    ),
    "a cancelled run is had come to rest when nobody holds it any more": (
        {"status": RunStatus.CANCELLED, "completed_at": ago(60), "held": 0},
        {},
        Decision(finalize=True),
    ),
    "while its drivers live that is up to them": (
        {"status": RunStatus.CANCELLED, "completed_at": ago(60)},
        {},
        Decision(),
    ),
    "and for a while after that": (
        {"status": RunStatus.SUPERSEDED, "completed_at": ago(59), "held": 0},
        {},
        Decision(),
    ),
    "what the dead held is taken back first": (
        {"status": RunStatus.FAILED, "completed_at": ago(59), "held": 0, "expired": True},
        {},
        Decision(reap=True),
    ),
    "and not twice": (
        {"status": RunStatus.CANCELLED, "completed_at": ago(60), "held": 0, "settled_at": ago(1)},
        {},
        Decision(),
    ),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_the_coordinator_decides(case: str) -> None:
    changes, states, expected = DECISIONS[case]

    assert decide(replace(RUNNING, **changes), states, now=NOW, settings=SETTINGS) == expected


def test_only_a_decision_about_rows_has_something_to_write() -> None:
    quiet = [Decision(), Decision(finalize=True), Decision(waiting_since=NOW)]
    loud = [Decision(reap=True), Decision(request=1), Decision(stalled=True)]

    assert [decision.writes for decision in quiet] == [False, False, False]
    assert [decision.writes for decision in loud] == [True, True, True]
