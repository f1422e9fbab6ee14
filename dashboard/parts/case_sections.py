"""The sections of a case page."""

from __future__ import annotations

from datetime import datetime

import streamlit as st
from pydantic import JsonValue

from dashboard.parts import labels, numbers
from dashboard.parts.chain import Link, Role, chain
from dashboard.parts.tables import badges, cell, table
from dashboard.parts.text import block, one_line, visible
from weirbox.domain.base import model_json
from weirbox.domain.score import Score
from weirbox.domain.words import Authority, Verdict
from weirbox.store.views.trials import TrialDetail, shown

EVENTS_SHOWN = 500
"""Events of a trace that are listed."""

RATIONALE_SHOWN = 2000
"""Characters of a rationale, message or event in a list."""

TIER_NAMES = {
    Authority.GROUND_TRUTH: "Ground truth",
    Authority.OBJECTIVE: "Objective graders",
    Authority.JUDGE: "Judges",
    Authority.OTHER: "Other checks",
}


def outcome(score: Score) -> labels.Label:
    """Pass or fail where a score says so, else its state."""
    if score.passed is not None:
        return labels.VERDICT[Verdict.PASS if score.passed else Verdict.FAIL]
    return labels.STATE[score.state]


OUTCOMES = [*labels.VERDICT.values(), *labels.STATE.values()]


def verdict_chain(trial: TrialDetail) -> None:
    """The tiers of authority, and which of them decided."""
    st.subheader("Verdict")
    if trial.verdict is None:
        st.caption("Not judged yet.")
        return
    links = chain(trial.scores, verdict=trial.verdict, deciding=trial.deciding)
    if not links:
        st.caption("No check of this trial says pass or fail, so the verdict is none.")
    for link in links:
        _link(link, trial.verdict)


def _link(link: Link, verdict: Verdict) -> None:
    decides = link.role is Role.DECIDES
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{TIER_NAMES[link.authority]}**", width="content")
            if decides:
                look = labels.VERDICT[verdict]
                st.badge(f"decides: {look.text}", color=look.color)
            else:
                st.badge(link.role, color="gray")
        for score in link.scores:
            with st.container(horizontal=True, vertical_alignment="center"):
                labels.badge(outcome(score))
                mark = "  ← the deciding check" if score.name == link.deciding else ""
                st.text(f"{one_line(score.name)}{mark}", width="content")
            reason = f"{score.reason}: " if score.reason else ""
            if score.rationale or reason:
                st.text(visible(f"{reason}{score.rationale}"[:RATIONALE_SHOWN]))


def scores(trial: TrialDetail) -> None:
    """Every score with its state, and why it has no value where it has none."""
    st.subheader("Scores")
    if not trial.scores:
        st.caption("None yet." if trial.stage in ("execute", "judge") else "None at all.")
        return
    table(
        [_score(score) for score in trial.scores],
        {
            "check": st.column_config.TextColumn(pinned=True),
            "result": badges("result", OUTCOMES),
            "confidence": st.column_config.TextColumn(alignment="right"),
            "rationale": st.column_config.TextColumn(width="large"),
        },
        alt="Scores of the trial",
    )


def _score(score: Score) -> dict[str, object]:
    return {
        "check": one_line(score.name),
        "result": cell(outcome(score)),
        "value": numbers.DASH if score.value is None else one_line(shown(score.value)),
        "state": str(score.state),
        "reason": str(score.reason or ""),
        "confidence": numbers.DASH if score.confidence is None else f"{score.confidence:.2f}",
        "tier": str(score.tier or ""),
        "model": one_line(score.model or ""),
        "source": f"{score.source}{'' if score.required else ', not required'}",
        "took": numbers.seconds(score.duration),
        "rationale": one_line(score.rationale, limit=RATIONALE_SHOWN),
    }


def proposals(trial: TrialDetail) -> None:
    """What is suggested for failed checks; nothing is ever applied by itself."""
    if not trial.proposals:
        return
    st.subheader("Proposals")
    for number, proposal in enumerate(trial.proposals):
        with st.container(border=True):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.badge(f"propose: {proposal.action}", color="yellow")
                st.text(one_line(proposal.check), width="content")
            st.text(visible(proposal.message[:RATIONALE_SHOWN]))
            if proposal.suggestion is not None:
                block(proposal.suggestion, key=f"suggestion-{number}")


