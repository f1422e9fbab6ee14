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
from weirbox.settings import Settings


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
