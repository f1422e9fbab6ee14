"""Real processes that tests start, all at the same moment, and always end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextmanager
def started(*commands: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Python processes that print ``ready`` and then wait for a line on standard input."""
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for command in commands
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def go(process: subprocess.Popen[str]) -> None:
    """Let a process that is ready begin."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Let all begin at once, and wait for what they print."""
    for process in processes:
        go(process)
    found = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return found
