"""Who a driver is, and whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_driver() -> str:
    """This process among all machines and all times: host, pid, and when it started."""
    return f"{socket.gethostname()}:{os.getpid()}:{process_start(os.getpid())}"


def is_dead(driver: str) -> bool:
    """Whether a driver is known to be gone: it ran on this machine, and no longer does."""
    host, _, rest = driver.partition(":")
    pid, _, start = rest.partition(":")
    return host == socket.gethostname() and process_start(int(pid)) != start


def process_start(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty when there is none.

    Outside Linux only the pid tells processes apart.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return _exists(pid) if not Path("/proc/self").exists() else ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def _exists(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "alive"
    return "alive"
