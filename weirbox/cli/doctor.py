"""What works here, what does not, and what to do about it."""

from __future__ import annotations

import asyncio
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from weirbox import __version__, api, sinks, traces
from weirbox.cli.wording import grid, plural, word
from weirbox.compute import bubblewrap
from weirbox.domain.seams import Workshop
from weirbox.domain.words import ProbeState
from weirbox.errors import UserError, WeirboxError
from weirbox.functions import absolute_suite
from weirbox.pipeline.rehearsal import rehearse
from weirbox.runtime import open_runtime
from weirbox.services import Services, answers, configured_api_url

if TYPE_CHECKING:
    from rich.console import RenderableType

    from weirbox.domain.pulling import TraceSource
    from weirbox.domain.seams import Probe, ReadSecret, Sink
    from weirbox.domain.spec import Suite
    from weirbox.settings import Settings

PACKAGES = ("prefect", "sqlalchemy", "pydantic", "streamlit", "pandas", "pyarrow")


class Level(StrEnum):
    """How a check went."""

    OK = "ok"
    WARN = "warn"  # it works, with something lost
    ERROR = "error"  # it does not work


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        advice: What to do, or what it means; empty where nothing is to be done.
    """

    what: str
    level: Level
    found: str
    advice: str = ""


def examine(settings: Settings, suite: Path | None) -> Iterator[Finding]:
    """Look at everything that runs depend on; with a suite, at what that one needs."""
    yield _python()
    yield _packages()
    yield _home(settings)
    yield _database(settings)
    yield _bubblewrap()
    yield from _services(settings)
    if suite is not None:
        yield from _suite(settings, suite)


def table(findings: Sequence[Finding]) -> RenderableType:
    """The findings for a person."""
    rows = [(f.what, word(f.level), f"{f.found}\n{f.advice}".strip()) for f in findings]
    return grid(("what", "", "found"), rows)


def _python() -> Finding:
    found = f"{platform.python_version()}, weirbox {__version__}, {platform.platform(terse=True)}"
    return Finding("python", Level.OK, found)


def _packages() -> Finding:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        advice = f"missing: {', '.join(missing)}; install weirbox again"
        return Finding("packages", Level.ERROR, ", ".join(found), advice)
    return Finding("packages", Level.OK, ", ".join(found))


def _home(settings: Settings) -> Finding:
    home = settings.home.expanduser().absolute()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        advice = "set WEIRBOX_HOME to a folder that you may write"
        return Finding("home", Level.ERROR, f"{home}: {error.strerror}", advice)
    return Finding("home", Level.OK, str(home))


def _database(settings: Settings) -> Finding:
    from weirbox.store.engine import HEAD, open_database

    try:
        database = open_database(settings.store_url)
    except WeirboxError as error:
        return Finding("database", Level.ERROR, str(error), "see WEIRBOX_DATABASE_URL")
    shown = database.engine.url.render_as_string(hide_password=True)
    database.close()
    return Finding("database", Level.OK, f"{shown}, schema {HEAD}")


def _bubblewrap() -> Finding:
    reason = bubblewrap.unavailable()
    if reason is None:
        return Finding("sandbox", Level.OK, "bubblewrap works")
    advice = (
        "commands run as plain processes instead: they see this machine's files and network; "
        "install bubblewrap, or run trusted code only"
    )
    return Finding("sandbox", Level.WARN, f"no bubblewrap: {reason}", advice)


def _services(settings: Settings) -> Iterator[Finding]:
    services = Services(settings.home)
    yield _prefect(services)
    dashboard = services.get("dashboard")
    if dashboard is None:
        yield Finding("dashboard", Level.OK, "not running; `weirbox up` starts it")
    else:
        yield Finding("dashboard", Level.OK, f"running at {dashboard.url}")


def _prefect(services: Services) -> Finding:
    configured = configured_api_url()
    if configured is not None:
        if answers(f"{configured.rstrip('/')}/health", through_proxy=True):
            return Finding("prefect", Level.OK, f"configured: {configured}")
        advice = "start it, unset PREFECT_API_URL, or run with --engine direct"
        return Finding("prefect", Level.ERROR, f"{configured} does not answer", advice)
    local = services.get("prefect")
    if local is None:
        return Finding("prefect", Level.OK, "no server runs; `weirbox run` starts a local one")
    if answers(f"{local.url}/api/health"):
        return Finding("prefect", Level.OK, f"local server at {local.url}")
    advice = f"`weirbox down` ends it; its log: {services.log('prefect')}"
    return Finding("prefect", Level.ERROR, f"{local.url} does not answer", advice)


def _suite(settings: Settings, file: Path) -> Iterator[Finding]:
    with open_runtime(settings) as runtime:
        try:
            suite, folder = api.find_suite(runtime, file)
            read_secret = runtime.read_secret
            found = rehearse(
                runtime.database,
                suite,
                folder=folder,
                prompt_folders=runtime.prompt_folders,
                read_secret=runtime.read_secret,
            )
        except UserError as error:
            yield Finding("suite", Level.ERROR, str(error))
            return
    yield Finding("suite", Level.OK, f"{suite.suite}, {plural(found.dataset.records, 'record')}")
    yield from (Finding("dataset", Level.WARN, warning) for warning in found.dataset.warnings)
    for name, reason in found.skipped.items():
        yield Finding("judge", Level.WARN, f"{name!r} would be skipped: {reason}")
    yield from (Finding("preflight", Level.ERROR, problem) for problem in found.problems)
    yield from asyncio.run(_platforms(suite, folder, read_secret))


async def _platforms(suite: Suite, folder: str, read_secret: ReadSecret) -> list[Finding]:
    """What trace source and sinks say when they are asked whether they can be used, all at
    once."""
    asked: dict[str, Sink | TraceSource] = {
        f"sink {spec.name}": sinks.build(spec, read_secret)
        for spec in absolute_suite(suite, folder).sinks
    }
    if suite.trace is not None:
        workshop = Workshop(folder, lambda path: Path(path).read_bytes(), read_secret)
        asked[f"traces {suite.trace.source.kind}"] = traces.build(suite.trace, workshop)
    try:
        answers = await asyncio.gather(*(one.probe() for one in asked.values()))
    finally:
        await asyncio.gather(*(one.aclose() for one in asked.values()))
    return [_probed(what, answer) for what, answer in zip(asked, answers, strict=True)]


def _probed(what: str, answer: Probe) -> Finding:
    if answer.state is ProbeState.OK:
        return Finding(what, Level.OK, answer.message)
    return Finding(what, Level.ERROR, f"{answer.state}: {answer.message}", _ADVICE[answer.state])


_ADVICE = {
    ProbeState.AUTH: "set the secret, or have the platform take it",
    ProbeState.UNREACHABLE: "start it, or mend its 'url' in the suite",
    ProbeState.ERROR: "look whether 'url' leads to such a platform",
}
