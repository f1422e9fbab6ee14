"""A PostgreSQL server for the length of a test session, from whatever packages are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")
"""Settings of a server whose data nobody needs after a crash."""

START_S = 60.0
"""How long a server may take to answer, on a busy machine."""


def server_programs() -> Path | None:
    """The folder of the newest `initdb` and `postgres`, or None where there are none."""
    found = [
        path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()
    ]
    if found:
        return max(found, key=lambda path: int(path.parent.name))
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@contextmanager
def server(programs: Path) -> Iterator[Path]:
    """Run a server that listens on a Unix socket only; gives the socket's folder."""
    with restartable(programs) as made:
        yield made.place


@contextmanager
def restartable(programs: Path) -> Iterator[Server]:
    """Run a server that may be stopped and started within the block.

    A server refuses to run as root, so there it runs as another user.
    """
    place = Path(tempfile.mkdtemp(prefix="weirbox-pg-"))
    as_user = _as_another_user(place) if os.geteuid() == 0 else []
    initialise = [*as_user, str(programs / "initdb"), "-D", str(place / "data"), "-U", "weirbox"]
    run = [*as_user, str(programs / "postgres"), "-D", str(place / "data"), "-k", str(place)]
    run += ["-h", "", *(part for setting in FAST for part in ("-c", setting))]
    try:
        subprocess.run(
            [*initialise, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=place,
        )
        made = Server(place, run)
        try:
            made.start()
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(place)


@dataclass
class Server:
    """A server that is started and stopped.

    Attributes:
        place: The folder of its socket, its ``data`` and its ``log``.
    """

    place: Path
    argv: list[str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log, cwd=self.place)
        _wait(self.place, self.process)

    def stop(self) -> None:
        """Stop it fast: open connections are ended."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=START_S)


def _as_another_user(place: Path) -> list[str]:
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = known.get("postgres") or known["nobody"]
    os.chown(place, user.pw_uid, user.pw_gid)
    return [
        *("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"),
        *("--pdeathsig", "INT"),
    ]


def _wait(place: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(_admin(place)).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((place / "log").read_text()) from None
            time.sleep(0.05)


def _admin(place: Path) -> str:
    return f"host={place} user=weirbox dbname=postgres"


def url(place: Path, name: str) -> str:
    """How weirbox is told of a database of the server."""
    return f"postgresql://weirbox@/{name}?host={place}"


def create(place: Path, name: str, *, template: str = "template0", on: Path | None = None) -> None:
    """Make a database as a copy of another.

    Args:
        on: The folder of a disk that it is kept on, the server's own if absent.
    """
    with psycopg.connect(_admin(place), autocommit=True) as connection:
        where = ""
        if on is not None:
            connection.execute(f"CREATE TABLESPACE disk LOCATION '{on}'")
            where = "TABLESPACE disk"
        connection.execute(
            f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY {where}'
        )


def drop(place: Path, name: str) -> None:
    """Remove a database, whoever is still connected."""
    with psycopg.connect(_admin(place), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
