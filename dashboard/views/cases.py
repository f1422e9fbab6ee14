"""The trials of a run, in pages of a hundred, narrowed by filters that stand in the URL."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

import streamlit as st

from dashboard.parts import labels, numbers
from dashboard.parts.store import read
from dashboard.parts.tables import badges, cell, table
from dashboard.parts.text import one_line
from dashboard.parts.where import (
    CASE_PAGE,
    DIGITS,
    RUN_PAGE,
    recall_cases,
    remember_cases,
    run_or_stop,
)
from weirbox.domain.run import RunSummary
from weirbox.domain.words import Disposition, ErrorKind, ScoreState, Verdict
from weirbox.stats.markdown import inert
from weirbox.store import queries
from weirbox.store.views.runs import RunKey
from weirbox.store.views.trials import (
    Position,
    TrialFilter,
    TrialLine,
    categories,
    position,
    trial_page,
)

E = TypeVar("E", bound=StrEnum)

ROWS_SEEN, ROW_HEIGHT = 20, 36  # a longer page scrolls within the grid


def show() -> None:
    """The whole page."""
    recall_cases()
    key = run_or_stop()
    run: RunSummary = read(queries.summary, key)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title("Cases", width="content")
        st.page_link(
            RUN_PAGE, label=f"of run {inert(run.run_id)}", query_params={"run": key.run_id}
        )
        labels.badge(labels.status_label(run))
    chosen = _filters(key)
    remember_cases()
    _grid(key, chosen)


def _filters(key: RunKey) -> TrialFilter:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Case id contains",
            type="search",
            key="q",
            bind="query-params",
            on_change=_first_page,
            width=240,
        )
        verdict = _choice("Verdict", Verdict, "verdict")
        disposition = _choice("Disposition", Disposition, "disposition")
        state = _choice("State", ScoreState, "state")
        error = _choice("Error", ErrorKind, "error")
        known = read(categories, key)
        category = None
        if known:
            category = st.selectbox(
                "Category",
                known,
                index=None,
                placeholder="any",
                format_func=lambda name: one_line(name, limit=60),
                key="category",
                bind="query-params",
                on_change=_first_page,
                width=180,
            )
    return TrialFilter(verdict, disposition, state, error, category or "", text or "")


def _choice(label: str, words: type[E], key: str) -> E | None:
    found = st.selectbox(
        label,
        [word.value for word in words],
        index=None,
        placeholder="any",
        key=key,
        bind="query-params",
        on_change=_first_page,
        width=150,
    )
    return None if found is None else words(found)


def _grid(key: RunKey, chosen: TrialFilter) -> None:
    after, before = _cursor("after"), _cursor("before")
    lines: list[TrialLine] = read(trial_page, key, chosen, after, before)
    if not lines:
        st.markdown("No case fits these filters." if any(chosen) else "This run has no cases.")
        if after is not None or before is not None:
            st.button("To the first page", on_click=_first_page)
        return
    where: Position = read(position, key, chosen, lines[0].seq)
    _pager(lines, where)
    idle = _idle(lines)
    table(
        [{name: text for name, text in _row(line).items() if name not in idle} for line in lines],
        _columns(lines),
        height="content" if len(lines) <= ROWS_SEEN else ROWS_SEEN * ROW_HEIGHT,
        key="cases",
        alt="Cases of the run with their verdicts and scores",
    )


def _pager(lines: Sequence[TrialLine], where: Position) -> None:
    last = where.before + len(lines)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"{where.before + 1:,} to {last:,} of {where.total:,}", width="content")
        if where.total == len(lines):
            return
        st.button("« First", on_click=_first_page, disabled=not where.before)
        st.button(
            "‹ Previous", on_click=_turn, args=("before", lines[0].seq), disabled=not where.before
        )
        st.button(
            "Next ›", on_click=_turn, args=("after", lines[-1].seq), disabled=last >= where.total
        )


def _idle(lines: Sequence[TrialLine]) -> set[str]:
    """The columns that would say nothing on this page."""
    used = {
        "trial": any(line.trial > 1 for line in lines),
        "category": any(line.category for line in lines),
        "error": any(line.error_kind for line in lines),
    }
    return {name for name, says in used.items() if not says}


def _row(line: TrialLine) -> dict[str, object]:
    failure = f"{line.error_kind}: {line.error_message}" if line.error_kind else ""
    disposition = labels.DISPOSITION[line.disposition] if line.disposition else None
    return {
        "open": f"#{line.seq}",
        "case": one_line(line.case_id, length=line.id_length),
        "trial": line.trial,
        "category": one_line(line.category or ""),
        "verdict": cell(labels.VERDICT[line.verdict] if line.verdict else None),
        "disposition": cell(disposition),
        "state": cell(labels.STATE[line.state]),
        "deciding": one_line(line.deciding),
        "seconds": numbers.seconds(line.seconds),
        "error": one_line(failure),
        **{f"score {name}": one_line(value) for name, value in line.values.items()},
    }


def _columns(lines: Sequence[TrialLine]) -> dict[str, object]:
    column = st.column_config
    checks = {name for line in lines for name in line.values}
    return {
        "open": column.ButtonColumn(
            "Open", key="open-case", on_click=_open, type="tertiary", pinned=True, alignment="left"
        ),
        "case": column.TextColumn("Case", width=260),
        "trial": column.NumberColumn("Trial", width="small"),
        "category": column.TextColumn("Category", width=140),
        "verdict": badges("Verdict", labels.VERDICT.values()),
        "disposition": badges("Disposition", labels.DISPOSITION.values(), width=120),
        "state": badges("State", labels.STATE.values()),
        "deciding": column.TextColumn("Decided by"),
        "seconds": column.TextColumn("Start to end", alignment="right"),
        "error": column.TextColumn("Error", width="medium"),
        **{f"score {name}": column.TextColumn(one_line(name)) for name in checks},
    }


def _cursor(name: str) -> int | None:
    text = st.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < DIGITS else None


def _first_page() -> None:
    st.query_params.pop("after", None)
    st.query_params.pop("before", None)


def _turn(way: str, seq: int) -> None:
    _first_page()
    st.query_params[way] = str(seq)


def _open() -> None:
    seq = st.session_state["open-case"].label.removeprefix("#")
    run = st.session_state["run"]
    st.switch_page(CASE_PAGE, query_params={"run": run, "seq": seq})


show()
