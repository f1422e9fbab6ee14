"""Local servers: started once, found again, ended whole; the user's own choice goes first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from prefect.context import refresh_global_settings_context
from prefect.settings import get_current_settings

from weirbox import services as module
from weirbox.errors import ServiceError
from weirbox.services import (
    CHOSEN_HERE,
    SERVER_ENV,
    Service,
    Services,
    configured_api_url,
    free_port,
    prepare_client,
)

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
IGNORING = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """The services below a home of the test's own."""
    found = Services(tmp_path / "home")
    yield found
    for service in found.running():
        found.stop(service.name)


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A user's surroundings without any choice of a Prefect server."""
    names = {name for name in os.environ if name.startswith("PREFECT_")} | {*module.CLIENT_ENV}
    with monkeypatch.context() as patch:
        for name in (*names, "PREFECT_API_URL", "PREFECT_HOME", CHOSEN_HERE):
            patch.setenv(name, "")  # so that whatever is set later is undone, too
            patch.delenv(name)
        patch.setenv("HOME", str(tmp_path))
        patch.chdir(tmp_path)
        yield patch
    refresh_global_settings_context()


def test_a_service_that_works_on_another_store_is_replaced(services: Services) -> None:
    one, same, other = (
        services.start("sleeper", SLEEPER, url="http://here", env={}, store=store)
        for store in ("one", "one", "other")
    )

    assert one == same
    assert not one.alive
    assert services.get("sleeper") == other
    assert other.store == "other"


def started(services: Services, *argv: str) -> Service:
    """A service that runs a command."""
    return services.start("one", argv or SLEEPER, url="http://127.0.0.1:1", env={})


def dummy_start(services: Services, patch: pytest.MonkeyPatch) -> list[Service]:
    """Have a sleeping process stand for the Prefect server; gives what was started."""
    given: list[Service] = []

    def start_prefect() -> Service:
        url = f"http://127.0.0.1:{free_port()}"
        given.append(services.start("prefect", SLEEPER, url=url, env={}))
        return given[-1]

    patch.setattr(services, "start_prefect", start_prefect)
    return given


# --- the Prefect server itself ----------------------------------------------------


def test_the_prefect_server_is_started_once(prefect_server: Service) -> None:
    again = _services_of(prefect_server).start_prefect()

    assert again == prefect_server
    assert _services_of(prefect_server).get("prefect") == prefect_server


def test_the_prefect_server_has_the_tuned_settings_and_no_telemetry(
    prefect_server: Service,
) -> None:
    environment = psutil.Process(prefect_server.pid).environ()

    assert SERVER_ENV.items() <= environment.items()
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert environment["DO_NOT_TRACK"] == "1"
    assert Path(environment["PREFECT_HOME"]).name == "prefect"


def test_the_prefect_server_listens_on_loopback_only(prefect_server: Service) -> None:
    family = [psutil.Process(prefect_server.pid)]
    family += family[0].children(recursive=True)
    listening = {
        connection.laddr
        for process in family
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }

    port = int(prefect_server.url.rpartition(":")[2])
    assert ("127.0.0.1", port) in listening
    assert {address.ip for address in listening} == {"127.0.0.1"}


def _services_of(server: Service) -> Services:
    home = psutil.Process(server.pid).environ()["PREFECT_HOME"]
    return Services(Path(home).parent)


# --- starting, finding, ending ----------------------------------------------------


def test_processes_that_start_a_service_at_once_share_it(services: Services) -> None:
    program = (
        "import sys; from pathlib import Path; from weirbox.services import Services; "
        "argv = [sys.executable, '-c', 'import time; time.sleep(600)']; "
        "print(Services(Path(sys.argv[1])).start('one', argv, url='http://x', env={}).pid)"
    )
    home = services.prefect_home.parent

    def start(_: int) -> int:
        argv = [sys.executable, "-c", program, str(home)]
        return int(subprocess.run(argv, capture_output=True, check=True).stdout)

    with ThreadPoolExecutor() as pool:
        pids = set(pool.map(start, range(3)))

    found = services.get("one")
    assert found is not None
    assert pids == {found.pid}


def test_a_service_is_found_by_other_objects_until_it_is_stopped(services: Services) -> None:
    service = started(services)
    other = Services(services.prefect_home.parent)
    assert (other.get("one"), other.running()) == (service, [service])

    assert other.stop("one") is True

    assert services.get("one") is None
    assert not psutil.pid_exists(service.pid)
    assert services.stop("one") is False


def test_stopping_a_service_ends_all_its_children(services: Services) -> None:
    service = started(services, "sh", "-c", "sleep 600 & sleep 600 & wait")
    family = _family(service, size=3)

    services.stop("one")

    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_children_that_outlive_their_service_are_killed(services: Services) -> None:
    start_child = f"subprocess.Popen([sys.executable, '-c', {IGNORING!r}])"
    parent = f"import subprocess, sys, time; {start_child}; time.sleep(600)"
    service = started(services, sys.executable, "-c", parent)
    family = _family(service, size=2)
    _until_ignored(family[1])

    services.stop("one")

    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_a_service_that_does_not_end_is_killed(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.3)
    service = started(services, sys.executable, "-c", IGNORING)
    _until_ignored(psutil.Process(service.pid))

    services.stop("one")

    assert not service.alive


def _family(service: Service, *, size: int) -> list[psutil.Process]:
    parent = psutil.Process(service.pid)
    deadline = time.monotonic() + 20
    while len(family := [parent, *parent.children(recursive=True)]) < size:
        assert time.monotonic() < deadline, "the children have not started"
        time.sleep(0.02)
    return family


