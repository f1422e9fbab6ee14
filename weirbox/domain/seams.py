"""The protocols between the pipeline and the families; families do not know each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pydantic import JsonValue

from weirbox.domain.base import Frozen
from weirbox.domain.case import Case
from weirbox.domain.judging import Rubric
from weirbox.domain.platforms import SourceTrace
from weirbox.domain.pulling import Probe, Pulled, TraceSource
from weirbox.domain.score import JudgeCall, Proposal, Score
from weirbox.domain.spec import ComputeSpec
from weirbox.domain.trace import Observation, Usage
from weirbox.domain.words import (
    Disposition,
    ExportStatus,
    RuleOutcome,
    ScoreState,
    Tier,
    Verdict,
)

ReadSecret = Callable[[str], str]
"""Gives the value of a named secret, or raises `WeirboxError` naming it."""

ReadFile = Callable[[str], bytes]
"""Gives the frozen content of a file that the plan names by its absolute path."""


@dataclass(frozen=True)
class Workshop:
    """What families are built with: the plan's folder, frozen files, and secrets by name."""

    folder: str
    read_file: ReadFile
    read_secret: ReadSecret


@dataclass(frozen=True)
class ExecResult:
    """What a command in compute came to.

    Attributes:
        exit_code: None when it was killed by its time limit; 127 when the
            executable is missing.
        stdout, stderr: The tail, up to the output limit.
        duration: Seconds.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    duration: float


class Handle(Protocol):
    """One sandbox; released exactly once, and releasing again does nothing."""

    @property
    def id(self) -> str:
        """Unique among the sandboxes of this machine."""

    @property
    def workdir(self) -> str:
        """The work folder's absolute path as commands inside see it."""

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = None,
        output_limit: int | None = None,
    ) -> ExecResult:
        """Run a command; time-outs act inside the sandbox. Raises `ComputeLost`."""

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write files, by paths relative to the work folder; what stands there is replaced."""

    async def get(self, path: str, *, limit: int = 100 * 2**20) -> bytes:
        """Read a file below the work folder, its first `limit` bytes if it is longer.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: As usual; a path or
                link that leads out of the work folder is a PermissionError.
        """

    async def glob(self, pattern: str) -> list[str]:
        """The relative paths of the files that match, sorted."""

    async def quiesce(self) -> None:
        """Kill every process still running inside."""

    async def release(self) -> None:
        """Give the sandbox up: processes killed, files removed. Idempotent."""


class Compute(Protocol):
    """A kind of sandbox."""

    @property
    def name(self) -> str:
        """The kind."""

    @property
    def capacity(self) -> int:
        """How many sandboxes this machine carries at a time."""

    async def provision(self, spec: ComputeSpec, *, correlation: str) -> Handle:
        """Make a sandbox. Raises `ProvisionError`."""

    async def reap(self) -> int:
        """Remove what dead processes of this machine left behind; gives the count."""

    async def aclose(self) -> None:
        """Release everything."""


@dataclass(frozen=True)
class TrialContext:
    """What a harness is told about the trial it drives.

    Attributes:
        correlation: The trial's correlation id; given to the system under test.
        env: Environment variables that carry it.
    """

    trial: int
    correlation: str
    env: Mapping[str, str] = field(default_factory=dict)


class Harness(Protocol):
    """The system under test, as weirbox drives it."""

    @property
    def needs_compute(self) -> bool:
        """Whether `run` needs a sandbox."""

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        """Produce the answer.

        A time-out or a non-zero exit is an observation with `error` set, since
        what was left behind can be graded. Raises `HarnessError` otherwise.
        """

    async def aclose(self) -> None:
        """Close connections."""


class Grader(Protocol):
    """Scores an observation with code."""

    @property
    def name(self) -> str:
        """The check's name."""

    @property
    def needs_compute(self) -> bool:
        """Whether it must run before compute is released."""

    async def grade(
        self, case: Case, observation: Observation, *, handle: Handle | None
    ) -> list[Score]:
        """Score; whatever is raised becomes an errored score."""


class RuleResult(NamedTuple):
    """What a rule found."""

    outcome: RuleOutcome
    message: str = ""
    proposal: Proposal | None = None


class Rule(Protocol):
    """A deterministic check that decides whether a judge is worth paying for."""

    @property
    def name(self) -> str:
        """The rule's name."""

    @property
    def check(self) -> str | None:
        """The judge that a review escalates to; None for all."""

    def apply(self, case: Case, observation: Observation, twin: str | None) -> RuleResult:
        """Decide.

        Args:
            twin: The id of another case with the same value, for rules of kind unique.
        """


