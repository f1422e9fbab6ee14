"""One tree of errors.

::

    WeirboxError
    ├── UserError               a mistake in a suite, dataset or argument (exit status 2)
    │   ├── SuiteError
    │   │   └── PromptMissing   a judge's prompt is not in the registry
    │   ├── DatasetError
    │   ├── PlanError
    │   └── NotPossible         the request does not fit the state of the run
    ├── PreflightError          a run cannot start: provider, price or secret missing
    ├── TrialError              a stage of a trial failed; carries an ErrorKind
    │   ├── ComputeError        .retryable
    │   │   ├── ProvisionError
    │   │   └── ComputeLost
    │   ├── HarnessError
    │   ├── TraceError          .transient, .retry_after
    │   └── SinkError
    ├── ProviderError           a judge's provider failed; carries a Reason
    ├── BudgetExhausted         the run's budget admits no further call
    └── ServiceError            a local server could not be started or reached
"""

from __future__ import annotations

from typing import ClassVar

from weirbox.domain.trace import Usage
from weirbox.domain.words import ErrorKind, Reason


class WeirboxError(Exception):
    """The root of everything weirbox raises on purpose."""


class UserError(WeirboxError):
    """A mistake the user can mend; its message names the thing, the place, the way out."""


class SuiteError(UserError):
    """The suite file is malformed."""


class PromptMissing(SuiteError):
    """A judge's prompt is not in the registry; planning skips the judge."""


class DatasetError(UserError):
    """The dataset cannot be read as declared."""


class PlanError(UserError):
    """No plan can be made of this suite and these arguments."""


class NotPossible(UserError):
    """The request does not fit the state of the run, or there is no such run."""


class PreflightError(WeirboxError):
    """A run cannot start: a judge's provider, price or secret is missing."""


class TrialError(WeirboxError):
    """A stage of one trial failed.

    Attributes:
        kind: What `weirbox.domain.policy.POLICIES` decides by.
    """

    kind: ErrorKind

    def __init__(self, message: str, *, kind: ErrorKind, detail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.detail = detail


class ComputeError(TrialError):
    """Compute could not be had, or was lost."""

    retryable: ClassVar[bool] = True


class ProvisionError(ComputeError):
    """Compute could not be provisioned."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message, kind=ErrorKind.PROVISION, detail=detail)


class ComputeLost(ComputeError):
    """The sandbox died while it was in use."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message, kind=ErrorKind.COMPUTE_LOST, detail=detail)


class HarnessError(TrialError):
    """The system under test could not be driven."""

    def __init__(
        self, message: str, *, kind: ErrorKind = ErrorKind.HARNESS_ERROR, detail: str = ""
    ) -> None:
        super().__init__(message, kind=kind, detail=detail)


class TraceError(TrialError):
    """A trace could not be pulled.

    Attributes:
        transient: Whether the same request may succeed later.
        retry_after: Seconds the platform asks to wait.
        status: The platform's HTTP status, where it answered.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ErrorKind = ErrorKind.COLLECT,
        transient: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, kind=kind)
        self.transient = transient
        self.retry_after = retry_after
        self.status = status


class SinkError(TrialError):
    """A sink refused a trial."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message, kind=ErrorKind.SINK, detail=detail)


class ProviderError(WeirboxError):
    """A judge's provider failed.

    Attributes:
        reason: provider_error, timeout, quota or missing_secret.
        usage: What the provider counted before it failed; it is booked.
        retryable: Whether the same request may succeed later.
        retry_after: Seconds the provider asks to wait.
        throttled: Whether the provider said that requests come too fast.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: Reason = Reason.PROVIDER_ERROR,
        usage: Usage | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        throttled: bool = False,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.usage = usage or Usage()
        self.retryable = retryable
        self.retry_after = retry_after
        self.throttled = throttled


class BudgetExhausted(WeirboxError):
    """The run's budget admits no further call."""


class ServiceError(WeirboxError):
    """A local server could not be started or reached."""


USER_FAULTS = (Exception, SystemExit, KeyboardInterrupt)
"""What a user's function may raise; it becomes a value with a reason. A Ctrl-C is none of
them: signals are handled by the event loop that drives."""
