"""Work folders: one per sandbox, reached only by paths that stay inside it.

A folder's name carries the process that owns it, so that what a killed process left
behind can be told from what a living one still uses.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from weirbox.errors import ProvisionError

MAX_LINKS = 40
"""Links followed in one path, as in the kernel: more than that is a loop."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_BITS = stat.S_IRWXU

logger = logging.getLogger("weirbox.compute")


@dataclass(frozen=True)
class WorkFolder:
    """What a sandbox may write to, on the host.

    Attributes:
        base: The folder that is removed at the end; `work` stands in it.
        inside: The path of `work` as commands in the sandbox see it, so that absolute
            links made there can be followed here.
        owner: The user and group id that files are given to; None leaves them ours.
    """

    base: str
    inside: str
    owner: int | None = None

    @property
    def work(self) -> str:
        """The work folder's path on the host."""
        return os.path.join(self.base, "work")

    def make(self) -> None:
        """Create the folders. Raises `ProvisionError`."""
        _check_root(os.path.dirname(self.base))
        try:
            os.mkdir(self.base, 0o700)
            os.mkdir(self.work, 0o700)
            self._give(self.work)
        except OSError as error:
            raise ProvisionError(f"work folder {self.base!r} cannot be made: {error}") from error

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files; what stands in their place is replaced, links included."""
        for path, content in files.items():
            *parents, name = _parts(path) or _refuse(path)
            try:
                inner = self._follow(parents, path)
                folder = self._descend(inner)
                try:
                    self._clear(folder, name, os.path.join(self.work, *inner, name))
                    self._write(folder, name, content)
                finally:
                    os.close(folder)
            except OSError as error:
                raise _told(error, path) from None

    def get(self, path: str, limit: int) -> bytes:
        """The first `limit` bytes of a file."""
        found = self.locate(path)
        try:
            file = os.open(found, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _told(error, path) from None
        with open(file, "rb") as stream:
            mode = os.fstat(file).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not stat.S_ISREG(mode):
                raise PermissionError(errno.EACCES, "not a regular file", path)
            return stream.read(limit)

    def glob(self, pattern: str) -> list[str]:
        """The relative paths of the readable files that match, sorted; ``**`` spans folders."""
        parts = _parts(pattern)
        return sorted(path for path in self._files() if _matches(path.split("/"), parts))

    def locate(self, path: str) -> str:
        """The host path of a path inside, all links followed.

        Raises:
            PermissionError: When it leads out of the work folder.
        """
        return os.path.join(self.work, *self._follow(_parts(path), path))

    def _follow(self, parts: Sequence[str], path: str) -> list[str]:
        """Resolve links as the sandbox would, and refuse those that lead out."""
        todo, done, links = list(reversed(parts)), list[str](), 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    _refuse(path)
                done.pop()
                continue
            try:
                target = os.readlink(os.path.join(self.work, *done, part))
            except OSError:  # not a link, or not there: whoever opens it will say
                done.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                _refuse(path)
            if target.startswith("/"):
                if not f"{target}/".startswith(f"{self.inside}/"):
                    _refuse(path)
                target, done = target[len(self.inside) :], []
            todo.extend(reversed(target.split("/")))
        return done

    def _descend(self, parts: Sequence[str]) -> int:
        """Open a folder below the work folder, making what is missing on the way."""
        if os.stat(self.work).st_mode & _OWNER_BITS != _OWNER_BITS:
            os.chmod(self.work, 0o700)
        folder = os.open(self.work, _DIRECTORY)
        for part in parts:
            try:
                inner = self._enter(folder, part)
            finally:
                os.close(folder)
            folder = inner
        return folder

    def _enter(self, folder: int, part: str) -> int:
        try:
            mode = os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            mode = 0
        if mode and not stat.S_ISDIR(mode):
            os.unlink(part, dir_fd=folder)
        if not stat.S_ISDIR(mode):
            os.mkdir(part, 0o755, dir_fd=folder)
        elif mode & _OWNER_BITS != _OWNER_BITS:
            os.chmod(part, stat.S_IMODE(mode) | _OWNER_BITS, dir_fd=folder)
        inner = os.open(part, _DIRECTORY, dir_fd=folder)
        if not stat.S_ISDIR(mode):
            self._give(inner)
        return inner

    def _clear(self, folder: int, name: str, path: str) -> None:
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(mode):
            remove_tree(path)
        else:
            os.unlink(name, dir_fd=folder)

    def _write(self, folder: int, name: str, content: bytes) -> None:
        mode = 0o755 if content.startswith(b"#!") else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, mode, dir_fd=folder), "wb") as stream:
            self._give(stream.fileno())
            stream.write(content)

    def _give(self, file: int | str) -> None:
        if self.owner is not None:
            os.chown(file, self.owner, self.owner)

    def _files(self) -> Iterator[str]:
        """All files by relative path; folders are walked without following links."""
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                entries = list(os.scandir(os.path.join(self.work, folder)))
            except OSError:  # closed to us, or gone: there is nothing to list
                continue
            for entry in entries:
                path = f"{folder}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{path}/")
                elif entry.is_file(follow_symlinks=False) or self._is_inner_file(path):
                    yield path

    def _is_inner_file(self, path: str) -> bool:
        try:
            return stat.S_ISREG(os.lstat(self.locate(path)).st_mode)
        except OSError:
            return False


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path:
        _refuse(path)
    return [part for part in parts if part not in ("", ".")]


def _refuse(path: str) -> NoReturn:
    raise PermissionError(errno.EACCES, "not a path inside the work folder", path)


def _told(error: OSError, path: str) -> OSError:
    """The error with the path as it was asked for, instead of the host's."""
    number = error.errno
    if number in (errno.ELOOP, errno.ENXIO):
        number = errno.EACCES
    elif number in (errno.ENOTDIR, errno.ENAMETOOLONG):
        number = errno.ENOENT
    return OSError(number, os.strerror(number or errno.EIO), path)


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_matches(names[at:], patterns[1:]) for at in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], patterns[0]) and _matches(names[1:], patterns[1:])


