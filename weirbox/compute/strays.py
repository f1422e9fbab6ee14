"""Find and kill the processes of a sandbox that are in no pid namespace of their own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from weirbox.errors import ComputeLost

PATIENCE_S = 10.0
"""How long processes may go on appearing while they are being killed."""

_PAUSE_S = 0.005


def kill_strays(marker: str, folder: str) -> None:
    """Kill the processes that carry a variable or work below a folder, until there are none.

    Where there is no /proc there is nothing to find them by, and nothing is done.

    Args:
        marker: ``NAME=value`` as it stands in their environment.
        folder: An absolute path.

    Raises:
        ComputeLost: When new ones appear, or old ones stay, for `PATIENCE_S`.
    """
    until = time.monotonic() + PATIENCE_S
    while pids := _strays(marker.encode(), os.path.realpath(folder)):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > until:
            raise ComputeLost(f"processes {pids} of {marker} cannot be killed")
        time.sleep(_PAUSE_S)


def tasks_of_user() -> int:
    """How many threads this user runs, which is what a limit on processes counts."""
    count = 0
    for status in _processes():
        try:
            count += int(status.joinpath("stat").read_bytes().rpartition(b")")[2].split()[17])
        except OSError:  # it ended meanwhile
            continue
    return count


def _strays(marker: bytes, folder: str) -> list[int]:
    return [int(process.name) for process in _processes() if _belongs(process, marker, folder)]


def _processes() -> list[Path]:
    user, found = os.getuid(), []
    if not os.path.isdir("/proc/self"):
        return []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == user:
                found.append(Path(entry.path))
        except OSError:  # it ended meanwhile
            continue
    return found


def _belongs(process: Path, marker: bytes, folder: str) -> bool:
    if int(process.name) == os.getpid():
        return False
    try:
        if marker in process.joinpath("environ").read_bytes().split(b"\0"):
            return True
        place = os.readlink(process / "cwd")
    except OSError:  # it ended meanwhile, or is not ours to look into
        return False
    return place == folder or place.startswith(f"{folder}/")
