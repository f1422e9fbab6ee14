"""Compute without isolation: plain processes with limits in a folder of their own."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import threading
import time
from dataclasses import replace

from weirbox.compute.folder import WorkFolder
from weirbox.compute.process import Launch, Outcome, supervise
from weirbox.compute.sandbox import FILE_LIMIT, MARKER, Machine, Sandbox, path_inside
from weirbox.compute.strays import kill_strays, tasks_of_user
from weirbox.domain.spec import ComputeSpec
from weirbox.errors import ProvisionError

GRACE_S = 1.0
"""Between asking a timed-out command to end and killing it."""

MISSING = 127
NOT_EXECUTABLE = 126

SHARED_BY = 64
"""As many sandboxes may reach their limit on processes before they disturb each other."""

_COUNT_FOR_S = 1
"""How long a count of the user's processes is taken as current."""


class LocalSandbox(Sandbox):
    """Commands see the whole machine; only limits and the clean environment hold.

    The kernel's limit on processes counts all of the user's: it is set to what runs
    already and room for `SHARED_BY` sandboxes. It stops a fork bomb, not one process
    too many, and it does not bind root.
    """

    def _new_folder(self, base: str) -> WorkFolder:
        return WorkFolder(base, os.path.realpath(os.path.join(base, "work")))

    def prepare(self) -> None:
        """Make the folders, one for temporary files among them."""
        super().prepare()
        try:
            os.mkdir(self._temporary, 0o700)
        except OSError as error:
            raise ProvisionError(f"{self._temporary!r} cannot be made: {error}") from error

    @property
    def _temporary(self) -> str:
        return os.path.join(self.folder.base, "tmp")

    def _environment(self) -> dict[str, str]:
        path = f"{path_inside()}:{os.environ.get('PATH', '')}".rstrip(":")
        return {**super()._environment(), "PATH": path, "TMPDIR": self._temporary}

    def _run(self, launch: Launch, timeout_s: float, stop: threading.Event) -> Outcome:
        limited = replace(
            launch,
            argv=(*_limits(self._spec), *launch.argv),
            cwd=os.path.join(self.folder.work, launch.cwd),
            term_after=timeout_s,
            kill_after=timeout_s + GRACE_S,
        )
        try:
            outcome = supervise(limited, stop)
        except (FileNotFoundError, PermissionError) as error:
            return _not_started(launch.argv[0], error)
        if outcome.timed_out or outcome.stopped:
            self._sweep()
        return outcome

    def _sweep(self) -> None:
        kill_strays(f"{MARKER}={self.id}", self.folder.base)


class LocalCompute(Machine):
    """Subprocesses of this user."""

    @property
    def name(self) -> str:
        """The kind."""
        return "local"

    def _sandbox(self, spec: ComputeSpec, identifier: str) -> LocalSandbox:
        return LocalSandbox(self, spec, identifier)


def _limits(spec: ComputeSpec) -> tuple[str, ...]:
    """The command that sets limits and becomes the one that follows, where there is one."""
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        return ()
    others = _tasks(int(time.monotonic()) // _COUNT_FOR_S)
    return limits(prlimit, spec, processes=others + SHARED_BY * spec.processes)


def limits(prlimit: str, spec: ComputeSpec, *, processes: int) -> tuple[str, ...]:
    """The start of a command line that puts limits on what follows.

    Memory is limited as private writable memory, not as address space: runtimes that
    reserve far more than they use (JVM, WebAssembly) do not start under the latter.
    """
    return (
        prlimit,
        f"--data={spec.memory_mb * 2**20}",
        f"--nproc={processes}",
        f"--fsize={FILE_LIMIT}",
        "--core=0",
        "--",
    )


@functools.lru_cache(maxsize=1)
def _tasks(window: int) -> int:
    return tasks_of_user()


def _not_started(program: str, error: OSError) -> Outcome:
    """What a shell says of a program that is missing or may not be run."""
    code = MISSING if error.errno == errno.ENOENT else NOT_EXECUTABLE
    return Outcome(
        exit_code=code,
        stdout=b"",
        stderr=f"{program}: {error.strerror}\n".encode("utf-8", "backslashreplace"),
        timed_out=False,
        truncated=False,
        stopped=False,
        duration=0.0,
    )
