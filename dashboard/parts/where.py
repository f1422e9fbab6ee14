"""Which run and trial a page is about: the URL says it, and the session remembers it.

Navigation by the menu drops a URL's parameters; the session puts them back, so that the
address of what is shown is always a permalink.
"""

from __future__ import annotations

from typing import NoReturn

import streamlit as st

from dashboard.parts.store import no_run_yet, read_now
from dashboard.parts.text import visible
from weirbox.errors import NotPossible
from weirbox.store import queries
from weirbox.store.views.runs import RunKey, count_runs, run_key

RUN_PAGE = "views/run.py"
CASES_PAGE = "views/cases.py"
CASE_PAGE = "views/case.py"
RUNS_PAGE = "views/runs.py"

DIGITS = 10
"""From so many digits on, a number may be too great for a database to compare with."""

FILTERS = ("verdict", "disposition", "state", "error", "category", "q")
"""The keys of the filters of the cases; in the URL they have the same names."""


def run_or_stop() -> RunKey:
    """The run that the URL or the session names, else the newest one."""
    asked = st.query_params.get("run") or st.session_state.get("run") or "latest"
    try:
        run_id = read_now(queries.find_run_id, asked)
    except NotPossible as error:
        if not read_now(count_runs):
            no_run_yet()
            st.stop()
        st.session_state.pop("run", None)
        _stop(str(error))
    if st.session_state.get("run") != run_id:
        st.session_state["run"] = run_id
        st.session_state.pop("seq", None)
    if st.query_params.get("run") != run_id:
        st.query_params["run"] = run_id
    found = read_now(run_key, run_id)
    if found is None:
        _stop(f"run {run_id!r} is gone")
    return found


def seq_or_stop() -> int:
    """The trial that the URL or the session names, else the run's first one."""
    asked = st.query_params.get("seq") or st.session_state.get("seq") or "0"
    if not (asked.isascii() and asked.isdecimal() and len(asked) < DIGITS):
        _stop(f"there is no case number {asked!r}; cases are numbered from 0")
    st.session_state["seq"] = asked
    if st.query_params.get("seq") != asked:
        st.query_params["seq"] = asked
    return int(asked)


def not_found(text: str) -> None:
    """Say that what the URL names does not exist."""
    st.title("Not found")
    st.text(visible(text))


def forget_filters() -> None:
    """Drop the filters of the cases, so that a link to cases brings exactly its own."""
    for name in FILTERS:
        st.session_state.pop(name, None)


def recall_cases() -> None:
    """Show the list of cases as it was last left, when its address comes without parameters,
    as it does from the menu and from the browser's Back."""
    kept: dict[str, str] = st.session_state.get("cases", {})
    if "run" in st.query_params or kept.get("run") != st.session_state.get("run"):
        return
    for name, value in kept.items():
        if name in FILTERS:
            st.session_state[name] = value
        else:
            st.query_params[name] = value


def remember_cases() -> None:
    """Keep the address of the list of cases, to lead back to it."""
    st.session_state["cases"] = st.query_params.to_dict()


def back_to_cases(run_id: str) -> dict[str, str]:
    """The parameters of the list that was last open, if it was of this run."""
    kept: dict[str, str] = st.session_state.get("cases", {})
    return kept if kept.get("run") == run_id else {"run": run_id}


def _stop(text: str) -> NoReturn:
    not_found(text)
    st.page_link(RUNS_PAGE, label="To the list of runs")
    st.stop()
