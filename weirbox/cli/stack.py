"""The local services together: Prefect server, dashboard and runner, up and down."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url

from weirbox.cli.wording import grid, word
from weirbox.errors import ServiceError
from weirbox.services import Service, Services, configured_api_url, free_port, is_free
from weirbox.store.engine import open_database

if TYPE_CHECKING:
    from rich.console import RenderableType

    from weirbox.settings import Settings

DASHBOARD_PORT = 8501
"""Streamlit's own; another one where it is taken."""

ANSWER_S = 60.0
"""How long dashboard and runner may take to answer; usually 3 to 10 s on 2 cores."""

HEALTH = {"prefect": "/api/health", "dashboard": "/_stcore/health", "runner": "/health"}
"""Which path of a service answers when it is ready."""

WHAT = {
    "prefect": "Prefect server and its UI",
    "dashboard": "the dashboard",
    "runner": "starts runs for the dashboard and the Prefect UI",
}


def start_all(settings: Settings) -> list[Service]:
    """Start what does not run, all at once, and wait until everything answers.

    Safe to run twice: what runs stays, unless it works on another database. With a Prefect
    server of the user's own, none is started.

    Raises:
        ServiceError: When the database cannot be used, before anything is started; when one
            does not come up, with the end of its log.
    """
    open_database(_store_url(settings)).close()
    services = Services(settings.home)
    env, store = _environment(settings), store_key(settings)
    started = []
    api_url = configured_api_url()
    if api_url is None:
        if services.get("prefect") is None:
            services.stop("runner")
        server = services.start_prefect()
        started.append(server)
        api_url = f"{server.url}/api"
        env["PREFECT_HOME"] = str(services.prefect_home)
    env["PREFECT_API_URL"] = api_url
    dashboard = _start_dashboard(services, env, store)
    started.append(dashboard)
    env["WEIRBOX_DASHBOARD_URL"] = os.environ.get("WEIRBOX_DASHBOARD_URL") or dashboard.url
    if started[0].name == "prefect":
        services.wait(started[0], HEALTH["prefect"])
    started.append(_start_runner(services, env, store))
    for service in started[-2:]:
        services.wait(service, HEALTH[service.name], seconds=ANSWER_S)
    return started


def to_start(settings: Settings) -> list[str]:
    """The services that `start_all` has to start: those that do not run, or not on the
    database in use."""
    services, store = Services(settings.home), store_key(settings)
    stores = {service.name: service.store for service in services.running()}
    missing = [name for name in ("dashboard", "runner") if stores.get(name) != store]
    if configured_api_url() is None and "prefect" not in stores:
        missing = ["prefect", *(name for name in missing if name != "runner"), "runner"]
    return missing


def store_key(settings: Settings) -> str:
    """What tells the database in use from others, without its password or place."""
    shown = make_url(_store_url(settings)).render_as_string(hide_password=True)
    return hashlib.sha256(shown.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def stop_all(settings: Settings) -> list[Service]:
    """End every service that runs, the runner first; gives what was ended."""
    services = Services(settings.home)
    running = services.running()
    for service in sorted(running, key=lambda service: service.name != "runner"):
        services.stop(service.name)
    return running


def service_table(services: Sequence[Service]) -> RenderableType:
    """Which services run, and where."""
    running = {service.name: service for service in services}
    rows: list[tuple[object, ...]] = []
    for name, what in WHAT.items():
        found = running.get(name)
        state = word("down") if found is None else word("ok")
        rows.append((name, state, "" if found is None else found.url, what))
    return grid(("service", "", "address", ""), rows)


def _start_dashboard(services: Services, env: dict[str, str], store: str) -> Service:
    entry = _dashboard_entry()
    port = DASHBOARD_PORT if is_free(DASHBOARD_PORT) else free_port()
    argv = [sys.executable, "-m", "streamlit", "run", str(entry)]
    argv += ["--server.address", "127.0.0.1", "--server.port", str(port)]
    argv += ["--server.headless", "true", "--browser.gatherUsageStats", "false"]
    url = f"http://127.0.0.1:{port}"
    return services.start("dashboard", argv, url=url, env=env, store=store)


def _dashboard_entry() -> Path:
    """The dashboard's entry file; the package is located, not imported."""
    found = find_spec("dashboard")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        entry = Path(place) / "app.py"
        if entry.is_file():
            return entry
    raise ServiceError("the dashboard is not installed: there is no dashboard/app.py")


def _start_runner(services: Services, env: dict[str, str], store: str) -> Service:
    port = free_port()
    argv = [sys.executable, "-m", "deployments.serve", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    return services.start("runner", argv, url=url, env=env, store=store)


def _environment(settings: Settings) -> dict[str, str]:
    """The settings for services, which start in another folder: without relative paths."""
    env = {"WEIRBOX_HOME": str(settings.home.expanduser().absolute())}
    env["WEIRBOX_DATABASE_URL"] = _store_url(settings)
    for name in ("secrets_dir", "prompts_dir"):
        folder: Path | None = getattr(settings, name)
        if folder is not None:
            env[f"WEIRBOX_{name.upper()}"] = str(folder.expanduser().absolute())
    return env


def _store_url(settings: Settings) -> str:
    """The database in use, password included, without a relative path."""
    url = make_url(settings.store_url)
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        url = url.set(database=str(Path(str(url.database)).absolute()))
    return url.render_as_string(hide_password=False)
