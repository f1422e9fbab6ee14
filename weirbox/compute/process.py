"""Run one command under supervision: time limits, and the tail of an output of any size."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from weirbox.errors import ComputeLost

POLL_S = 0.05
"""How soon a time limit or a request to stop is noticed."""

DRAIN_S = 1.0
"""How long a survivor may go on writing into the output of a command that has ended."""

UNKILLABLE_S = 10.0
"""How long a killed process may take to disappear."""

_CHUNK = 2**16


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a command is started.

    Attributes:
        stdin: A path to read standard input from; None for no input.
        term_after: Seconds until the process group is asked to end; None for never.
        kill_after: Seconds until the process group is killed.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdin: str | None = None
    term_after: float | None = None
    kill_after: float
    output_limit: int
    pass_fds: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of it.

    Attributes:
        exit_code: 128 + N for a death by signal N, as shells say.
        timed_out: A limit of the launch was reached.
        stopped: Ended because the caller asked for it.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    stopped: bool
    duration: float


class Tail:
    """The last `limit` bytes of a stream; memory stays below the limit and one chunk."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self.truncated = False

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) >= self._limit:
            self._size -= len(self._chunks.popleft())
            self.truncated = True

    def bytes(self) -> bytes:
        kept = b"".join(self._chunks)
        if len(kept) > self._limit:
            self.truncated = True
            kept = kept[len(kept) - self._limit :]
        return kept


def supervise(launch: Launch, stop: threading.Event) -> Outcome:
    """Start a command and see it to its end.

    It is started and awaited in the calling thread, since a parent's death, as the
    kernel signals it to a child, is the death of the thread that started it. Never
    waits for survivors that hold the output open.

    Raises:
        OSError, ValueError: When it cannot be started, as `subprocess.Popen` says.
        ComputeLost: When a killed process does not disappear.
    """
    with open(launch.stdin or os.devnull, "rb") as stdin:
        started = time.perf_counter()
        process = subprocess.Popen(
            launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            pass_fds=launch.pass_fds,
        )
    return _Supervision(launch, process, started, stop).outcome()


class _Supervision:
    def __init__(
        self,
        launch: Launch,
        process: subprocess.Popen[bytes],
        started: float,
        stop: threading.Event,
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._launch = launch
        self._process = process
        self._started = started
        self._stop = stop
        self._stopped = False
        self._timed_out = False
        self._asked = False
        self._killed_at: float | None = None
        self._tails: dict[IO[bytes], Tail] = {
            process.stdout: Tail(launch.output_limit),
            process.stderr: Tail(launch.output_limit),
        }

    def outcome(self) -> Outcome:
        with selectors.DefaultSelector() as selector:
            try:
                for stream in self._tails:
                    selector.register(stream, selectors.EVENT_READ)
                self._watch(selector)
                duration = time.perf_counter() - self._started
                self._drain(selector)
            except BaseException:
                self._signal(signal.SIGKILL)
                raise
            finally:
                for stream in self._tails:
                    stream.close()
        stdout, stderr = (tail.bytes() for tail in self._tails.values())
        code = self._process.returncode
        return Outcome(
            exit_code=128 - code if code < 0 else code,
            stdout=stdout,
            stderr=stderr,
            timed_out=self._timed_out,
            truncated=any(tail.truncated for tail in self._tails.values()),
            stopped=self._stopped,
            duration=duration,
        )

    def _watch(self, selector: selectors.BaseSelector) -> None:
        while self._process.poll() is None:
            if selector.get_map():
                self._pump(selector, POLL_S)
            else:
                self._wait()
            self._enforce(time.perf_counter() - self._started)

    def _wait(self) -> None:
        try:
            self._process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            return

    def _pump(self, selector: selectors.BaseSelector, timeout: float) -> bool:
        ready = selector.select(timeout)
        for key, _ in ready:
            chunk = os.read(key.fd, _CHUNK)
            if chunk:
                self._tails[key.fileobj].add(chunk)  # type: ignore[index]
            else:
                selector.unregister(key.fileobj)
        return bool(ready)

    def _drain(self, selector: selectors.BaseSelector) -> None:
        until = time.perf_counter() + DRAIN_S
        while selector.get_map() and time.perf_counter() < until:
            if not self._pump(selector, 0):
                return

    def _enforce(self, elapsed: float) -> None:
        if self._killed_at is not None and elapsed > self._killed_at + UNKILLABLE_S:
            raise ComputeLost(
                f"process {self._process.pid} of {self._launch.argv[0]!r} cannot be killed"
            )
        if self._stop.is_set():
            self._stopped = True
            self._kill(elapsed)
        elif elapsed >= self._launch.kill_after:
            self._timed_out = True
            self._kill(elapsed)
        elif self._launch.term_after is not None and elapsed >= self._launch.term_after:
            self._timed_out = True
            if not self._asked:
                self._asked = True
                self._signal(signal.SIGTERM)

    def _kill(self, elapsed: float) -> None:
        if self._killed_at is None:
            self._killed_at = elapsed
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:  # not yet reaped: the group's id is still its own
            os.killpg(self._process.pid, number)
