"""Real trace platforms on loopback, each from a virtual environment of its own.

An environment is named by WEIRBOX_MLFLOW_PYTHON and WEIRBOX_PHOENIX_PYTHON, which are its
Pythons. With WEIRBOX_REAL_PLATFORMS=1 those that are not named are made, once, below the
user's cache folder, about 1 GB each. Else what needs them is skipped.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from weirbox.testing import FakeSpan
from weirbox.testing.otlp import to_otlp

PACKAGES = {"mlflow": "mlflow>=3.14", "phoenix": "arize-phoenix>=20"}
START_S = 180.0
"""The most that a server takes to start on a busy machine."""

HERE = Path(__file__).parent
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
}


@dataclass(frozen=True)
class Server:
    """A platform that is up.

    Attributes:
        python: Of its environment; Phoenix's has the OpenTelemetry SDK with its exporter.
    """

    url: str
    python: str


def python_of(platform: str) -> str:
    """The Python of a platform's environment; skips the test without one."""
    named = os.environ.get(f"WEIRBOX_{platform.upper()}_PYTHON")
    if named:
        return named
    if os.environ.get("WEIRBOX_REAL_PLATFORMS") != "1":
        pytest.skip(
            f"no real {platform}: set WEIRBOX_{platform.upper()}_PYTHON, or "
            "WEIRBOX_REAL_PLATFORMS=1 to have it installed"
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "weirbox-tests" / platform
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        install = ["-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([python, *install, PACKAGES[platform]], check=True)
        (place / "ready").touch()
    return str(python)


@contextmanager
def mlflow(folder: Path) -> Iterator[Server]:
    """An MLflow server with a store of its own."""
    python = python_of("mlflow")
    port = free_port()
    command = [
        *(python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
    ]
    with _up(command, {}, folder, f"http://127.0.0.1:{port}", "/health"):
        yield Server(f"http://127.0.0.1:{port}", python)


@contextmanager
def phoenix(folder: Path) -> Iterator[Server]:
    """A Phoenix server with a store of its own."""
    python = python_of("phoenix")
    port = free_port()
    settings = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
    }
    command = [python, "-m", "phoenix.server.main", "serve"]
    with _up(command, settings, folder, f"http://127.0.0.1:{port}", "/healthz"):
        yield Server(f"http://127.0.0.1:{port}", python)


def experiment(server: Server, name: str) -> str:
    """An experiment of MLflow's, made if need be; gives its id."""
    api = f"{server.url}/api/2.0/mlflow/experiments"
    httpx.post(f"{api}/create", json={"name": name}, timeout=60)
    found = httpx.get(f"{api}/get-by-name", params={"experiment_name": name}, timeout=60)
    return str(found.json()["experiment"]["experiment_id"])


def send(
    server: Server, spans: Iterable[FakeSpan], headers: Mapping[str, str], *, python: str
) -> None:
    """Send spans as OTLP in protobuf, which all platforms take."""
    subprocess.run(
        [python, str(HERE / "traces" / "send_otlp.py"), f"{server.url}/v1/traces"],
        input=json.dumps({"headers": dict(headers), "request": to_otlp(spans)}),
        text=True,
        check=True,
    )


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def _up(
    command: list[str], settings: Mapping[str, str], folder: Path, url: str, path: str
) -> Iterator[None]:
    """Start a server in a session of its own, and end all of it."""
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | QUIET | dict(settings),
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait(process, url + path, log)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"{url} did not answer: {log.read_text(errors='replace')[-3000:]}")
