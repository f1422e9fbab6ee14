"""How the closed sets look: a sign, the word itself and a colour, never a colour alone.

A verdict's fail is red; what broke on our side or a provider's is violet, so that a bad
answer and a broken measurement are never taken for each other.
"""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st

from dashboard.parts.text import Color
from weirbox.domain.run import RunSummary
from weirbox.domain.words import Disposition, RunStatus, ScoreState, Verdict


class Label(NamedTuple):
    """A sign, a word and a colour."""

    sign: str
    word: str
    color: Color

    @property
    def text(self) -> str:
        """Sign and word."""
        return f"{self.sign} {self.word}"


HEX: dict[Color, str] = {
    "green": "#1a7f37",
    "red": "#cf222e",
    "violet": "#8250df",
    "orange": "#bc4c00",
    "yellow": "#9a6700",
    "blue": "#0969da",
    "gray": "#6e7781",
}

FINALIZING = Label("◔", "finalizing", "blue")

STATUS = {
    RunStatus.PENDING: Label("…", "pending", "gray"),
    RunStatus.RUNNING: Label("▶", "running", "blue"),
    RunStatus.COMPLETED: Label("✓", "completed", "green"),
    RunStatus.FAILED: Label("⚠", "failed", "violet"),
    RunStatus.CANCELLED: Label("■", "cancelled", "gray"),
    RunStatus.SUPERSEDED: Label("↷", "superseded", "gray"),
}

VERDICT = {
    Verdict.PASS: Label("✓", "pass", "green"),
    Verdict.FAIL: Label("✗", "fail", "red"),
    Verdict.NONE: Label("–", "none", "gray"),
}

DISPOSITION = {
    Disposition.CLEAN: Label("●", "clean", "green"),
    Disposition.REVIEW: Label("◐", "review", "yellow"),
    Disposition.QUARANTINED: Label("⊘", "quarantined", "orange"),
}

STATE = {
    ScoreState.SCORED: Label("●", "scored", "blue"),
    ScoreState.UNSCORED: Label("○", "unscored", "yellow"),
    ScoreState.ERRORED: Label("⚠", "errored", "violet"),
    ScoreState.SKIPPED: Label("»", "skipped", "gray"),
    ScoreState.PENDING: Label("…", "pending", "gray"),
}


def status_label(run: RunSummary) -> Label:
    """A run's status; completed but not finalized has a label of its own."""
    return FINALIZING if run.finalizing else STATUS[run.status]


def badge(label: Label) -> None:
    """Show a label by itself."""
    st.badge(label.text, color=label.color)
