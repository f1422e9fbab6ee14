"""The container files hold together: services, conditions, variables, commands, ports, secrets."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from deployments.automations import HEARTBEAT_S
from weirbox.cli.app import app
from weirbox.services import SERVER_ENV
from weirbox.settings import Settings

FOLDER = Path(__file__).parents[2] / "deployments"

COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (FOLDER / "Dockerfile").read_text()

VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?P<default>:[-?][^}]*)?\}")

ONCE = {"migrate", "deploy"}
"""Services that end when their work is done."""

DURATION = re.compile(r"(\d+)s")


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [str(value)]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_services_that_can_become_what_it_waits_for(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        waited = SERVICES[other]
        match how["condition"]:
            case "service_healthy":
                assert "healthcheck" in waited, (name, other)
            case "service_completed_successfully":
                assert other in ONCE, (name, other)
                assert waited["restart"] == "no"
            case condition:
                raise AssertionError(f"{name} waits for {other} to be {condition}")


def test_what_serves_has_a_health_check_and_comes_back_and_what_ends_does_not() -> None:
    assert {name for name, one in SERVICES.items() if "healthcheck" in one} == set(SERVICES) - ONCE
    assert {name for name, one in SERVICES.items() if one["restart"] == "no"} == ONCE


def test_migrations_come_before_deployments_and_these_before_workers() -> None:
    assert set(SERVICES["deploy"]["depends_on"]) == {"migrate", "prefect"}
    for worker in ("worker", "coordinator"):
        assert "deploy" in SERVICES[worker]["depends_on"]
    assert "migrate" in SERVICES["dashboard"]["depends_on"]


def test_everything_is_published_on_loopback_only() -> None:
    ports = [port for one in SERVICES.values() for port in one.get("ports", ())]

    assert len(ports) == 3
    assert all(str(port).startswith("127.0.0.1:") for port in ports)


def test_no_secret_has_a_default_and_every_one_is_in_the_example() -> None:
    required = set()
    for text in _texts(COMPOSE):
        for found in VARIABLE.finditer(text):
            secret = any(part in found["name"] for part in ("PASSWORD", "AUTH"))
            assert (found["default"] == ":?") == secret, found[0]
            required |= {found["name"]} if secret else set()
    example = (FOLDER / "compose.env.example").read_text()

    assert required == {"WEIRBOX_DB_PASSWORD", "PREFECT_AUTH_STRING"}
    assert set(re.findall(r"^(\w+)=$", example, re.MULTILINE)) == required


def test_variables_are_ones_that_weirbox_or_prefect_knows() -> None:
    from prefect.settings import Settings as PrefectSettings
    from prefect.settings.legacy import _get_settings_fields

    known = set(_get_settings_fields(PrefectSettings))
    known |= {f"WEIRBOX_{name.upper()}" for name in Settings.model_fields}
    known |= {"DO_NOT_TRACK", "POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB"}
    named = {name for one in SERVICES.values() for name in one.get("environment", {})}
    named |= set(re.findall(r"(\w+)=/\S+", DOCKERFILE)) - {"PATH"}

    assert named - known - {"PREFECT_HOME"} == set()
    assert "PREFECT_SERVER_API_AUTH_STRING" in named


def test_the_server_has_the_settings_that_weirboxs_own_has() -> None:
    environment = SERVICES["prefect"]["environment"]
    tuned = {
        name: value for name, value in SERVER_ENV.items() if name.startswith("PREFECT_SERVER_")
    }

    assert tuned.items() <= environment.items()


def test_servers_and_clients_name_the_same_databases_password_and_address() -> None:
    worker, server = SERVICES["worker"]["environment"], SERVICES["prefect"]["environment"]
    databases = (worker["WEIRBOX_DATABASE_URL"], server["PREFECT_SERVER_DATABASE_CONNECTION_URL"])

    assert [url.partition("://")[0] for url in databases] == [
        "postgresql+psycopg",
        "postgresql+asyncpg",
    ]
    assert [url.rpartition("@")[2] for url in databases] == [
        "postgres:5432/weirbox",
        "postgres:5432/prefect",
    ]
    assert COMPOSE["configs"]["databases"]["content"].startswith("CREATE DATABASE prefect")
    assert worker["PREFECT_API_URL"] == "http://prefect:4200/api"
    assert worker["PREFECT_API_AUTH_STRING"] == server["PREFECT_SERVER_API_AUTH_STRING"]


def test_workers_are_given_longer_to_stop_than_drivers_take_to_drain() -> None:
    for name in ("worker", "coordinator"):
        found = DURATION.fullmatch(SERVICES[name]["stop_grace_period"])
        assert found is not None
        assert int(found[1]) > float(SERVICES[name]["environment"]["WEIRBOX_GRACE_S"])
        heartbeat = SERVICES[name]["environment"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"]
        assert heartbeat == str(HEARTBEAT_S)


def test_the_queues_of_the_deployments_are_worked_on_and_no_other() -> None:
    content = yaml.safe_load((FOLDER / "prefect.yaml").read_text())
    queues = {one["work_pool"]["work_queue_name"] for one in content["deployments"]}
    pools = {one["work_pool"]["name"] for one in content["deployments"]}
    commands = [SERVICES[name]["command"] for name in ("worker", "coordinator")]

    assert {after(command, "--work-queue") for command in commands} == queues
    assert {after(command, "--pool") for command in commands} == pools
    assert after(SERVICES["deploy"]["command"], "--pool") in pools


def after(command: list[str], option: str) -> str:
    """The value of an option."""
    return command[command.index(option) + 1]


def test_every_command_is_one_that_there_is() -> None:
    commands = [one["command"] for one in SERVICES.values() if "command" in one]
    commands.append(yaml.safe_load(DOCKERFILE.rpartition("CMD ")[2]))
    group = typer.main.get_command(app)
    assert hasattr(group, "commands")

    for program, *arguments in commands:
        if program == "weirbox" and not arguments[0].startswith("-"):
            options = {opt for one in group.commands[arguments[0]].params for opt in one.opts}
            assert {word for word in arguments if word.startswith("--")} <= options
        else:
            assert program in ("weirbox", "prefect", "streamlit")


def test_health_checks_ask_the_port_that_their_service_listens_on() -> None:
    ports = {
        "prefect": after(SERVICES["prefect"]["command"], "--port"),
        "dashboard": after(SERVICES["dashboard"]["command"], "--server.port"),
        "worker": "8080",
        "coordinator": "8080",
    }

    for name, port in ports.items():
        program, flag, script = SERVICES[name]["healthcheck"]["test"][1:]
        assert (program, flag) == ("python", "-c")
        compile(script, name, "exec")
        assert f"http://127.0.0.1:{port}/" in script


def test_volumes_and_configs_that_are_named_are_declared() -> None:
    volumes = {
        volume.partition(":")[0]
        for one in SERVICES.values()
        for volume in one.get("volumes", ())
        if not volume.startswith(("$", ".", "/"))
    }
    configs = {config["source"] for one in SERVICES.values() for config in one.get("configs", ())}

    assert volumes == set(COMPOSE["volumes"])
    assert configs == set(COMPOSE["configs"])


def test_the_image_has_every_package_a_sandbox_and_no_root() -> None:
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())
    packages = {
        one.rstrip("*") for one in project["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    copied = {shlex.split(line)[1] for line in re.findall(r"^COPY \w+ \w+$", DOCKERFILE, re.M)}
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()

    assert copied == packages
    assert {f"!{package}" for package in packages} <= set(ignored)
    assert "install -y --no-install-recommends bubblewrap" in DOCKERFILE
    (user,) = re.findall(r"^USER (\S+)$", DOCKERFILE, re.M)
    assert (user, f"--uid {user}" in DOCKERFILE) == ("10001", True)
    assert SERVICES["dashboard"]["working_dir"] == "/opt/weirbox/dashboard"
    assert (FOLDER.parent / "dashboard/app.py").is_file()


def test_python_in_the_image_is_one_that_the_project_supports() -> None:
    versions = {
        tuple(map(int, one.split("."))) for one in re.findall(r"python:([\d.]+)", DOCKERFILE)
    }

    assert len(versions) == 1
    assert min(versions) >= (3, 11)