def _until_ignored(process: psutil.Process) -> None:
    """Wait until a process ignores SIGTERM."""
    deadline = time.monotonic() + 20
    bit = 1 << (signal.SIGTERM - 1)
    while True:
        status = Path(f"/proc/{process.pid}/status").read_text()
        mask = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
        if int(mask.split()[1], 16) & bit:
            return
        assert time.monotonic() < deadline, "SIGTERM is not ignored"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "state",
    [
        {"pid": 2**22 + 1, "start": "1"},
        {"pid": 2**22 + 1, "start": ""},
        {"pid": os.getpid(), "start": "1"},
        {"pid": os.getpid(), "start": ""},
    ],
    ids=["dead", "died at once", "pid used again", "pid used again, died at once"],
)
def test_a_stale_state_file_is_not_believed(services: Services, state: dict[str, object]) -> None:
    _write_state(services, json.dumps({"name": "one", "url": "http://x", **state}))

    assert services.get("one") is None
    assert services.stop("one") is False
    assert started(services).pid != state["pid"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": "one"}', "\x00\x01"])
def test_a_broken_state_file_is_not_believed(services: Services, text: str) -> None:
    _write_state(services, text)

    assert services.get("one") is None
    assert started(services).alive


def _write_state(services: Services, text: str) -> None:
    folder = services.log("one").parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "one.json").write_text(text)


def test_a_service_that_ends_while_starting_is_told_with_its_log(services: Services) -> None:
    service = started(services, "sh", "-c", "echo the port is taken; exit 3")

    with pytest.raises(ServiceError, match=r"one ended while starting:\nthe port is taken"):
        services.wait(service, "/health", seconds=20)


def test_a_service_that_stays_silent_is_told_with_its_address(services: Services) -> None:
    service = started(services)

    with pytest.raises(ServiceError, match=r"does not answer at http://127.0.0.1:1 after 0 s"):
        services.wait(service, "/health", seconds=0.2)


# --- which Prefect server is used -------------------------------------------------

PROFILES = """
active = "team"
[profiles.team]
PREFECT_API_URL = "https://profile.example/api"
[profiles.other]
PREFECT_API_URL = "https://other.example/api"
[profiles.empty]
"""


def test_nothing_is_configured_where_nothing_is_chosen(user: pytest.MonkeyPatch) -> None:
    assert configured_api_url() is None


def test_the_environment_goes_before_files_and_profiles(user: pytest.MonkeyPatch) -> None:
    _write(".prefect/profiles.toml", PROFILES)
    user.setenv("PREFECT_API_URL", "https://environment.example/api")

    assert configured_api_url() == "https://environment.example/api"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "https://profile.example/api"),
        ({"PREFECT_PROFILE": "other"}, "https://other.example/api"),
        ({"PREFECT_PROFILE": "empty"}, None),
        ({"PREFECT_PROFILE": "missing"}, None),
        ({"PREFECT_HOME": "~/elsewhere"}, None),
        ({"PREFECT_PROFILES_PATH": ".prefect/profiles.toml"}, "https://profile.example/api"),
    ],
    ids=["active", "named", "without a server", "missing", "another home", "a path"],
)
def test_a_profile_chooses_the_server(
    user: pytest.MonkeyPatch, variables: dict[str, str], expected: str | None
) -> None:
    _write(".prefect/profiles.toml", PROFILES)
    for name, value in variables.items():
        user.setenv(name, value)

    assert configured_api_url() == expected


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("prefect.toml", '[api]\nurl = "https://file.example/api"\n'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "https://file.example/api"\n'),
    ],
    ids=["prefect.toml", "pyproject.toml"],
)
def test_a_projects_file_goes_before_the_profile(
    user: pytest.MonkeyPatch, file: str, text: str
) -> None:
    _write(".prefect/profiles.toml", PROFILES)
    _write(file, text)

    assert configured_api_url() == "https://file.example/api"


@pytest.mark.parametrize("text", ["[", "active = 3", "profiles = 1", "[profiles]\nteam = 2"])
def test_broken_profiles_choose_nothing(user: pytest.MonkeyPatch, text: str) -> None:
    _write(".prefect/profiles.toml", text)

    assert configured_api_url() is None


def _write(path: str, text: str) -> None:
    file = Path(path)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def test_a_chosen_server_is_used_and_none_is_started(
    user: pytest.MonkeyPatch, services: Services
) -> None:
    user.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")

    assert prepare_client(services) is None

    assert services.running() == []
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:9/api"


def test_prefect_finds_the_started_server_though_it_was_loaded_before(
    user: pytest.MonkeyPatch, services: Services
) -> None:
    dummy_start(services, user)

    server = prepare_client(services)

    assert server is not None
    assert get_current_settings().api.url == f"{server.url}/api"
    assert get_current_settings().logging.to_api.enabled is False


def test_a_local_server_that_was_ended_is_started_again(
    user: pytest.MonkeyPatch, services: Services
) -> None:
    given = dummy_start(services, user)
    first = prepare_client(services)
    assert prepare_client(services) == first
    services.stop("prefect")

    second = prepare_client(services)

    assert second is not None
    assert second != first
    assert second == given[-1]
    assert os.environ["PREFECT_API_URL"] == f"{second.url}/api"


def test_what_the_user_has_set_for_the_client_stays(
    user: pytest.MonkeyPatch, services: Services
) -> None:
    user.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    user.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")

    prepare_client(services)

    assert os.environ["PREFECT_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["PREFECT_LOGGING_TO_API_ENABLED"] == "false"