class JudgeRequest(Frozen):
    """One question to a judge: filled in, ready to send."""

    check: str
    case_id: str
    trial: int
    tier: Tier
    model: str
    system: str
    user: str
    rubric: Rubric
    reply_schema: dict[str, Any]
    max_tokens: int
    temperature: float | None = None


class JudgeReply(Frozen):
    """What a provider answered.

    Attributes:
        text: The reply's text; for structured output its JSON text.
        stop: ``end``, ``length`` (cut at the token limit), ``refusal``, or ``other``.
    """

    text: str = ""
    stop: str = "end"
    usage: Usage = Usage()
    model: str = ""
    cached: bool = False


class Provider(Protocol):
    """An account that answers a judge's requests."""

    @property
    def name(self) -> str:
        """The name in the suite's ``providers``."""

    async def ask(self, request: JudgeRequest) -> JudgeReply:
        """Answer once, without retries. Raises `ProviderError`."""

    def bound_usd(self, request: JudgeRequest) -> float | None:
        """The most this request can cost; None when the model has no known price."""

    def preflight(self, model: str) -> str | None:
        """What is missing to use the model (secret, price, file), or None."""

    async def aclose(self) -> None:
        """Close connections."""


class Ledger(Protocol):
    """The spending of one trial under the run's budget; see `weirbox.budget`."""

    async def reserve(self, usd: float | None) -> int:
        """Reserve an upper bound for one call. Raises `BudgetExhausted`."""

    async def settle(self, reservation: int, call: JudgeCall) -> None:
        """Book what the call really cost, and void the reservation."""

    async def release(self, reservation: int) -> None:
        """Void a reservation of a call that was not made."""

    def earlier(self, request_digest: str) -> JudgeCall | None:
        """A call that this trial already paid for before its driver died."""


class RunHeader(Frozen):
    """What sinks are told about a run.

    Attributes:
        dashboard_url: A link to the run, where a dashboard is configured.
    """

    run_id: str
    suite: str
    kind: str
    dataset_digest: str
    created_at: str
    dashboard_url: str | None = None


class TrialExport(Frozen):
    """One judged trial, as it is sent to a sink.

    Attributes:
        round: 1, and more where the trial was opened again: what a later round sends takes
            the place of what an earlier one sent.
        source_trace: Where the trial's trace was pulled from; a sink at the same place
            attaches the scores to it instead of sending a copy.
    """

    run_id: str
    suite: str
    case_id: str
    trial: int
    entry_digest: str
    category: str | None
    input: JsonValue
    target: JsonValue
    output: JsonValue
    observation: Observation
    state: ScoreState
    verdict: Verdict
    disposition: Disposition
    deciding: str
    scores: tuple[Score, ...]
    proposals: tuple[Proposal, ...]
    cost_usd: float | None
    error: str | None
    executed_at: str | None
    judged_at: str | None
    round: int = 1
    source_trace: SourceTrace | None = None


class ExportOutcome(NamedTuple):
    """What became of one trial at one sink."""

    status: ExportStatus
    url: str | None = None
    message: str = ""


class Sink(Protocol):
    """A place that judged trials are sent to, each the moment it is judged."""

    @property
    def name(self) -> str:
        """The sink's name in the suite."""

    async def set_up(self, run: RunHeader) -> None:
        """Prepare, once per driver; safe to run again and at the same time as others."""

    async def send(self, trial: TrialExport) -> ExportOutcome:
        """Send one trial; sending it again changes no count. Never raises."""

    async def probe(self) -> Probe:
        """Ask whether trials could be sent, without sending any. Never raises."""

    async def complete(self) -> None:
        """Called by finalize when all trials were sent; safe to run again."""

    async def aclose(self) -> None:
        """Close files and connections."""


__all__ = [
    "Compute",
    "ExecResult",
    "ExportOutcome",
    "Grader",
    "Handle",
    "Harness",
    "JudgeReply",
    "JudgeRequest",
    "Ledger",
    "Probe",
    "Provider",
    "Pulled",
    "ReadFile",
    "ReadSecret",
    "Rule",
    "RuleResult",
    "RunHeader",
    "Sink",
    "TraceSource",
    "TrialContext",
    "TrialExport",
    "Workshop",
]
