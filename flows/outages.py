"""What a process does while Prefect's server is gone: its records are a view, and hold nothing
up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.context import refresh_global_settings_context
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL

from weirbox.services import answers

RETRIES = "PREFECT_CLIENT_MAX_RETRIES"


def spare_events() -> None:
    """Have this process try each event once more only, when it was not taken.

    By default it is tried for 7 s, and a process does not end before it has tried all that
    wait: a quarter of an hour for a hundred task runs. Events that were tried are sent once
    the server is back. Safe to call again.
    """
    EventsWorker.set_client_override(PrefectEventsClient, reconnection_attempts=1)


async def spare_requests() -> None:
    """Have this process try a request once only, if the server does not answer now.

    For the end of a run that a person waits for: each request would be given up after 14 s.
    """
    url = PREFECT_API_URL.value()
    if url and not await asyncio.to_thread(answers, f"{url}/health", through_proxy=True):
        _set_retries("0")


@contextmanager
def retries_as_before() -> Iterator[None]:
    """Let `spare_requests` hold for the length of a block only."""
    before = os.environ.get(RETRIES)
    try:
        yield
    finally:
        if os.environ.get(RETRIES) != before:
            _set_retries(before)


def _set_retries(count: str | None) -> None:
    os.environ.pop(RETRIES, None)
    if count is not None:
        os.environ[RETRIES] = count
    refresh_global_settings_context()
