"""What the sandboxes of one machine have in common: a work folder and supervised commands."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import ParamSpec, TypeVar

from weirbox.compute.folder import WorkFolder, abandoned, new_base, remove_tree
from weirbox.compute.process import UNKILLABLE_S, Launch, Outcome
from weirbox.compute.strays import kill_strays
from weirbox.domain.seams import ExecResult
from weirbox.domain.spec import ComputeSpec
from weirbox.errors import ComputeLost

MAX_THREADS = 256
"""Each running command holds one thread; they are made on demand."""

LONGEST_S = 10.0 * 365 * 86400
"""What stands for any longer time limit, since kernels count seconds in few bits."""

FILE_LIMIT = 2 * 2**30
"""The most bytes one file written in a sandbox may have."""

MARKER = "WEIRBOX_SANDBOX"
"""The environment variable by which a sandbox's processes are found again."""

P = ParamSpec("P")
T = TypeVar("T")

_START_FAILURES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


class Sandbox(ABC):
    """A `Handle` over a work folder on this machine.

    Commands run under supervision in threads of the compute's pool; `release` and
    `quiesce` first stop those that still run.
    """

    def __init__(self, machine: Machine, spec: ComputeSpec, identifier: str) -> None:
        self._machine = machine
        self._spec = spec
        self._id = identifier
        self._runs: dict[Future[Outcome], threading.Event] = {}
        self._released = False
        self.folder = self._new_folder(new_base(identifier))

    @property
    def id(self) -> str:
        """Unique among the sandboxes of this machine."""
        return self._id

    @property
    def workdir(self) -> str:
        """The work folder as commands inside see it."""
        return self.folder.inside

    @abstractmethod
    def _new_folder(self, base: str) -> WorkFolder:
        """The work folder that stands in `base`."""

    @abstractmethod
    def _run(self, launch: Launch, timeout_s: float, stop: threading.Event) -> Outcome:
        """Run a command in the sandbox; called in a thread.

        Args:
            launch: The command as the caller wants it, `cwd` being relative to the
                work folder.
        """

    @abstractmethod
    def _sweep(self) -> None:
        """Kill what outlived its command; called in a thread."""

    def prepare(self) -> None:
        """Make the folders; called in a thread. Raises `ProvisionError`."""
        self.folder.make()

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
        """Run a command; see `Handle.exec`.

        Raises:
            ComputeLost: When the sandbox died, or was released meanwhile.
            FileNotFoundError, NotADirectoryError, PermissionError: For `cwd`.
            ValueError: When an argument or variable cannot be passed to a process.
            OSError: When arguments and environment are too long (E2BIG).
        """
        limit = timeout_s if timeout_s is not None else self._spec.timeout_s
        most = output_limit if output_limit is not None else self._spec.output_limit_bytes
        stop = threading.Event()
        run = self._machine.submit(
            self._execute, tuple(argv), env or {}, cwd or ".", stdin, limit, most, stop
        )
        self._runs[run] = stop
        run.add_done_callback(self._runs.pop)
        try:
            outcome = await asyncio.wrap_future(run)
        except asyncio.CancelledError:
            stop.set()
            raise
        if outcome.stopped:
            raise ComputeLost(f"sandbox {self._id} was stopped while {argv[0]!r} ran")
        return ExecResult(
            exit_code=None if outcome.timed_out else outcome.exit_code,
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            timed_out=outcome.timed_out,
            truncated=outcome.truncated,
            duration=outcome.duration,
        )

    def _execute(
        self,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        cwd: str,
        stdin: bytes | None,
        timeout_s: float,
        output_limit: int,
        stop: threading.Event,
    ) -> Outcome:
        place = self._place(cwd)
        feed = self._feed(stdin)
        launch = Launch(
            argv=argv,
            env={**self._environment(), **self._spec.env, **env, MARKER: self._id},
            cwd=place,
            stdin=feed,
            kill_after=LONGEST_S,
            output_limit=output_limit,
        )
        try:
            return self._run(launch, min(timeout_s, LONGEST_S), stop)
        except OSError as error:
            if error.errno in _START_FAILURES:
                raise ComputeLost(f"{argv[0]!r} cannot be started: {error.strerror}") from error
            raise
        finally:
            if feed is not None:
                os.unlink(feed)

    def _place(self, cwd: str) -> str:
        """A working folder relative to the work folder, checked to be one."""
        if self._released or not os.path.isdir(self.folder.work):
            raise ComputeLost(f"sandbox {self._id} is gone")
        if cwd == self.workdir or cwd.startswith(f"{self.workdir}/"):
            cwd = cwd[len(self.workdir) :].lstrip("/")
        place = self.folder.locate(cwd)
        if not os.path.exists(place):
            raise FileNotFoundError(errno.ENOENT, "no such working folder", cwd)
        if not os.path.isdir(place):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", cwd)
        return os.path.relpath(place, self.folder.work)

    def _feed(self, stdin: bytes | None) -> str | None:
        if stdin is None:
            return None
        path = os.path.join(self.folder.base, f"stdin-{secrets.token_hex(8)}")
        with open(path, "xb") as file:
            file.write(stdin)
        return path

    def _environment(self) -> dict[str, str]:
        return {"PATH": path_inside(), "LANG": "C.UTF-8", "HOME": self.workdir}

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write files; see `Handle.put`."""
        await self._machine.call(self.folder.put, dict(files))

    async def get(self, path: str, *, limit: int = 100 * 2**20) -> bytes:
        """Read a file; see `Handle.get`."""
        return await self._machine.call(self.folder.get, path, limit)

    async def glob(self, pattern: str) -> list[str]:
        """List files; see `Handle.glob`."""
        return await self._machine.call(self.folder.glob, pattern)

    async def quiesce(self) -> None:
        """Kill every process still running inside."""
        if not self._released:
            await self._machine.call(self._still, self._halt())

    async def release(self) -> None:
        """Give the sandbox up; safe to call again, and from a cancelled task."""
        if self._released:
            return
        self._released = True
        await asyncio.shield(self._machine.call(self._remove, self._halt()))

    def _halt(self) -> list[Future[Outcome]]:
        runs = list(self._runs.items())
        for _, stop in runs:
            stop.set()
        return [run for run, _ in runs]

    def _still(self, runs: list[Future[Outcome]]) -> None:
        wait(runs, timeout=UNKILLABLE_S)
        self._sweep()

    def _remove(self, runs: list[Future[Outcome]]) -> None:
        try:
            self._still(runs)
        finally:
            remove_tree(self.folder.base)
            self._machine.forget(self)


class Machine(ABC):
    """A `Compute` whose sandboxes are processes and folders of this machine."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="weirbox-compute")
        self._live: set[Sandbox] = set()

    @property
    @abstractmethod
    def name(self) -> str:
        """The kind."""

    @property
    def capacity(self) -> int:
        """One sandbox for each processor this process may use."""
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    @abstractmethod
    def _sandbox(self, spec: ComputeSpec, identifier: str) -> Sandbox:
        """A sandbox that is not prepared yet."""

    async def provision(self, spec: ComputeSpec, *, correlation: str) -> Sandbox:
        """Make a sandbox. Raises `ProvisionError`."""
        tag = hashlib.sha256(correlation.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        sandbox = self._sandbox(spec, f"{tag}-{secrets.token_hex(6)}")
        self._live.add(sandbox)
        try:
            await self.call(sandbox.prepare)
        except BaseException:
            await sandbox.release()
            raise
        return sandbox

    async def reap(self) -> int:
        """Remove what dead processes left behind; safe to run twice at once."""
        return await self.call(_reap)

    async def aclose(self) -> None:
        """Release everything."""
        await asyncio.gather(*(sandbox.release() for sandbox in list(self._live)))
        self._pool.shutdown(wait=False)

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a blocking function in a thread of the pool."""
        return self._pool.submit(function, *args, **kwargs)

    def call(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """`submit` for the running event loop."""
        return asyncio.wrap_future(self.submit(function, *args, **kwargs))

    def forget(self, sandbox: Sandbox) -> None:
        """Called by a sandbox that was released."""
        self._live.discard(sandbox)


def _reap() -> int:
    found = abandoned()
    for base, identifier in found:
        kill_strays(f"{MARKER}={identifier}", base)
        remove_tree(base)
    return len(found)


def path_inside() -> str:
    """The search path of a sandbox: the running interpreter's programs come first."""
    programs = os.path.dirname(sys.executable) or os.path.join(sys.prefix, "bin")
    return f"{programs}:/usr/local/bin:/usr/bin:/bin"
