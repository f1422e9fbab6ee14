"""A program run in compute; its answer is standard output or a file."""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Mapping
from typing import Any

from weirbox.domain.base import storable
from weirbox.domain.case import Case
from weirbox.domain.seams import ExecResult, Handle, TrialContext, Workshop
from weirbox.domain.spec import CommandHarness, ComputeSpec
from weirbox.domain.template import fill
from weirbox.domain.trace import (
    Observation,
    Snapshot,
    SnapshotFile,
    StageError,
    TraceEvent,
    last_model,
    total_usage,
)
from weirbox.domain.words import ErrorKind, EventKind
from weirbox.errors import HarnessError
from weirbox.harnesses.events import read_events
from weirbox.harnesses.values import case_values, filled, read_secret, redact

KEEP_FILES = 100
"""The most files that are kept of one trial."""

KEEP_FILE_BYTES = 256 * 2**10
"""The most that is kept of one file: its beginning."""

KEEP_BYTES = 4 * 2**20
"""The most that is kept of all files of one trial."""

MISSING_STATUS = 127
_DETAIL = 2000
_PRESENT = ("sh", "-c", 'command -v "$1"', "sh")


class Command:
    """Drives a program; see `CommandHarness`."""

    needs_compute = True

    def __init__(self, spec: CommandHarness, workshop: Workshop, compute: ComputeSpec) -> None:
        self._spec = spec
        self._workshop = workshop
        self._compute = compute

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        """Run the program, stop what it left running, and look at what is there."""
        if handle is None:
            raise HarnessError("a command harness needs compute, and was given none")
        values = case_values(case, context.trial)
        secrets = {
            variable: read_secret(self._workshop.read_secret, name)
            for variable, name in self._compute.secrets.items()
        }
        started = time.perf_counter()
        result = await self._exec(handle, values, {**secrets, **context.env})
        duration = time.perf_counter() - started
        await handle.quiesce()
        return await self._observe(
            _Look(handle, self._compute.output_limit_bytes, secrets.values()),
            result,
            Observation(correlation=context.correlation, duration=duration),
        )

    async def aclose(self) -> None:
        """Nothing is open."""

    async def _exec(
        self, handle: Handle, values: dict[str, Any], env: Mapping[str, str]
    ) -> ExecResult:
        argv = [filled(fill, part, values, where="argv") for part in self._spec.argv]
        stdin = self._spec.stdin
        try:
            result = await handle.exec(
                argv,
                env=env,
                stdin=None
                if stdin is None
                else _encoded(filled(fill, stdin, values, where="stdin")),
                timeout_s=self._spec.timeout_s or self._compute.timeout_s,
                output_limit=self._compute.output_limit_bytes,
            )
        except ValueError as error:
            raise HarnessError(
                f"argv of {argv[0]!r} holds what no argument can ({error}): use 'stdin' instead"
            ) from None
        except OSError as error:
            hint = ": use 'stdin' instead" if error.errno == errno.E2BIG else ""
            raise HarnessError(f"{argv[0]!r} cannot be run: {error}{hint}") from None
        if result.exit_code == MISSING_STATUS:
            await self._check_present(handle, argv[0], env)
        return result

    async def _check_present(self, handle: Handle, program: str, env: Mapping[str, str]) -> None:
        """Tell a missing program from one that itself ended with status 127."""
        found = await handle.exec([*_PRESENT, program], env=env)
        if found.exit_code != 0:
            raise HarnessError(
                f"there is no program {program!r} in compute: install it on this machine below "
                "/usr, or lay it into the work folder with 'compute.files'",
                kind=ErrorKind.MISSING_EXECUTABLE,
            )

    async def _observe(self, look: _Look, result: ExecResult, base: Observation) -> Observation:
        stdout, stderr = look.text(result.stdout), look.text(result.stderr)
        error = _failure(self._spec.argv[0], result, stderr)
        output: str | None = stdout
        cut = result.truncated
        if self._spec.output != "stdout":
            try:
                output, longer = await look.read(self._spec.output, look.limit)
                cut = cut or longer
            except OSError as reason:
                output = None
                error = _no_output(self._spec.output, reason, error)
        if output is not None and self._spec.strip:
            output = output.strip()
        files, skipped, complaints = await look.keep(self._spec.keep)
        events: tuple[TraceEvent, ...] = ()
        if self._spec.events is not None:
            events = await look.events(self._spec.events)
        return base.model_copy(
            update={
                "output": output,
                "snapshot": Snapshot(
                    stdout=stdout,
                    stderr=stderr,
                    exit_code=result.exit_code,
                    timed_out=result.timed_out,
                    truncated=cut or skipped,
                    files=files,
                ),
                "trace": (*events, *complaints),
                "usage": total_usage(events),
                "model": last_model(events),
                "error": error,
            }
        )


