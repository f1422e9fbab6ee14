"""What the sinks that write folders have in common, and the JSON lines sink."""

from __future__ import annotations

import asyncio
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from weirbox.domain.platforms import NAME
from weirbox.domain.seams import ExportOutcome, Probe, RunHeader, TrialExport
from weirbox.domain.words import ExportStatus, ProbeState
from weirbox.errors import SinkError
from weirbox.sinks.lines import encoded, key_of, trial_line
from weirbox.sinks.parts import Parts, replace_file


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, and the parts in it."""

    run: RunHeader
    path: Path
    parts: Parts

    def prepare(self) -> None:
        """Make the folder, write ``run.json``, and learn which trials are there already."""
        self.parts.refresh()
        replace_file(self.path / "run.json", encoded(self.run.model_dump()) + b"\n")


class FolderSink(ABC):
    """Writes each trial of a run, once in each round, as a line of a part file.

    Attributes:
        parts_in: Where below the run's folder the parts stand.
    """

    parts_in: ClassVar[str] = "."

    def __init__(self, *, name: str, path: str) -> None:
        self._name = name
        self._path = Path(path).absolute()
        self._folder: RunFolder | None = None
        self._waiting: list[tuple[TrialExport, asyncio.Future[ExportOutcome]]] = []
        self._writing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The sink's name in the suite."""
        return self._name

    async def set_up(self, run: RunHeader) -> None:
        """Write ``run.json`` and learn which trials are there already.

        Safe to run again and at the same time as others: the header is replaced by
        an equal one. When the folder cannot be written, `send` says so for each
        trial until that is mended.

        Raises:
            SinkError: When the run's id is no folder name, or the folder cannot be written.
        """
        if not NAME.fullmatch(run.run_id):
            raise SinkError(
                f"sink {self.name!r}: the run id {run.run_id!r} is no safe folder name; "
                "it may have letters, digits, '.', '_' and '-' only"
            )
        await self.aclose()
        path = self._path / run.run_id
        self._folder = RunFolder(run, path, Parts(path / self.parts_in))
        try:
            await asyncio.to_thread(self._folder.prepare)
        except OSError as error:
            raise SinkError(f"sink {self.name!r} cannot be set up: {error}") from error

    async def send(self, trial: TrialExport) -> ExportOutcome:
        """Append the trial unless it is there already, of its round. Never raises.

        What is sent while others are being written is written together, in one thread.
        """
        outcome: asyncio.Future[ExportOutcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((trial, outcome))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_waiting())
        return await outcome

    async def _write_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            trials = [trial for trial, _ in batch]
            try:
                outcomes = await asyncio.to_thread(self._append_all, trials)
            except RuntimeError as error:  # the loop's threads are shut down
                outcomes = [ExportOutcome(ExportStatus.FAILED, message=str(error)) for _ in batch]
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if not future.done():
                    future.set_result(outcome)

    def _append_all(self, trials: list[TrialExport]) -> list[ExportOutcome]:
        return [self._outcome(trial) for trial in trials]

    def _outcome(self, trial: TrialExport) -> ExportOutcome:
        try:
            part = self._append(trial)
        except Exception as error:  # noqa: BLE001
            where = f"sink {self.name!r}, case {trial.case_id!r}, trial {trial.trial}"
            message = f"{where}: {type(error).__name__}: {error}"
            return ExportOutcome(ExportStatus.FAILED, message=message)
        return ExportOutcome(ExportStatus.SUCCEEDED, url=part.as_uri())

    async def probe(self) -> Probe:
        """Whether a file can be written in the sink's folder. Never raises."""
        try:
            await asyncio.to_thread(self._try_out)
        except OSError as error:
            return Probe(ProbeState.ERROR, f"{self._path} cannot be written: {error.strerror}")
        return Probe(ProbeState.OK, str(self._path))

    def _try_out(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._path):
            pass

    async def complete(self) -> None:
        """Finish the run's folder; safe to run again, since it is made from the parts anew.

        Raises:
            SinkError: When the folder cannot be written.
        """
        folder = self._set_up_folder()
        try:
            await asyncio.to_thread(folder.prepare)
            await asyncio.to_thread(self._finish, folder)
        except OSError as error:
            raise SinkError(f"sink {self.name!r} cannot be completed: {error}") from error

    async def aclose(self) -> None:
        """Close the part, once what was sent is written."""
        if self._writing is not None:
            await self._writing
        if self._folder is not None:
            await asyncio.to_thread(self._folder.parts.close)

    @abstractmethod
    def _finish(self, folder: RunFolder) -> None:
        """Make what the folder has in the end. Raises `OSError`."""

    def _append(self, trial: TrialExport) -> Path:
        folder = self._set_up_folder()
        if trial.run_id != folder.run.run_id:
            raise SinkError(
                f"the trial is of run {trial.run_id!r}, but the sink was set up for "
                f"{folder.run.run_id!r}; set it up for each run"
            )
        return folder.parts.append(key_of(trial), trial_line(trial))

    def _set_up_folder(self) -> RunFolder:
        if self._folder is None:
            raise SinkError(f"sink {self.name!r} has not been set up; await set_up(run) first")
        return self._folder


class JsonlFolder(FolderSink):
    """``<path>/<run id>/trials-*.jsonl``: one line per judged trial, one part per process.

    A trial that was opened again has a line for each ``round`` it was sent in; that of the
    latest counts.

    When the run is completed, ``complete.json`` says how many trials there are.
    """

    def _finish(self, folder: RunFolder) -> None:
        summary = {
            "run_id": folder.run.run_id,
            "trials": folder.parts.refresh(),
            "parts": [part.name for part in folder.parts.paths()],
        }
        replace_file(folder.path / "complete.json", encoded(summary) + b"\n")
