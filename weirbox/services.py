"""Local servers that weirbox starts once, keeps for the next runs, and ends with `down`.

Each is a detached process on a free loopback port, with a state file below WEIRBOX_HOME.
A file lock makes starting safe from several processes at once: one starts, the others find.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from weirbox.errors import ServiceError
from weirbox.pipeline.identity import process_start

START_S = 90.0
"""How long a Prefect server may take to answer; usually 9 to 13 s."""

STOP_S = 15.0
"""How long a service may take to end before it is killed."""

SERVER_ENV = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "500",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
        "prefect.server.concurrency.lease_storage.filesystem"
    ),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_API_SERVICES_FOREMAN_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}
"""With the defaults a burst of task runs is recorded in part only, and costs CPU for minutes;
and a server that is restarted forgets who holds a slot of a deployment, which is never freed."""

CLIENT_ENV = {
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_CLIENT_MAX_RETRIES": "3",
    "DO_NOT_TRACK": "1",
}
"""What a driver sets for itself, unless the user has set it: logs to the API cost a request
for each line, and a request to a server that died is given up after 14 s instead of 62 s,
since the rows are the truth anyway."""

CHOSEN_HERE = "WEIRBOX_LOCAL_PREFECT_API_URL"
"""Tells a PREFECT_API_URL that `prepare_client` has set from one that the user has."""


@dataclass(frozen=True)
class Service:
    """A running local server.

    Attributes:
        store: What tells the database it works on from others; empty where it needs none.
    """

    name: str
    pid: int
    start: str
    url: str
    store: str = ""

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return self.start != "" and process_start(self.pid) == self.start


class Services:
    """The local servers below one WEIRBOX_HOME."""

    def __init__(self, home: Path) -> None:
        self._folder = home.expanduser().absolute() / "services"
        self.prefect_home = home.expanduser().absolute() / "prefect"

    def running(self) -> list[Service]:
        """The services that run."""
        names = sorted(path.stem for path in self._folder.glob("*.json"))
        return [service for service in map(self.get, names) if service is not None]

    def get(self, name: str) -> Service | None:
        """A running service by name."""
        try:
            service = Service(**json.loads(self._state(name).read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return service if service.alive else None

    def log(self, name: str) -> Path:
        """Where a service writes what it prints."""
        return self._folder / f"{name}.log"

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        url: str,
        env: Mapping[str, str],
        store: str = "",
    ) -> Service:
        """Start a detached process, unless one of that name runs on that store; one that
        runs on another is ended first."""
        with self._locked():
            found = self.get(name)
            if found is not None and found.store == store:
                return found
            if found is not None:
                _end_group(found)
            with self.log(name).open("ab") as out:
                process = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **env},
                    cwd=self._folder,
                    start_new_session=True,
                )
            service = Service(name, process.pid, process_start(process.pid), url, store)
            _replace(self._state(name), json.dumps(asdict(service)))
            return service

    def start_prefect(self) -> Service:
        """Start the local Prefect server, or find the one that runs; does not wait for it."""
        port = self._port("prefect")
        argv = [sys.executable, "-m", "prefect", "server", "start"]
        argv += ["--host", "127.0.0.1", "--port", str(port)]
        self.prefect_home.mkdir(parents=True, exist_ok=True)
        env = {**SERVER_ENV, "PREFECT_HOME": str(self.prefect_home)}
        env |= {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
        env |= {"PREFECT_SERVER_UI_API_URL": f"http://127.0.0.1:{port}/api"}
        return self.start("prefect", argv, url=f"http://127.0.0.1:{port}", env=env)

    def _port(self, name: str) -> int:
        """The port a service had before, so that bookmarks last; another where it is taken."""
        kept = self._folder / f"{name}.port"
        try:
            port = int(kept.read_text())
        except (OSError, ValueError):
            port = 0
        if not is_free(port):
            port = free_port()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(kept, str(port))
        return port

    def wait(self, service: Service, path: str, *, seconds: float = START_S) -> None:
        """Wait until a service answers.

        Raises:
            ServiceError: When it ends or stays silent, with the end of its log.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if answers(service.url + path):
                return
            if not service.alive:
                raise ServiceError(f"{service.name} ended while starting:\n{self._tail(service)}")
            time.sleep(0.1)
        raise ServiceError(
            f"{service.name} does not answer at {service.url} after {seconds:.0f} s; "
            f"its log: {self.log(service.name)}\n{self._tail(service)}"
        )

    def stop(self, name: str) -> bool:
        """End a service with all its children; False when none runs. Safe to run twice."""
        with self._locked():
            service = self.get(name)
            if service is not None:
                _end_group(service)
            self._state(name).unlink(missing_ok=True)
            return service is not None

    def _state(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _tail(self, service: Service) -> str:
        try:
            return self.log(service.name).read_text(errors="replace")[-1500:]
        except OSError:
            return ""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def configured_api_url() -> str | None:
    """The Prefect server the user has chosen, from where Prefect itself would take it: the
    environment, ``prefect.toml`` or ``pyproject.toml`` here, the active profile."""
    url = os.environ.get("PREFECT_API_URL")
    if url and url != os.environ.get(CHOSEN_HERE):
        return url
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    profiles = _toml(Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml"))
    active = os.environ.get("PREFECT_PROFILE") or str(profiles.get("active"))
    chosen = (
        _entry(_toml(Path("prefect.toml")), "api", "url")
        or _entry(_toml(Path("pyproject.toml")), "tool", "prefect", "api", "url")
        or _entry(profiles, "profiles", active, "PREFECT_API_URL")
    )
    return str(chosen) if chosen else None


def _toml(path: Path) -> dict[str, Any]:
    """A file's content; nothing where it is absent or broken, which Prefect itself will tell."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _entry(found: Any, *names: str) -> Any:
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def prepare_client(services: Services) -> Service | None:
    """Have Prefect, in this process, find its server.

    Starts the local server where the user has chosen none; the caller waits for it. Safe
    to call again: a local server that has ended since is started again.

    Returns:
        The local server, or None where the user's own is used.
    """
    for name, value in CLIENT_ENV.items():
        os.environ.setdefault(name, value)
    server = None
    if configured_api_url() is None:
        server = services.start_prefect()
        os.environ["PREFECT_API_URL"] = os.environ[CHOSEN_HERE] = f"{server.url}/api"
        os.environ.setdefault("PREFECT_HOME", str(services.prefect_home))
    if "prefect.context" in sys.modules:  # it has read the environment already
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
    return server


def is_free(port: int) -> bool:
    """Whether a service may listen on a port of loopback."""
    if not 1024 <= port <= 65535:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str, *, through_proxy: bool = False) -> bool:
    """Whether anything but a server error comes back from an address."""
    try:
        return httpx.get(url, timeout=2.0, trust_env=through_proxy).status_code < 500
    except httpx.HTTPError:
        return False


def is_prefect_api(url: str) -> bool:
    """Whether what answers at an address is Prefect's API, rather than its UI or a proxy.

    Workspaces of Prefect Cloud tell nothing of their health, and count as one.
    """
    if "/api/accounts/" in url:
        return True
    try:
        answer = httpx.get(f"{url}/health", timeout=2.0)
    except httpx.HTTPError:
        return False
    return answer.status_code in (401, 403, 429) or answer.text.strip() == "true"


def _end_group(service: Service) -> None:
    """Ask a service and its children to end, and kill what is left once it has, or in time."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(service.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + STOP_S
        while service.alive and time.monotonic() < deadline:
            time.sleep(0.05)
        _reap_child(service.pid)


def _reap_child(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)
