"""Fakes of weirbox's own parts: everything in memory, nothing to install."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import count

from pydantic import JsonValue

from weirbox.domain.case import Case
from weirbox.domain.run import Progress
from weirbox.domain.seams import (
    ExecResult,
    ExportOutcome,
    Handle,
    JudgeReply,
    JudgeRequest,
    Probe,
    RunHeader,
    TrialContext,
    TrialExport,
)
from weirbox.domain.spec import ComputeSpec
from weirbox.domain.trace import Observation, Usage
from weirbox.domain.words import ExportStatus, ProbeState
from weirbox.pipeline.coordinating import DriverOrder, FlowState
from weirbox.store.alerts import AlertRow


class MemoryHandle:
    """A sandbox that is a dictionary; commands answer what they are told to."""

    def __init__(self, number: int, done: Callable[[float], None]) -> None:
        self.id = f"memory-{number}"
        self.workdir = "/work"
        self.files: dict[str, bytes] = {}
        self.released = 0
        self._done = done
        self._since = time.perf_counter()

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
        """Succeed, and echo standard input."""
        return ExecResult(0, stdin or b"", b"", False, False, 0.0)

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Keep the files."""
        self.files.update(files)

    async def get(self, path: str, *, limit: int = 100 * 2**20) -> bytes:
        """Read a file that was put."""
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][:limit]

    async def glob(self, pattern: str) -> list[str]:
        """The paths that match."""
        return sorted(path for path in self.files if fnmatch(path, pattern))

    async def quiesce(self) -> None:
        """Nothing runs inside."""

    async def release(self) -> None:
        """Note for how long it was held; the second time counts, but changes nothing."""
        self.released += 1
        if self.released == 1:
            self._done(time.perf_counter() - self._since)


@dataclass
class MemoryCompute:
    """Compute without processes, which remembers how long it was held.

    Attributes:
        held_s: Seconds between provisioning and release, over all sandboxes.
        handles: All sandboxes that were provisioned; empty unless `keep`.
    """

    capacity: int = 16
    keep: bool = True
    name: str = "memory"
    held_s: float = 0.0
    handles: list[MemoryHandle] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    async def provision(self, spec: ComputeSpec, *, correlation: str) -> Handle:
        """Make a sandbox."""
        handle = MemoryHandle(next(self._numbers), self._add)
        if self.keep:
            self.handles.append(handle)
        return handle

    def _add(self, seconds: float) -> None:
        self.held_s += seconds

    async def reap(self) -> int:
        """Nothing is ever left behind."""
        return 0

    async def aclose(self) -> None:
        """Nothing is open."""


@dataclass
class ScriptedHarness:
    """A harness that answers what a function says, after a delay.

    Attributes:
        answer: Gives the output for a case; the input itself by default.
        needed_s: Seconds spent answering, over all trials.
        runs: How often it was run, by case id.
    """

    answer: Callable[[Case], JsonValue] = lambda case: case.input
    delay_s: float = 0.0
    needs_compute: bool = False
    needed_s: float = 0.0
    runs: dict[str, int] = field(default_factory=dict)

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        """Answer."""
        started = time.perf_counter()
        self.runs[case.id] = self.runs.get(case.id, 0) + 1
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        output = self.answer(case)
        duration = time.perf_counter() - started
        self.needed_s += duration
        return Observation(output=output, duration=duration, correlation=context.correlation)

    async def aclose(self) -> None:
        """Nothing is open."""


@dataclass
class ReplayJudge:
    """A provider of judge replies that a function gives; free unless it has a price.

    Attributes:
        reply: Gives the text or the whole reply to a request; what it raises is raised.
        cost_usd: What each call costs, and the bound that is reserved for it.
        requests: Everything it was asked.
    """

    reply: Callable[[JudgeRequest], str | JudgeReply]
    name: str = "replay"
    cost_usd: float = 0.0
    delay_s: float = 0.0
    requests: list[JudgeRequest] = field(default_factory=list)

    async def ask(self, request: JudgeRequest) -> JudgeReply:
        """Answer once."""
        self.requests.append(request)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        given = self.reply(request)
        if isinstance(given, JudgeReply):
            return given
        usage = Usage(cost_usd=self.cost_usd)
        return JudgeReply(text=given, usage=usage, model=request.model, cached=self.cost_usd == 0.0)

    def bound_usd(self, request: JudgeRequest) -> float | None:
        """The price of one call."""
        return self.cost_usd

    def preflight(self, model: str) -> str | None:
        """Nothing is missing."""
        return None

    async def aclose(self) -> None:
        """Nothing is open."""


@dataclass
class MemorySink:
    """A sink that keeps what it is sent; sending again replaces."""

    name: str = "memory"
    sent: dict[str, TrialExport] = field(default_factory=dict)
    completed: int = 0

    async def set_up(self, run: RunHeader) -> None:
        """Nothing to prepare."""

    async def send(self, trial: TrialExport) -> ExportOutcome:
        """Keep one trial."""
        self.sent[trial.entry_digest] = trial
        return ExportOutcome(ExportStatus.SUCCEEDED, url=f"memory:{trial.entry_digest}")

    async def probe(self) -> Probe:
        """It is always there."""
        return Probe(ProbeState.OK)

    async def complete(self) -> None:
        """Count how often."""
        self.completed += 1

    async def aclose(self) -> None:
        """Nothing is open."""


@dataclass
class Clock:
    """A clock that moves when it is told to."""

    now: float = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class MemoryEngine:
    """What the coordinator asks of an engine, in memory: it starts nothing.

    Attributes:
        drivers: Flow runs by idempotency key; the same key gives the same one.
        finalized: Runs that were asked to be finalized, by key.
        state: Where flow runs stand; those that are not named wait for a worker.
        shown: The progress that was published last, by run.
        evaluated: Suites that were asked to be evaluated, by key.
        emitted: The alerts that were told.
        down: Whether it answers nothing.
    """

    def __init__(self) -> None:
        self.drivers: dict[str, str] = {}
        self.finalized: dict[str, str] = {}
        self.state: dict[str, FlowState] = {}
        self.shown: dict[str, Progress] = {}
        self.evaluated: dict[str, str] = {}
        self.emitted: list[AlertRow] = []
        self.down = False

    async def states(self, flow_runs: Sequence[str]) -> Mapping[str, FlowState]:
        """Where they stand."""
        self._answer()
        return {name: self.state.get(name, FlowState.WAITING) for name in flow_runs}

    async def drive(self, order: DriverOrder) -> str:
        """Remember the order."""
        self._answer()
        return self.drivers.setdefault(order.key, f"flow-run-{len(self.drivers)}")

    async def finalize(self, run_id: str, key: str) -> str:
        """Remember it."""
        self._answer()
        self.finalized[key] = run_id
        return f"finalize-{run_id}"

    async def evaluate(self, suite: str, kind: str, since: str | None, key: str) -> str:
        """Remember it."""
        self._answer()
        self.evaluated[key] = suite
        return f"evaluate-{key}"

    async def emit(self, alert: AlertRow) -> None:
        """Remember it."""
        self._answer()
        self.emitted.append(alert)

    async def show(self, run_id: str, progress: Progress) -> None:
        """Remember it."""
        self._answer()
        self.shown[run_id] = progress

    def _answer(self) -> None:
        if self.down:
            raise ConnectionError("the engine is down")
