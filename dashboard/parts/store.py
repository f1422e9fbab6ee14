"""Cached reads of the store.

What is known of a finalized run stays the same, so it is kept by the moment of its
finalizing; everything else is read again after `LIVE_S` seconds, once for all viewers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import streamlit as st

from dashboard.parts.text import notice
from weirbox.errors import WeirboxError
from weirbox.settings import Settings
from weirbox.store.engine import DatabaseTrouble
from weirbox.store.views.opening import Database, open_reader, shown_url
from weirbox.store.views.runs import RunKey

LIVE_S = 2.0
"""How long a read of a run that may still change is good for."""

T = TypeVar("T")

UNREADABLE = "⚠ The store cannot be read"

HOW_TO_START = "weirbox run examples/humaneval/suite.yaml"


class _NoStore(Exception):
    """There is nothing to open yet; raised so that it is not cached."""


@st.cache_resource(show_spinner=False)
def _open(url: str) -> Database:
    database = open_reader(url)
    if database is None:
        raise _NoStore
    return database


def store_or_stop() -> None:
    """Open the store, or say why there is none and end the page."""
    try:
        _open(Settings().store_url)
    except _NoStore:
        no_run_yet()
        st.stop()
    except WeirboxError as error:
        notice(UNREADABLE, str(error))
        st.stop()


def no_run_yet() -> None:
    """The page of a store without runs."""
    st.title("No run yet")
    st.markdown("Nothing was evaluated with this store so far. Start a first run:")
    st.code(HOW_TO_START, language="bash")
    st.markdown("or write a suite of your own with `weirbox init`. This page shows the store at:")
    st.code(shown_url(Settings().store_url), language=None)


def read_now(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Read ``function(connection, ...)`` without a cache, in one reading transaction."""
    with _trouble_told(), _open(Settings().store_url).read() as connection:
        return function(connection, *args, **options)


def read(function: Callable[..., T], run: RunKey, *args: Any) -> T:
    """Read ``function(connection, run_id, *args)``, from the cache where that is right."""
    stamp = f"live {int(time.monotonic() / LIVE_S)}"
    if run.finalized_at is not None:
        stamp = run.finalized_at.isoformat()
    name = f"{function.__module__}.{function.__qualname__}"
    with _trouble_told():
        found: T = _read(Settings().store_url, name, stamp, run.run_id, args, function)
    return found


@contextmanager
def _trouble_told() -> Iterator[None]:
    """Say when the database fails under a page, and end the page there."""
    try:
        yield
    except DatabaseTrouble as error:
        notice(UNREADABLE, str(getattr(error, "orig", error)))
        st.stop()


@st.cache_data(ttl="1h", max_entries=500, show_spinner=False)
def _read(url: str, name: str, stamp: str, run_id: str, args: Any, _function: Any) -> Any:
    with _open(url).read() as connection:
        return _function(connection, run_id, *args)
