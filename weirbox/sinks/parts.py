"""A run's folder of JSON lines, shared by any number of processes.

Every process appends to a part of its own, so a process that is killed while it
writes tears at most the last line of its own part, which no reader takes for a
line. A lock over the folder makes "is it there already?" and "append" one step:
a trial that two drivers send, or one driver sends again after a crash, stands
once. A trial that was opened again stands once for each round it was sent in, and
the line of the latest round counts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weirbox.sinks.lines import LineKey, line_key

_LOCK = ".lock"


class Parts:
    """The parts in one folder: those of other processes to read, one to append to.

    Memory: about 100 bytes per trial of the run, for the 8-byte digests of the
    keys that are there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own = folder / f"trials-{uuid.uuid4().hex[:12]}.jsonl"
        self._file: int | None = None
        self._places: dict[int, Path] = {}
        self._rounds: dict[int, int] = {}
        self._read: dict[Path, int] = {}
        self._thread_lock = threading.Lock()

    def refresh(self) -> int:
        """Make the folder, and read what other processes have written since the last time.

        Returns:
            How many different trials there are.

        Raises:
            OSError: When the folder cannot be made or read.
        """
        with self._thread_lock:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._folder_lock():
                self._read_others()
            return len(self._places)

    def append(self, key: LineKey, line: bytes) -> Path:
        """Append a line unless a part has one of its trial of that round, or of a later one;
        safe to call from several threads.

        Returns:
            The part where the line stands.

        Raises:
            OSError: When it cannot be written; what was written of it is taken back.
        """
        digest = _digest(key.entry)
        with self._thread_lock:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._folder_lock():
                self._read_others()
                if self._is_newer(digest, key.round):
                    self._write(line)
                    self._place(digest, key.round, self._own)
                return self._places[digest]

    def close(self) -> None:
        """Close the own part; a later line opens it again."""
        with self._thread_lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def paths(self) -> list[Path]:
        """The parts that are there, sorted."""
        return sorted(self.folder.glob("trials-*.jsonl"))

    def lines(self) -> Iterator[bytes]:
        """Every trial's line of its latest round that `refresh` found, once, part by part,
        without its line feed."""
        seen: set[int] = set()
        for path in self.paths():
            for line, _ in _whole_lines(path, 0):
                key = line_key(line)
                if key is None or (digest := _digest(key.entry)) in seen:
                    continue
                if key.round >= self._rounds.get(digest, 1):
                    seen.add(digest)
                    yield line

    def _is_newer(self, digest: int, round: int) -> bool:
        return digest not in self._places or round > self._rounds.get(digest, 1)

    def _place(self, digest: int, round: int, path: Path) -> None:
        self._places[digest] = path
        if round > 1:
            self._rounds[digest] = round

    def _read_others(self) -> None:
        for path in self.paths():
            start = self._read.get(path, 0)
            if path == self._own or path.stat().st_size <= start:
                continue
            for line, end in _whole_lines(path, start):
                self._read[path] = end
                key = line_key(line)
                if key is not None and self._is_newer(digest := _digest(key.entry), key.round):
                    self._place(digest, key.round, path)

    def _write(self, line: bytes) -> None:
        if self._file is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self._own, flags, 0o644)
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            os.ftruncate(self._file, size)
            raise

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        file = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _whole_lines(path: Path, start: int) -> Iterator[tuple[bytes, int]]:
    """The lines from an offset on, each with the offset after it; a torn last one is left out."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            start += len(line)
            yield line[:-1], start


def _digest(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or all of the new.

    Raises:
        OSError: When it cannot be written; nothing is left behind.
    """
    with replacement(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when the block ends well."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
