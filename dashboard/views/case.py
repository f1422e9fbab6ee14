"""One trial of a case: what went in, what came out, and why it was judged as it was."""

from __future__ import annotations

import streamlit as st

from dashboard.parts import case_sections, labels
from dashboard.parts.store import read_now
from dashboard.parts.text import block, notice, one_line, visible
from dashboard.parts.where import (
    CASE_PAGE,
    CASES_PAGE,
    RUN_PAGE,
    back_to_cases,
    not_found,
    run_or_stop,
    seq_or_stop,
)
from weirbox.stats.markdown import inert
from weirbox.store.views.trials import TrialDetail, trial_detail

ID_SHOWN = 300  # characters of a case id in the head


def show() -> None:
    """The whole page."""
    key = run_or_stop()
    seq = seq_or_stop()
    trial: TrialDetail | None = read_now(trial_detail, key.run_id, seq)
    if trial is None:
        st.session_state.pop("seq", None)
        not_found(f"run {key.run_id} has no case number {seq}")
        st.page_link(CASES_PAGE, label="To the cases of the run", query_params={"run": key.run_id})
        return
    _head(trial)
    _failure(trial)
    left, right = st.columns(2, gap="large")
    with left:
        case_sections.verdict_chain(trial)
        case_sections.proposals(trial)
    with right:
        _in_and_out(trial)
    case_sections.scores(trial)
    _evidence(trial)


def _head(trial: TrialDetail) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title(f"Case #{trial.seq}", width="content")
        labels.badge(labels.STATE[trial.state])
        if trial.verdict is not None:
            labels.badge(labels.VERDICT[trial.verdict])
        if trial.disposition is not None:
            labels.badge(labels.DISPOSITION[trial.disposition])
        if trial.cached:
            st.badge("↺ cached", color="gray")
        st.space("stretch")
        _turn("Previous", trial.previous, "P")
        _turn("Next", trial.next, "N")
    with st.container(horizontal=True):
        label = f"Run {inert(trial.run_id)}"
        st.page_link(RUN_PAGE, label=label, query_params={"run": trial.run_id})
        st.page_link(CASES_PAGE, label="Cases", query_params=back_to_cases(trial.run_id))
        _trials(trial)
    case_id = visible(trial.case.id)
    st.code(case_id[:ID_SHOWN], language=None, wrap_lines=True)
    if len(case_id) > ID_SHOWN:
        st.caption(f"Cut: the id has {len(case_id):,} characters; the raw view has all of them.")
    stage = "" if trial.stage == "done" else f"next stage: {trial.stage}, attempt {trial.attempt}"
    category = f"category: {one_line(trial.category)}" if trial.category else ""
    shown = [part for part in (category, stage) if part]
    if shown:
        st.text("  ·  ".join(shown))


def _trials(trial: TrialDetail) -> None:
    if len(trial.trials) == 1:
        return
    seqs = dict(trial.trials)
    chosen = st.segmented_control(
        "Trial",
        list(seqs),
        default=trial.seq,
        format_func=lambda seq: f"trial {seqs[seq]}",
        label_visibility="collapsed",
        key=f"trial-{trial.seq}",
    )
    if chosen is not None and chosen != trial.seq:
        _go(chosen)


def _turn(label: str, seq: int | None, shortcut: str) -> None:
    if st.button(label, disabled=seq is None, shortcut=shortcut) and seq is not None:
        _go(seq)


def _go(seq: int) -> None:
    st.switch_page(CASE_PAGE, query_params={"run": st.session_state["run"], "seq": str(seq)})


def _failure(trial: TrialDetail) -> None:
    if trial.case.parse_error is not None:
        unread = trial.case.parse_error
        notice("⚠ the record could not be read", unread.message)
        block(unread.raw, key="unreadable")
    if trial.error_kind is None:
        return
    title = f"⚠ {trial.error_stage} failed: {trial.error_kind}"
    notice(title, trial.error_message or "no message")
    error = trial.observation.error if trial.observation is not None else None
    if error is not None and error.detail:
        with st.expander("Details of the error"):
            block(error.detail, key="error-detail")


def _in_and_out(trial: TrialDetail) -> None:
    st.subheader("Input")
    block(trial.case.input, key="input", absent="The case has no input.")
    st.subheader("Target")
    block(trial.case.target, key="target", absent="The case has no target.")
    st.subheader("Output")
    if trial.observation is None:
        st.caption("Not executed yet." if trial.stage == "execute" else "None was recorded.")
    else:
        block(trial.observation.output, key="output", absent="There is no output.")


def _evidence(trial: TrialDetail) -> None:
    sections = {
        f"Judge calls ({len(trial.calls)})": case_sections.calls,
        f"Exports ({len(trial.exports)})": case_sections.exports,
        f"Trace ({len(trial.observation.trace) if trial.observation else 0})": case_sections.trace,
        "Snapshot": case_sections.snapshot,
        "Times": case_sections.times,
        "Raw": case_sections.raw,
    }
    tabs = st.tabs(list(sections), on_change="rerun", key="evidence")
    for tab, section in zip(tabs, sections.values(), strict=True):
        if tab.open:
            with tab:
                section(trial)


show()
