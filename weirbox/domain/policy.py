"""One table that says what follows from each kind of error."""

from __future__ import annotations

from dataclasses import dataclass

from weirbox.domain.words import ErrorKind


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What to do about one kind of error.

    Attributes:
        attempts: How many attempts a stage gets in all; 1 means no retry.
        grade: Whether what was left behind is graded all the same.
        count: Whether the trial counts as measured (a fail if graded so)
            rather than as errored.
    """

    attempts: int
    grade: bool
    count: bool


POLICIES: dict[ErrorKind, Policy] = {
    ErrorKind.PARSE: Policy(attempts=1, grade=False, count=False),
    ErrorKind.PROVISION: Policy(attempts=3, grade=False, count=False),
    ErrorKind.COMPUTE_LOST: Policy(attempts=3, grade=False, count=False),
    ErrorKind.MISSING_EXECUTABLE: Policy(attempts=1, grade=False, count=False),
    ErrorKind.HARNESS_TIMEOUT: Policy(attempts=1, grade=True, count=True),
    ErrorKind.HARNESS_EXIT: Policy(attempts=1, grade=True, count=True),
    ErrorKind.HARNESS_ERROR: Policy(attempts=1, grade=False, count=False),
    ErrorKind.HARNESS_TRANSIENT: Policy(attempts=3, grade=False, count=False),
    ErrorKind.MISSING_RECORDING: Policy(attempts=1, grade=False, count=False),
    ErrorKind.MISSING_SECRET: Policy(attempts=1, grade=False, count=False),
    ErrorKind.COLLECT: Policy(attempts=3, grade=True, count=False),
    ErrorKind.SINK: Policy(attempts=2, grade=True, count=True),
    ErrorKind.INTERNAL: Policy(attempts=2, grade=False, count=False),
}
