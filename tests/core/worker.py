"""A driver in a process of its own: ``python -m tests.core.worker URL RUN``."""

from __future__ import annotations

import asyncio
import sys

from tests.factories import driving
from weirbox.store.engine import Database


def main(url: str, run_id: str) -> None:
    """Say that it is there, wait to be told to begin, and drive."""
    print("ready", flush=True)
    sys.stdin.readline()
    print(asyncio.run(driving(Database(url), run_id)))


if __name__ == "__main__":
    main(*sys.argv[1:])
