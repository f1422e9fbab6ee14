"""All runs, newest first."""

from __future__ import annotations

import math

import streamlit as st

from dashboard.parts import labels, numbers
from dashboard.parts.store import LIVE_S, no_run_yet, read, read_now
from dashboard.parts.tables import badges, cell, table
from dashboard.parts.where import RUN_PAGE
from weirbox.domain.run import RunSummary
from weirbox.store import queries
from weirbox.store.views.runs import RunKey, count_runs, run_page, suites

PAGE = 25  # runs


def show() -> None:
    """The whole page."""
    if not read_now(count_runs):
        no_run_yet()
        return
    st.title("Runs")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        suite = st.selectbox(
            *("Suite", read_now(suites)),
            index=None,
            placeholder="all suites",
            key="suite",
            bind="query-params",
            width=320,
        )
        total = read_now(count_runs, suite=suite)
        pages = max(1, math.ceil(total / PAGE))
        page = st.pagination(pages, key="page", bind="query-params") if pages > 1 else 1
    keys = read_now(run_page, suite=suite, page=page, size=PAGE)
    live = any(_live(read(queries.summary, key)) for key in keys)
    st.fragment(_table, run_every=LIVE_S if live else None)(suite, page)
    st.caption(f"{total:,} run{'' if total == 1 else 's'}. Open one by its id.")


def _table(suite: str | None, page: int) -> None:
    keys: list[RunKey] = read_now(run_page, suite=suite, page=page, size=PAGE)
    runs = [read(queries.summary, key) for key in keys]
    table([_row(run) for run in runs], _columns(), key="runs", alt="Runs, newest first")


def _row(run: RunSummary) -> dict[str, object]:
    done, verdicts = run.progress, run.verdicts
    decided = verdicts.passed + verdicts.failed
    return {
        "run": run.run_id,
        "suite": run.suite,
        "kind": str(run.kind),
        "status": cell(labels.status_label(run)),
        "progress": 100 * done.exported / done.planned if done.planned else 100.0,
        "planned": done.planned,
        "pass": verdicts.passed,
        "fail": verdicts.failed,
        "none": verdicts.none,
        "errored": done.errored,
        "rate": numbers.percent(verdicts.passed / decided if decided else None),
        "cost": numbers.money(run.cost_usd) if run.calls else numbers.DASH,
        "age": numbers.age(run.created_at),
    }


def _columns() -> dict[str, object]:
    column = st.column_config
    signs = labels.VERDICT
    return {
        "run": column.ButtonColumn(
            "Run", key="open-run", on_click=_open, type="tertiary", alignment="left"
        ),
        "suite": column.TextColumn("Suite"),
        "kind": column.TextColumn("Kind"),
        "status": badges("Status", [*labels.STATUS.values(), labels.FINALIZING]),
        "progress": column.ProgressColumn(
            "Done", min_value=0, max_value=100, format="%.0f %%", width="small"
        ),
        "planned": column.NumberColumn("Planned"),
        **{str(verdict): column.NumberColumn(label.text) for verdict, label in signs.items()},
        "errored": column.NumberColumn("⚠ errored"),
        "rate": column.TextColumn("Pass rate", alignment="right", help="pass / (pass + fail)"),
        "cost": column.TextColumn("Cost", alignment="right"),
        "age": column.TextColumn("Age", alignment="right"),
    }


def _open() -> None:
    st.switch_page(RUN_PAGE, query_params={"run": st.session_state["open-run"].label})


def _live(run: RunSummary) -> bool:
    return run.finalizing or not run.status.terminal


show()
