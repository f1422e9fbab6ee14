"""What a scorecard and a run's end say on a terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import weirbox
from weirbox.cli.runs import how_it_ended
from weirbox.cli.scorecard import scorecard
from weirbox.cli.wording import span
from weirbox.domain.words import RunStatus
from weirbox.settings import Settings
from weirbox.stats.markdown import scorecard_markdown


def run_of(tmp_path: Path, records: list[dict[str, Any]], **parts: Any) -> weirbox.Run:
    suite = {
        "suite": "small",
        "dataset": {"records": records},
        "harness": {"kind": "recorded", "field": "input"},
        "graders": [{"kind": "answer-match", "name": "same"}],
    }
    settings = Settings(home=tmp_path / "home")
    return weirbox.run(suite | parts, engine="direct", settings=settings)


def shown(body: dict[str, Any]) -> list[list[str]]:
    """The words of each line."""
    console = Console(file=StringIO(), width=100)
    for part in scorecard(body):
        console.print(part)
    return [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_trials_without_a_category_stand_in_the_table_of_categories(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        [
            {"id": "a", "input": "x", "target": "x", "kind": "odd"},
            {"id": "b", "input": "x", "target": "y"},
        ],
        category="kind",
    )
    lines = shown(run.scorecard() or {})

    assert ["odd", "1", "0", "0"] in lines
    assert ["(without)", "0", "1", "0"] in lines


def test_the_headline_says_how_many_trials_have_no_verdict(tmp_path: Path) -> None:
    body = run_of(tmp_path, [{"id": "a", "input": "x", "target": "x"}]).scorecard() or {}
    none = body | {"verdicts": body["verdicts"] | {"none": 3}}

    assert "without" not in " ".join(shown(body)[1])
    assert " ".join(shown(none)[1]).endswith("; 3 trials without a verdict")


@pytest.mark.parametrize(
    ("target", "hint"),
    [("x", False), ("y", True)],
    ids=["all-are-clean", "one-is-not"],
)
def test_what_is_not_clean_is_pointed_to_unless_it_is_shown(
    tmp_path: Path, target: str, hint: bool
) -> None:
    summary = run_of(tmp_path, [{"id": "a", "input": "x", "target": target}]).summary()

    assert ("what is not clean" in how_it_ended(summary)) is hint
    assert "what is not clean" not in how_it_ended(summary, shown=True)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.0000988, "under 1 ms"), (0.001, "0.001 s"), (61, "1 min 01 s")],
)
def test_durations_are_told_in_words_that_people_use(seconds: float, words: str) -> None:
    assert span(seconds) == words


def failing(case: Any, observation: Any) -> Any:
    """A grader's function that fails on every case."""
    raise ValueError("no field [total](https://evil.example) | <b>")


def test_a_scorecard_says_why_a_grader_has_no_score(tmp_path: Path) -> None:
    body = (
        run_of(
            tmp_path,
            [{"id": "a", "input": "x"}, {"id": "b", "input": "x"}],
            graders=[{"kind": "script-score", "name": "close", "function": f"{__name__}:failing"}],
        ).scorecard()
        or {}
    )
    [gap] = body["unmeasured"]
    markdown = scorecard_markdown(body).splitlines()

    assert (gap["name"], gap["reason"], gap["scores"]) == ("close", "grader_error", 2)
    assert "no field [total](https://evil.example) | <b>" in gap["message"]
    assert ["why", "not", "measured", "state", "reason", "message", "scores"] in shown(body)
    assert any(line[:3] == ["close", "errored", "grader_error"] for line in shown(body))
    assert "| why not measured | state | reason | message | scores |" in markdown
    [row] = (line for line in markdown if line.startswith("| close | errored"))
    assert r"no field \[total\]\(https://evil.example\) \| \<b\>" in row


def test_nothing_is_said_of_what_is_not_measured_where_all_is(tmp_path: Path) -> None:
    body = run_of(tmp_path, [{"id": "a", "input": "x", "target": "x"}]).scorecard() or {}

    assert body["unmeasured"] == []
    assert "not measured" not in " ".join(word for line in shown(body) for word in line)
    assert "not measured" not in scorecard_markdown(body)


@pytest.mark.parametrize(
    ("compute", "execute", "told"),
    [
        (0.1431, 0.1432, "execute 0.143 s"),
        (0.14, 0.2, "compute 0.14 s, execute 0.2 s"),
        (None, 0.2, "execute 0.2 s"),
    ],
    ids=["the-same", "less", "none"],
)
def test_one_median_is_told_once(
    tmp_path: Path, compute: float | None, execute: float, told: str
) -> None:
    body = run_of(tmp_path, [{"id": "a", "input": "x", "target": "x"}]).scorecard() or {}
    medians = {"compute": compute, "execute": execute}
    seconds = {name: {"median": value} for name, value in medians.items() if value is not None}

    lines = [" ".join(line) for line in shown(body | {"seconds": seconds})]

    assert f"median time {told}" in lines


def test_replies_that_were_not_paid_for_are_called_replayed_or_reused(tmp_path: Path) -> None:
    body = run_of(tmp_path, [{"id": "a", "input": "x", "target": "x"}]).scorecard() or {}
    tier = {
        **{"tier": "primary", "provider": "replay", "model": "small", "calls": 3, "cached": 2},
        **{"failed": 0, "unpriced": 0, "usd": 0.0},
    }
    cost = {"usd": 0.0, "calls": 3, "unpriced_calls": 0, "by_tier_and_model": [tier]}

    lines = shown(body | {"cost": cost})

    assert ["tier", "model", "calls", "or", "reused", "failed", "cost"] in lines
    assert ["primary", "replay/small", "3", "2", "0", "$0.00"] in lines


@pytest.mark.parametrize(
    ("status", "new"), [(RunStatus.CANCELLED, " --new"), (RunStatus.FAILED, "")]
)
def test_a_run_that_has_ended_early_is_gone_on_with_or_planned_again(
    tmp_path: Path, status: RunStatus, new: str
) -> None:
    summary = run_of(tmp_path, [{"id": "a", "input": "x", "target": "x"}]).summary()

    said = how_it_ended(summary.model_copy(update={"status": status, "reason": "why"}))

    assert said.splitlines() == [
        f"the run is {status}: why",
        f"go on from what it has: weirbox retry {summary.run_id}{new}",
        "plan it again: weirbox run SUITE",
    ]