def calls(trial: TrialDetail) -> None:
    """Every call of a judge, the ones whose verdict did not stand included."""
    if not trial.calls:
        st.caption("No judge was called.")
        return
    table(
        [
            {
                "check": one_line(call.check),
                "tier": str(call.tier),
                "model": one_line(call.model),
                "provider": one_line(call.provider),
                "ok": "✓ ok" if call.ok else "⚠ failed",
                "cost": numbers.money(call.usage.cost_usd),
                "input": numbers.count(call.usage.input_tokens),
                "output": numbers.count(call.usage.output_tokens),
                "cached": "↺ cached" if call.cached else "",
                "took": numbers.seconds(call.duration),
                "message": one_line(call.message, limit=RATIONALE_SHOWN),
            }
            for call in trial.calls
        ],
        {
            "cost": st.column_config.TextColumn(alignment="right"),
            "input": st.column_config.TextColumn("input tokens", alignment="right"),
            "output": st.column_config.TextColumn("output tokens", alignment="right"),
        },
        alt="Judge calls of the trial",
    )
    costs = [call.usage.cost_usd for call in trial.calls]
    known = sum(cost for cost in costs if cost is not None)
    unknown = costs.count(None)
    rest = f", and {unknown} of unknown price" if unknown else ""
    st.text(f"Together {numbers.money(known)}{rest}.")
    for number, call in enumerate(trial.calls):
        if call.reply is not None:
            st.text(f"Reply {number + 1}: {one_line(call.check)}, {call.tier}")
            block(_words(call.reply), key=f"reply-{number}")


def _words(reply: JsonValue) -> JsonValue:
    """What a judge said, without what its provider wraps around it."""
    if isinstance(reply, dict) and isinstance(reply.get("text"), str):
        return reply["text"]
    return reply


def exports(trial: TrialDetail) -> None:
    """What became of the trial at each sink."""
    if not trial.exports:
        late = trial.stage == "done"
        st.caption("The suite has no sinks." if late else "Not exported yet.")
        return
    signs = {"succeeded": "✓ succeeded", "partial": "◐ partial", "failed": "⚠ failed"}
    table(
        [
            {
                "sink": one_line(export.sink),
                "status": signs[export.status],
                "at": numbers.clock(export.at),
                "where": one_line(export.url or "", limit=RATIONALE_SHOWN),
                "message": one_line(export.message, limit=RATIONALE_SHOWN),
            }
            for export in trial.exports
        ],
        {"where": st.column_config.TextColumn(width="large")},
        alt="Exports of the trial",
    )


def trace(trial: TrialDetail) -> None:
    """The events of the trial, in order."""
    events = trial.observation.trace if trial.observation is not None else ()
    if not events:
        st.caption("The trace is empty: the harness gave no events.")
        return
    if len(events) > EVENTS_SHOWN:
        st.caption(f"Cut: the first {EVENTS_SHOWN} of {len(events):,} events.")
    table(
        [
            {
                "at": numbers.seconds(event.at),
                "kind": "⚠ error" if event.kind == "error" else str(event.kind),
                "name": one_line(event.name),
                "text": one_line(event.text, limit=RATIONALE_SHOWN),
                "model": one_line(event.model or ""),
                "tokens": numbers.count(event.usage.total_tokens if event.usage else None),
                "cost": numbers.money(event.usage.cost_usd) if event.usage else "",
                "took": numbers.seconds(event.duration),
            }
            for event in events[:EVENTS_SHOWN]
        ],
        {"text": st.column_config.TextColumn(width="large")},
        alt="Trace of the trial",
    )
    block([model_json(event) for event in events[:EVENTS_SHOWN]], key="trace")


def snapshot(trial: TrialDetail) -> None:
    """What compute left behind."""
    if trial.observation is None:
        st.caption("Not executed yet.")
        return
    left = trial.observation.snapshot
    facts = [
        "no exit status" if left.exit_code is None else f"exit status {left.exit_code}",
        "⚠ timed out" if left.timed_out else "",
        "⚠ cut at the output limit" if left.truncated else "",
    ]
    st.text("  ·  ".join(fact for fact in facts if fact))
    st.text("Standard output")
    block(left.stdout, key="stdout")
    st.text("Standard error")
    block(left.stderr, key="stderr")
    st.text(f"Files ({len(left.files)})")
    for number, file in enumerate(left.files):
        with st.container(border=True):
            st.text(one_line(file.path) + (" (cut when it was kept)" if file.truncated else ""))
            block(file.text, key=f"file-{number}")


def times(trial: TrialDetail) -> None:
    """When each stage began and ended, and how long the trial waited before it."""
    rows: list[dict[str, object]] = []
    earlier: datetime | None = None
    for stage, (begin, end) in trial.times.items():
        waited = (begin - earlier).total_seconds() if begin and earlier else None
        took = (end - begin).total_seconds() if begin and end else None
        rows.append(
            {
                "stage": stage,
                "waited": numbers.seconds(waited),
                "took": numbers.seconds(took),
                "began": numbers.clock(begin),
                "ended": numbers.clock(end),
            }
        )
        earlier = end or earlier
    table(rows, {}, width="content", alt="Times of the trial")
    if trial.compute_s is not None:
        st.text(f"Compute was held for {numbers.seconds(trial.compute_s)}.")
    if trial.observation is not None:
        harness = numbers.seconds(trial.observation.duration)
        correlation = visible(trial.observation.correlation) or "none"
        st.text(f"The harness took {harness}; its correlation id is {correlation}.")


def raw(trial: TrialDetail) -> None:
    """The stored values themselves."""
    st.text("Case")
    block(model_json(trial.case), key="raw-case")
    st.text("Scores")
    block([model_json(score) for score in trial.scores], key="raw-scores")
    st.text("Observation")
    block(
        None if trial.observation is None else model_json(trial.observation), key="raw-observation"
    )