def remove_tree(path: str) -> None:
    """Remove a folder, even one that was closed to us or is nested without end."""
    try:
        shutil.rmtree(path)
        return
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwX", "--", path], capture_output=True)
    removed = subprocess.run(["rm", "-rf", "--", path], capture_output=True)
    if removed.returncode:
        reason = removed.stderr.decode(errors="replace").strip().splitlines()
        logger.warning("%r could not be removed: %s", path, reason[0] if reason else "rm failed")


def new_base(identifier: str) -> str:
    """The path of a work folder owned by this process; nothing is created."""
    return os.path.join(_root(), f"{_owner()}-{identifier}")


def abandoned() -> list[tuple[str, str]]:
    """The (path, identifier) of every work folder whose owner is dead."""
    found = []
    root = Path(_root())
    for base in sorted(root.iterdir()) if root.is_dir() else []:
        space, pid, start, identifier = [*base.name.split("-", 3), "", "", ""][:4]
        ours = identifier and space == _pid_space() and pid.isdigit()
        if ours and _started(int(pid)) != start:
            found.append((str(base), identifier))
    return found


def _root() -> str:
    return os.path.join(tempfile.gettempdir(), f"weirbox-{os.getuid()}")


def _check_root(root: str) -> None:
    """The folder of all work folders must be ours alone: /tmp is everybody's."""
    try:
        os.makedirs(root, 0o700, exist_ok=True)
        found = os.lstat(root)
    except OSError as error:
        raise ProvisionError(f"folder {root!r} cannot be made: {error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ProvisionError(
            f"folder {root!r} is not ours alone: remove it, or set TMPDIR to another place"
        )


def _owner() -> str:
    return f"{_pid_space()}-{os.getpid()}-{_started(os.getpid())}"


def _pid_space() -> str:
    """The pid namespace: process ids of another one say nothing here."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks (0 where there is no /proc); None if dead."""
    if not os.path.isdir("/proc/self"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return "0"
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
