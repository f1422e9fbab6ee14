"""What the edges (CLI, API, flows) compose once: settings, database, secrets."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from weirbox import secrets
from weirbox.domain.seams import ReadSecret
from weirbox.pipeline import ending, finalizing
from weirbox.pipeline.driver import Driver
from weirbox.pipeline.running import reap_dead, run_url
from weirbox.settings import Settings
from weirbox.store import queries
from weirbox.store.engine import Database, open_database


@dataclass(frozen=True)
class Runtime:
    """An open store, and how to reach the rest."""

    settings: Settings
    database: Database
    read_secret: ReadSecret

    @property
    def prompt_folders(self) -> tuple[str, ...]:
        """Where users keep prompts of their own."""
        folder = self.settings.prompts_dir
        return (str(folder.expanduser().absolute()),) if folder is not None else ()


_given: ContextVar[Settings | None] = ContextVar("weirbox_settings", default=None)


def current_settings() -> Settings:
    """The settings that hold here: given further up by `using`, else the environment's."""
    return _given.get() or Settings()


@contextmanager
def using(settings: Settings) -> Iterator[None]:
    """Let settings hold for everything that runs within a block, flows included."""
    token = _given.set(settings)
    try:
        yield
    finally:
        _given.reset(token)


@contextmanager
def open_runtime(
    settings: Settings | None = None, *resolvers: Callable[[str], str | None]
) -> Iterator[Runtime]:
    """Open the store that the settings name, for the length of a block.

    Args:
        settings: Default: the ones that hold here.
        resolvers: Further places of secrets, asked after environment and files.
    """
    settings = settings or current_settings()
    places = [secrets.from_environment, *resolvers]
    if settings.secrets_dir is not None:
        places.insert(1, secrets.from_files(settings.secrets_dir))
    database = open_database(settings.store_url)
    try:
        yield Runtime(settings, database, secrets.reader(*places))
    finally:
        database.close()


async def finalize(runtime: Runtime, run_id: str) -> dict[str, Any]:
    """Have the sinks complete their files, then compute and stamp the scorecard.

    Safe to run twice: sinks replace what they completed, the scorecard is the same.
    """
    await asyncio.to_thread(finalizing.refuse_unless_completed, runtime.database, run_id)
    url = run_url(runtime.settings, run_id)
    await finalizing.complete_sinks(runtime.database, run_id, dashboard_url=url)
    return await asyncio.to_thread(finalizing.finalize, runtime.database, run_id)


async def conclude(runtime: Runtime, run_id: str) -> dict[str, Any] | None:
    """Finalize a completed run; have one that ended early come to rest.

    Safe to run twice, at once, and for any run.

    Returns:
        The scorecard's body of a completed run.

    Raises:
        NotPossible: When the run has not ended.
    """
    with runtime.database.read() as connection:
        status = queries.status_of(connection, run_id)
    if status.ended_early:
        await come_to_rest(runtime, run_id)
        return None
    return await finalize(runtime, run_id)


async def cancel(runtime: Runtime, run_id: str, *, reason: str) -> None:
    """Cancel a run; where nobody drives it, it comes to rest at once.

    Raises:
        NotPossible: When it has ended already.
    """
    await asyncio.to_thread(ending.cancel, runtime.database, run_id, reason=reason)
    await asyncio.to_thread(reap_dead, runtime.database, run_id)
    await come_to_rest(runtime, run_id)


async def come_to_rest(runtime: Runtime, run_id: str) -> bool:
    """Have a run that ended early come to rest, once no driver holds it any more: sinks
    complete what they were sent, what it came to is noted, and it is stamped as settled.

    Safe to run twice, at once, and for any run.

    Returns:
        Whether this call stamped it.
    """
    url = run_url(runtime.settings, run_id)
    return await ending.come_to_rest(runtime.database, run_id, dashboard_url=url)


def find_run(runtime: Runtime, text: str) -> str:
    """The run that a full id, a unique beginning, or ``latest`` names.

    Raises:
        NotPossible: When none or several fit.
    """
    with runtime.database.read() as connection:
        return queries.find_run_id(connection, text)


class Drain:
    """Turns the first Ctrl-C or SIGTERM into a drain, and the second into an end.

    Attributes:
        signal: The signal that came, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._drivers: list[Driver] = []
        self._told: Callable[[], None] = lambda: None

    def watch(self, driver: Driver) -> None:
        """Drain this driver too; it is called from within the event loop that drives."""
        self._drivers.append(driver)
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._came, number, task)
        if self.signal is not None:
            loop.call_soon(driver.drain)

    def on_signal(self, told: Callable[[], None]) -> None:
        """Have a person told that the run drains."""
        self._told = told

    def _came(self, number: int, task: asyncio.Task[Any] | None) -> None:
        if self.signal is not None and task is not None:
            task.cancel()
            return
        self.signal = number
        self._told()
        for driver in self._drivers:
            driver.drain()
