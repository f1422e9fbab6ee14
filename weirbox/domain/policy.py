"""One table that says what follows from each kind of error."""

from __future__ import annotations

from dataclasses import dataclass

from weirbox.domain.words import ErrorKind, Fault, Reason


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What to do about one kind of error.

    Attributes:
        attempts: How many attempts a stage gets in all; 1 means no retry.
        grade: Whether what was left behind is graded all the same.
        count: Whether the trial counts as measured (a fail if graded so)
            rather than as errored.
        fault: Whose fault it is.
    """

    attempts: int
    grade: bool
    count: bool
    fault: Fault


POLICIES: dict[ErrorKind, Policy] = {
    ErrorKind.PARSE: Policy(attempts=1, grade=False, count=False, fault=Fault.CONFIG),
    ErrorKind.PROVISION: Policy(attempts=3, grade=False, count=False, fault=Fault.INFRA),
    ErrorKind.COMPUTE_LOST: Policy(attempts=3, grade=False, count=False, fault=Fault.INFRA),
    ErrorKind.MISSING_EXECUTABLE: Policy(attempts=1, grade=False, count=False, fault=Fault.CONFIG),
    ErrorKind.HARNESS_TIMEOUT: Policy(attempts=1, grade=True, count=True, fault=Fault.AGENT),
    ErrorKind.HARNESS_EXIT: Policy(attempts=1, grade=True, count=True, fault=Fault.AGENT),
    ErrorKind.HARNESS_ERROR: Policy(attempts=1, grade=False, count=False, fault=Fault.HARNESS),
    ErrorKind.HARNESS_TRANSIENT: Policy(attempts=3, grade=False, count=False, fault=Fault.INFRA),
    ErrorKind.MISSING_RECORDING: Policy(attempts=1, grade=False, count=False, fault=Fault.CONFIG),
    ErrorKind.MISSING_SECRET: Policy(attempts=1, grade=False, count=False, fault=Fault.CONFIG),
    ErrorKind.COLLECT: Policy(attempts=1, grade=True, count=False, fault=Fault.INFRA),
    ErrorKind.SINK: Policy(attempts=2, grade=True, count=True, fault=Fault.INFRA),
    ErrorKind.INTERNAL: Policy(attempts=2, grade=False, count=False, fault=Fault.INFRA),
}

JUDGE_FAULTS: dict[Reason, Fault] = {
    Reason.PROVIDER_ERROR: Fault.INFRA,
    Reason.TIMEOUT: Fault.INFRA,
    Reason.QUOTA: Fault.INFRA,
    Reason.MISSING_SECRET: Fault.CONFIG,
    Reason.GRADER_ERROR: Fault.CONFIG,
}
"""Whose fault it is when a judge's score has one of these reasons."""
