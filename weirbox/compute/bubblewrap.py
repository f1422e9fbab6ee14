"""Compute in bubblewrap: every command in namespaces of its own over one work folder.

Nothing outlives its command, since the kernel kills a pid namespace with its first
process; and that one dies with the supervisor.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import threading
import zlib
from dataclasses import replace
from pathlib import Path

from weirbox.compute.folder import WorkFolder
from weirbox.compute.local import limits
from weirbox.compute.process import Launch, Outcome, supervise
from weirbox.compute.sandbox import Machine, Sandbox, path_inside
from weirbox.domain.spec import ComputeSpec
from weirbox.errors import ComputeLost, PreflightError, ProvisionError

WORK = "/work"
"""Where the work folder stands inside."""

HOST_GRACE_S = 10.0
"""How much longer than its limit a command may take before the whole sandbox is killed."""

TERM_GRACE_S = 1.0
"""Between asking a timed-out command to end and killing it, inside."""

USERS = range(20_000, 60_000)
"""Where root's sandboxes get their user from: a user's processes are what is counted."""

_TIMED_OUT = (124, 137)  # what timeout(1) ends with, depending on the signal it took
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_READABLE = (
    "/usr",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki/tls/certs",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
_NETWORK = ("/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/services")


class BubblewrapSandbox(Sandbox):
    """Commands see the system read-only, their work folder, and nothing of the home."""

    def __init__(self, machine: Machine, spec: ComputeSpec, identifier: str) -> None:
        drops = _drops_user()
        self._user = USERS[zlib.crc32(identifier.encode()) % len(USERS)] if drops else None
        super().__init__(machine, spec, identifier)

    def _new_folder(self, base: str) -> WorkFolder:
        return WorkFolder(base, WORK, self._user)

    def prepare(self) -> None:
        """Make the folders, and the user database that commands see."""
        super().prepare()
        user = os.getuid() if self._user is None else self._user
        group = os.getgid() if self._user is None else self._user
        base = Path(self.folder.base)
        try:
            base.joinpath("passwd").write_text(f"agent:x:{user}:{group}::{WORK}:/bin/sh\n")
            base.joinpath("group").write_text(f"agent:x:{group}:\n")
            for name in ("passwd", "group"):
                base.joinpath(name).chmod(0o644)
        except OSError as error:
            raise ProvisionError(f"{str(base)!r} cannot be written: {error}") from error

    def _run(self, launch: Launch, timeout_s: float, stop: threading.Event) -> Outcome:
        status, status_end = os.pipe()
        try:
            wrapped = replace(
                launch,
                argv=(
                    *self._wrap(launch.cwd, status_end),
                    *_inside(self._spec, self._user),
                    *_deadline(timeout_s),
                    *launch.argv,
                ),
                cwd="/",
                kill_after=timeout_s + HOST_GRACE_S,
                pass_fds=(status_end,),
            )
            outcome = supervise(wrapped, stop)
            os.close(status_end)
            status_end = -1
            with open(status, "rb", closefd=False) as reports:
                ended = b'"exit-code"' in reports.read()
        finally:
            os.close(status)
            if status_end >= 0:
                os.close(status_end)
        if outcome.stopped or outcome.timed_out:
            return outcome
        if not ended:
            said = outcome.stderr.decode(errors="replace").strip()[-500:]
            raise ComputeLost(
                f"sandbox {self.id} died under {launch.argv[0]!r}"
                + (f": {said}" if said.startswith("bwrap:") else ""),
                detail=said,
            )
        late = outcome.duration >= timeout_s and outcome.exit_code in _TIMED_OUT
        return replace(outcome, timed_out=late)

    def _sweep(self) -> None:
        """Nothing is left: a pid namespace ends with its command."""

    def _wrap(self, cwd: str, status: int) -> tuple[str, ...]:
        base = self.folder.base
        return (
            *_namespaces(self._user is not None, self._spec.network),
            *_view(self._spec.memory_mb * 2**20, self._spec.network),
            *("--ro-bind", f"{base}/passwd", "/etc/passwd"),
            *("--ro-bind", f"{base}/group", "/etc/group"),
            *("--bind", self.folder.work, WORK),
            *("--remount-ro", "/", "--chdir", os.path.normpath(f"{WORK}/{cwd}")),
            *("--json-status-fd", str(status), "--"),
        )


class BubblewrapCompute(Machine):
    """Sandboxes made by bwrap; needs util-linux and coreutils besides.

    Raises:
        PreflightError: When it does not work here.
    """

    def __init__(self) -> None:
        reason = unavailable()
        if reason is not None:
            raise PreflightError(
                f"compute 'bubblewrap' does not work here: {reason}; "
                "install it, or set 'compute.kind' to 'local'"
            )
        super().__init__()

    @property
    def name(self) -> str:
        """The kind."""
        return "bubblewrap"

    def _sandbox(self, spec: ComputeSpec, identifier: str) -> BubblewrapSandbox:
        return BubblewrapSandbox(self, spec, identifier)


@functools.cache
def unavailable() -> str | None:
    """Why bubblewrap cannot be used, or None; tried once per process."""
    for program in ("bwrap", "prlimit", "timeout", *(("setpriv",) if _drops_user() else ())):
        if shutil.which(program) is None:
            return f"there is no {program!r} on the PATH"
    user = USERS[0] if _drops_user() else None
    argv = (
        *_namespaces(user is not None, network=False),
        *_view(2**20, network=False),
        "--",
        *_inside(ComputeSpec(), user),
        *_deadline(30.0),
        *(sys.executable, "-c", "pass"),
    )
    try:
        tried = subprocess.run(argv, capture_output=True, timeout=60, env={"PATH": path_inside()})
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if tried.returncode == 0:
        return None
    said = tried.stderr.decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"it ended with exit status {tried.returncode}"


@functools.cache
def _drops_user() -> bool:
    """Whether we are root over other users, and so must and can become one of them.

    As root, bubblewrap makes no user namespace and keeps root's capabilities; and no
    limit on processes binds root.
    """
    if os.geteuid() != 0:
        return False
    try:
        spans = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        return False
    return any(
        int(first) <= USERS.start and USERS.stop <= int(first) + int(count)
        for first, _, count in spans
    )


def _namespaces(drops_user: bool, network: bool) -> tuple[str, ...]:
    bwrap = shutil.which("bwrap") or "bwrap"
    common = (bwrap, "--die-with-parent", "--new-session")
    if not drops_user:
        shared = ("--share-net",) if network else ()
        return (*common, "--unshare-all", "--unshare-user", *shared, "--cap-drop", "ALL")
    unshared = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    return (*common, *unshared, *(() if network else ("--unshare-net",)))


@functools.lru_cache(maxsize=8)
def _view(memory: int, network: bool) -> tuple[str, ...]:
    """What of the machine is seen inside, all of it read-only."""
    args: list[str] = []
    for path in _SYSTEM:
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            args += ["--ro-bind", path, path]
    size = str(memory)
    args += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/dev/shm", "/tmp"):
        args += ["--perms", "1777", "--size", size, "--tmpfs", path]
    shown = [path for path in (*_READABLE, *(_NETWORK if network else ())) if os.path.exists(path)]
    parents = {str(parent) for path in (*shown, *_interpreter()) for parent in Path(path).parents}
    for parent in sorted(parents - {"/", "/tmp"}):  # bwrap's own would be closed to others
        args += ["--perms", "0755", "--dir", parent]
    for path in (*shown, *_interpreter()):
        args += ["--ro-bind", path, path]
    return (*args, "--dir", WORK, "--remount-ro", "/dev")


def _interpreter() -> list[str]:
    """The folders the running interpreter needs; never one that holds the home."""
    home = os.path.realpath(os.path.expanduser("~"))
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    prefixes |= {os.path.realpath(prefix) for prefix in prefixes}
    return sorted(
        prefix
        for prefix in prefixes
        if not f"{home}/".startswith(f"{os.path.realpath(prefix).rstrip('/')}/")
        and not prefix.startswith("/usr/")
        and prefix != "/usr"
    )


def _inside(spec: ComputeSpec, user: int | None) -> tuple[str, ...]:
    """What is run in the sandbox before the command: become the user, set limits."""
    become: tuple[str, ...] = ()
    if user is not None:
        become = (
            *(shutil.which("setpriv") or "setpriv", f"--reuid={user}", f"--regid={user}"),
            *("--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"),
        )
    return (*become, *limits(shutil.which("prlimit") or "prlimit", spec, processes=spec.processes))


def _deadline(timeout_s: float) -> tuple[str, ...]:
    program = shutil.which("timeout") or "timeout"
    return (program, f"--kill-after={TERM_GRACE_S}", "--", f"{timeout_s:.3f}")