class _Look:
    """Reads what a program left behind, as text without the secrets it was given."""

    def __init__(self, handle: Handle, limit: int, secrets: Collection[str]) -> None:
        self._handle = handle
        self._secrets = secrets
        self.limit = limit

    def text(self, content: bytes) -> str:
        return redact(storable(content.decode("utf-8", "backslashreplace")), self._secrets)

    async def read(self, path: str, limit: int) -> tuple[str, bool]:
        """The beginning of a file, and whether there is more of it."""
        content = await self._handle.get(path, limit=limit + 1)
        return self.text(content[:limit]), len(content) > limit

    async def events(self, path: str) -> tuple[TraceEvent, ...]:
        try:
            text, longer = await self.read(path, self.limit)
        except OSError as error:
            return (_complaint("missing events", f"{path!r} cannot be read: {_reason(error)}"),)
        events = read_events(text, path)
        if longer:
            cut = _complaint("events cut", f"{path!r} is longer than {self.limit} bytes")
            return (*events, cut)
        return events

    async def keep(
        self, patterns: Collection[str]
    ) -> tuple[tuple[SnapshotFile, ...], bool, tuple[TraceEvent, ...]]:
        """The files that match, whether some were left out, and what could not be read."""
        paths: dict[str, None] = {}
        for pattern in patterns:
            try:
                paths.update(dict.fromkeys(await self._handle.glob(pattern)))
            except PermissionError as error:
                raise HarnessError(
                    f"the harness's keep pattern {pattern!r} leads out of the work folder"
                ) from error
        files: list[SnapshotFile] = []
        complaints: list[TraceEvent] = []
        room = KEEP_BYTES
        for path in list(paths)[:KEEP_FILES]:
            try:
                text, longer = await self.read(path, min(KEEP_FILE_BYTES, room))
            except OSError as error:
                said = f"{storable(path)!r} cannot be read: {_reason(error)}"
                complaints.append(_complaint("file not kept", said))
                continue
            files.append(SnapshotFile(path=storable(path), text=text, truncated=longer))
            room -= len(text)
            if room <= 0:
                break
        left_out = len(files) + len(complaints) < len(paths)
        return tuple(files), left_out, tuple(complaints)


def _failure(program: str, result: ExecResult, stderr: str) -> StageError | None:
    if result.timed_out:
        return StageError(
            kind=ErrorKind.HARNESS_TIMEOUT,
            message=f"{program!r} did not end within its time limit ({result.duration:.1f} s)",
            detail=stderr[-_DETAIL:],
        )
    if result.exit_code != 0:
        return StageError(
            kind=ErrorKind.HARNESS_EXIT,
            message=f"{program!r} ended with exit status {result.exit_code}",
            detail=stderr[-_DETAIL:],
        )
    return None


def _no_output(path: str, reason: OSError, earlier: StageError | None) -> StageError:
    said = f"its output file {path!r} cannot be read: {_reason(reason)}"
    if earlier is not None:
        return earlier.model_copy(update={"message": f"{earlier.message}; {said}"})
    return StageError(kind=ErrorKind.HARNESS_EXIT, message=said)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _complaint(name: str, text: str) -> TraceEvent:
    return TraceEvent(kind=EventKind.ERROR, name=name, text=text)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
