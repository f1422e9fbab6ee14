"""Charts; each has a text beside it that says the same."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd
import streamlit as st

from dashboard.parts import labels
from dashboard.parts.text import one_line
from weirbox.domain.run import Progress
from weirbox.domain.words import ScoreState, Verdict
from weirbox.store.views.runs import Slice

BAR = 26
"""Height of one bar, in pixels."""

AXIS, LEGEND = 90, 55
"""Height of an axis with its title, and of a legend, in pixels."""

CATEGORY_SHOWN = 40
"""Characters of a category or value beside its bar."""


def coverage(progress: Progress) -> None:
    """What became of all planned trials, as one bar and as a sum."""
    counts = {state: getattr(progress, state.value) for state in ScoreState}
    parts = " + ".join(f"{count:,} {state}" for state, count in counts.items())
    st.caption(f"{progress.planned:,} planned = {parts}")
    if not progress.planned:
        return
    looks = [labels.STATE[state] for state in ScoreState]
    frame = pd.DataFrame(
        {
            "state": [look.text for look in looks],
            "trials": list(counts.values()),
            "place": range(len(looks)),
        }
    )
    chart = (
        alt.Chart(frame)
        .mark_bar(height=18)
        .encode(
            x=alt.X("trials:Q", stack="zero", axis=None, scale=alt.Scale(nice=False)),
            order="place:O",
            color=_colors("state:N", looks, None),
            opacity=alt.condition(
                alt.datum.state == labels.STATE[ScoreState.PENDING].text,
                alt.value(0.35),
                alt.value(1.0),
            ),
            tooltip=["state:N", "trials:Q"],
        )
        .properties(height=22)
    )
    st.altair_chart(chart, alt=f"{progress.planned} planned trials by state: {parts}")


def verdicts(rows: Sequence[tuple[str, str, int]]) -> None:
    """Judged trials by verdict, one bar for each category."""
    looks = [labels.VERDICT[verdict] for verdict in Verdict]
    unnamed = "(no category)" if any(category for category, _, _ in rows) else "all"
    frame = pd.DataFrame(
        [
            {
                "category": one_line(category, limit=CATEGORY_SHOWN) or unnamed,
                "verdict": labels.VERDICT[Verdict(verdict)].text,
                "place": list(Verdict).index(Verdict(verdict)),
                "trials": count,
            }
            for category, verdict, count in rows
        ]
    )
    bars = frame["category"].nunique()
    chart = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            x=alt.X("trials:Q", title="trials", axis=alt.Axis(tickMinStep=1, format="d")),
            y=alt.Y("category:N", title=None, sort="-x", axis=alt.Axis(labelLimit=240)),
            order="place:O",
            color=_colors("verdict:N", looks, alt.Legend(title=None, orient="top")),
            tooltip=["category:N", "verdict:N", "trials:Q"],
        )
        .properties(height=bars * BAR + LEGEND + AXIS)
    )
    st.altair_chart(chart, alt="Judged trials by verdict in each category")


def distribution(check: str, slices: Sequence[Slice]) -> None:
    """How the values of a check are spread."""
    ranges = any(part.low != part.high for part in slices)
    frame = pd.DataFrame(
        {
            "value": [one_line(part.label, limit=CATEGORY_SHOWN) for part in slices],
            "scores": [part.count for part in slices],
            "low": [part.low for part in slices],
            "high": [part.high for part in slices],
            "place": range(len(slices)),
        }
    )
    base = alt.Chart(frame).mark_bar(color=labels.HEX["blue"])
    scores = alt.Axis(tickMinStep=1, format="d")
    if ranges:
        chart = base.encode(
            x=alt.X("low:Q", title=None, bin="binned"),
            x2="high:Q",
            y=alt.Y("scores:Q", title="scores", axis=scores),
            tooltip=["value:N", "scores:Q"],
        ).properties(height=220)
    else:
        chart = base.encode(
            x=alt.X("scores:Q", title="scores", axis=scores),
            y=alt.Y(
                "value:N", title=None, sort=alt.SortField("place"), axis=alt.Axis(labelLimit=240)
            ),
            tooltip=["value:N", "scores:Q"],
        ).properties(height=len(slices) * BAR + AXIS)
    st.altair_chart(chart, alt=f"Distribution of the values of {one_line(check)}")


def _colors(field: str, looks: Sequence[labels.Label], legend: alt.Legend | None) -> alt.Color:
    return alt.Color(
        field,
        scale=alt.Scale(
            domain=[look.text for look in looks], range=[labels.HEX[look.color] for look in looks]
        ),
        legend=legend,
    )
