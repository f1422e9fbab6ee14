"""One run: where it stands, what it came to, and what went wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import streamlit as st

from dashboard.parts import charts, labels, numbers
from dashboard.parts.store import LIVE_S, read, read_now
from dashboard.parts.tables import badges, cell, table
from dashboard.parts.text import notice, one_line, visible
from dashboard.parts.where import CASES_PAGE, run_or_stop
from weirbox.domain.run import RunSummary
from weirbox.domain.words import Disposition, ScoreState, Verdict
from weirbox.stats.intervals import wilson
from weirbox.stats.markdown import inert
from weirbox.store import queries
from weirbox.store.views import EVENTS_SHOWN
from weirbox.store.views import runs as views
from weirbox.store.views.runs import RunKey, run_key

DETAILS_S = 3 * LIVE_S  # charts and lists of a live run are drawn again so often
FINALIZING_S = 600.0  # after that a page no longer waits for a run to be finalized

KIND_SHOWN = {"warning": "⚠ warning", "failed": "⚠ failed", "skipped": "» skipped"}


def show() -> None:
    """The whole page."""
    key = run_or_stop()
    run: RunSummary = read(queries.summary, key)
    live = _live(run)
    st.fragment(_overview, run_every=LIVE_S if live else None)(key, live)
    st.fragment(_details, run_every=DETAILS_S if live else None)(key)


def _live(run: RunSummary) -> bool:
    if run.finalizing and run.completed_at is not None:
        return datetime.now(UTC) - run.completed_at < timedelta(seconds=FINALIZING_S)
    return not run.status.terminal


def _overview(key: RunKey, live: bool) -> None:
    key = read_now(run_key, key.run_id) or key
    run: RunSummary = read(queries.summary, key)
    if live and not _live(run):
        st.rerun()
    _head(run)
    _signs_of_life(run, key)
    _stages(run)
    charts.coverage(run.progress)
    _tiles(run)


def _head(run: RunSummary) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title(inert(run.suite), width="content")
        labels.badge(labels.status_label(run))
        st.badge(run.kind, color="gray")
        st.space("stretch")
        st.page_link(CASES_PAGE, label="**All cases** →", query_params={"run": run.run_id})
    took = ""
    if run.started_at is not None and run.completed_at is not None:
        took = f"took {numbers.seconds((run.completed_at - run.started_at).total_seconds())}"
    parts = [
        run.run_id,
        f"dataset {run.dataset} ({run.dataset_digest[:12]})",
        f"planned {numbers.age(run.created_at)}, {numbers.clock(run.created_at)}",
        took,
    ]
    st.text("  ·  ".join(visible(part) for part in parts if part))
    if run.reason:
        look = labels.STATUS[run.status]
        notice(f"{look.text} because", run.reason, color=look.color)


def _signs_of_life(run: RunSummary, key: RunKey) -> None:
    if run.status.terminal:
        if run.finalizing and not _live(run):
            st.markdown("Finalizing has not ended; run it again with:")
            st.code(f"weirbox finalize {run.run_id}", language="bash")
        return
    found: views.Activity = read(views.activity, key)
    if found.drivers:
        drivers = f"{found.drivers} driver{'' if found.drivers == 1 else 's'} at work"
        last = f"last row {numbers.age(found.last_row_at)}" if found.last_row_at else "no row yet"
        st.caption(f"{drivers} · {last}")
        return
    st.markdown("No driver is at work on this run. Start or continue it with:")
    st.code(f"weirbox resume {run.run_id}", language="bash")


def _stages(run: RunSummary) -> None:
    done, planned = run.progress, run.progress.planned
    finalized = int(run.finalized_at is not None)
    bars = [
        ("execute", done.executed, planned),
        ("judge", done.judged, planned),
        ("export", done.exported, planned),
        ("finalize", finalized, 1),
    ]
    for column, (stage, count, of) in zip(st.columns(4), bars, strict=True):
        text = f"**{stage}** {count:,} of {of:,}"
        if stage == "finalize":
            text = f"**finalize** {'done' if finalized else _not_finalized(run)}"
        column.progress(count / of if of else 1.0, text=text)


def _not_finalized(run: RunSummary) -> str:
    if run.finalizing:
        return "being computed now"
    return f"none for a {run.status} run" if run.status.terminal else "not yet"


def _tiles(run: RunSummary) -> None:
    rate, verdicts, dispositions, money = st.columns(4)
    with rate.container(border=True, height="stretch"):
        passed, decided = run.verdicts.passed, run.verdicts.passed + run.verdicts.failed
        so_far = "" if run.status.terminal else " so far"
        st.metric(f"Pass rate{so_far}", numbers.percent(passed / decided if decided else None))
        interval = wilson(passed, decided)
        if interval is None:
            st.caption("no verdict of pass or fail")
        else:
            low, high = 100 * interval.low, 100 * interval.high
            st.caption(f"{passed:,} of {decided:,}, 95 % interval {low:.1f} to {high:.1f}")
    with verdicts.container(border=True, height="stretch"):
        st.caption("Verdicts")
        counts = (run.verdicts.passed, run.verdicts.failed, run.verdicts.none)
        for verdict, count in zip(Verdict, counts, strict=True):
            _drill(run, labels.VERDICT[verdict], count, verdict=verdict)
    with dispositions.container(border=True, height="stretch"):
        st.caption("Dispositions")
        for disposition in Disposition:
            count = getattr(run.dispositions, disposition.value)
            _drill(run, labels.DISPOSITION[disposition], count, disposition=disposition)
    with money.container(border=True, height="stretch"):
        _budget(run)
    others = [s for s in ScoreState if s is not ScoreState.SCORED]
    shown = [state for state in others if getattr(run.progress, state.value)]
    if shown:
        with st.container(horizontal=True):
            for state in shown:
                count = getattr(run.progress, state.value)
                _drill(run, labels.STATE[state], count, state=state)


def _drill(run: RunSummary, label: labels.Label, count: int, **chosen: str) -> None:
    st.page_link(
        CASES_PAGE,
        label=f":{label.color}[{label.sign} **{count:,}** {label.word}]",
        query_params={"run": run.run_id, **{name: str(value) for name, value in chosen.items()}},
        disabled=not count,
    )


def _budget(run: RunSummary) -> None:
    st.metric("Cost of judges", numbers.money(run.cost_usd) if run.calls else numbers.DASH)
    lines = [f"{run.calls:,} call{'' if run.calls == 1 else 's'}"]
    if run.budget_calls is not None:
        lines[0] += f" of {run.budget_calls:,}"
    if run.unpriced_calls:
        lines.append(f"{run.unpriced_calls:,} of unknown price, not in the cost")
    if run.reserved_usd:
        lines.append(f"{numbers.money(run.reserved_usd)} reserved")
    st.caption(" · ".join(lines))
    if run.budget_usd is not None:
        used = (run.cost_usd + run.reserved_usd) / run.budget_usd if run.budget_usd else 1.0
        st.progress(min(used, 1.0), text=f"{numbers.percent(used)} of {_plain(run.budget_usd)}")
    else:
        st.caption("no limit in dollars")


def _plain(usd: float) -> str:
    return rf"\${usd:,.2f}"


def _details(key: RunKey) -> None:
    key = read_now(run_key, key.run_id) or key
    run: RunSummary = read(queries.summary, key)
    _metrics(run)
    _spread(run, key)
    _errors(run, key)
    _timeline(key)


def _metrics(run: RunSummary) -> None:
    st.subheader("Metrics")
    if not run.metrics:
        st.caption(
            "No metric was scored."
            if run.finalized_at is not None
            else f"Finalize computes the metrics: {_not_finalized(run)}."
        )
        return
    table(
        [_metric(name, metric) for name, metric in run.metrics.items()],
        {
            "metric": st.column_config.TextColumn("Metric", pinned=True),
            "headline": st.column_config.TextColumn("Result", width=680),
            **{
                state.value: st.column_config.NumberColumn(labels.STATE[state].text, width=90)
                for state in ScoreState
            },
        },
        alt="Metrics of the run with their coverage",
    )


def _metric(name: str, metric: dict[str, Any]) -> dict[str, object]:
    headline = one_line(metric["headline"], limit=1000)
    states = {state.value: metric["states"].get(state.value, 0) for state in ScoreState}
    return {"metric": one_line(name), "headline": headline, **states}


def _spread(run: RunSummary, key: RunKey) -> None:
    if not run.progress.judged:
        return
    left, right = st.columns(2)
    with left:
        rows = read(views.verdicts_by_category, key)
        st.subheader("Verdicts by category" if any(row[0] for row in rows) else "Verdicts")
        charts.verdicts(rows)
    names: list[str] = read(queries.check_names, key)
    with right:
        st.subheader("Values of a check")
        check = st.selectbox(
            "Check", names, format_func=one_line, label_visibility="collapsed", key="check"
        )
        slices = read(views.distribution, key, check) if check is not None else []
        if slices:
            charts.distribution(check, slices)
        else:
            st.caption("No value was scored.")


def _errors(run: RunSummary, key: RunKey) -> None:
    groups: list[views.ErrorGroup] = read(views.error_groups, key)
    gaps: list[views.CheckGroup] = read(views.unmeasured, key)
    st.subheader("Errors")
    if not groups:
        st.caption("None: no stage of a trial failed.")
    for group in groups:
        with st.container(border=True):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.badge(f"⚠ {group.stage} failed: {group.kind}", color="violet")
                st.page_link(
                    CASES_PAGE,
                    label=f"{group.trials:,} trial{'' if group.trials == 1 else 's'} →",
                    query_params={"run": run.run_id, "error": group.kind},
                )
            st.text(one_line(group.message))
    if gaps:
        st.markdown("Checks without a value")
        table(
            [
                {
                    "check": one_line(gap.name),
                    "state": cell(labels.STATE[ScoreState(gap.state)]),
                    "reason": gap.reason,
                    "message": one_line(gap.message),
                    "scores": gap.scores,
                }
                for gap in gaps
            ],
            {"state": badges("state", labels.STATE.values())},
            width="content",
            alt="Scores without a value, by check, state, reason and message",
        )


def _timeline(key: RunKey) -> None:
    st.subheader("Timeline")
    moments: list[views.Moment] = read(views.timeline, key)
    if len(moments) == EVENTS_SHOWN:
        st.caption(f"Cut: the latest {EVENTS_SHOWN} entries.")
    table(
        [
            {
                "at": numbers.clock(moment.at),
                "what": KIND_SHOWN.get(moment.kind, moment.kind),
                "message": one_line(moment.message, limit=1000),
            }
            for moment in moments
        ],
        {"message": st.column_config.TextColumn("message", width="large")},
        alt="The run's timeline, oldest first",
    )


show()
