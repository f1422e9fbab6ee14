"""The examples, run for real from where they stand, with what must come out of each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import weirbox
from weirbox.api import Run
from weirbox.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("home")
    return Settings(home=home, database_url=f"sqlite:///{home}/weirbox.db")


class Expected(NamedTuple):
    """What a run of an example comes to; everything that is not named is zero."""

    progress: dict[str, int]
    verdicts: dict[str, int]
    dispositions: dict[str, int]


TABLE = {
    "humaneval/suite.yaml": Expected(
        progress={"planned": 164, "scored": 164},
        verdicts={"pass": 164, "fail": 0, "none": 0},
        dispositions={"clean": 164, "review": 0, "quarantined": 0},
    ),
    "humaneval/null.yaml": Expected(
        progress={"planned": 164, "scored": 164},
        verdicts={"pass": 0, "fail": 164, "none": 0},
        dispositions={"clean": 0, "review": 164, "quarantined": 0},
    ),
    "event-quality/suite.yaml": Expected(
        progress={"planned": 60, "scored": 56, "errored": 4},
        verdicts={"pass": 14, "fail": 6, "none": 40},
        dispositions={"clean": 29, "review": 13, "quarantined": 18},
    ),
    "text-tools/suite.yaml": Expected(
        progress={"planned": 60, "scored": 60},
        verdicts={"pass": 58, "fail": 2, "none": 0},
        dispositions={"clean": 58, "review": 2, "quarantined": 0},
    ),
}


@pytest.mark.parametrize("example", TABLE)
def test_an_example_comes_to_what_it_says(example: str, settings: Settings) -> None:
    before = set(EXAMPLES.rglob("*"))

    found = weirbox.run(EXAMPLES / example, engine="direct", settings=settings).summary().to_json()

    expected = TABLE[example]
    states = ("scored", "unscored", "errored", "skipped", "pending")
    planned = expected.progress["planned"]
    assert found["status"] == "completed"
    assert found["finalized_at"] is not None
    assert found["progress"] == {
        **dict.fromkeys(states, 0),
        **dict.fromkeys(("executed", "judged", "exported"), planned),
        "cached": 0,
        **expected.progress,
    }
    assert found["verdicts"] == expected.verdicts
    assert found["dispositions"] == expected.dispositions
    assert set(EXAMPLES.rglob("*")) == before, "an example wrote into the source tree"


# --- event-quality, record by record ------------------------------------------------


@pytest.fixture(scope="module")
def events(settings: Settings) -> Run:
    return weirbox.run(EXAMPLES / "event-quality/suite.yaml", engine="direct", settings=settings)


MALFORMED = {
    "4b8048ddde87c661": "not JSON: unterminated string starting at (column 156)",
    "e864e8613f7fb049": "not JSON: expecting value (column 1)",
    "c74d8fbbdc330e99": "not JSON: expecting property name enclosed in double quotes (column 2)",
    "ev-050b": "there is no field 'listing'; the record has 'id', 'event'",
}

BROKEN_RULES = {
    "ev-007": ["has-essentials"],
    "ev-012": ["capacity-is-whole"],
    "ev-014": ["url-is-its-own"],
    "ev-018": ["price-is-not-negative"],
    "ev-021": ["has-essentials"],
    "ev-025": ["url-is-absolute"],
    "ev-030": ["ends-after-it-starts", "starts-in-season"],
    "ev-033": ["starts-in-season"],
    "ev-036": ["ends-after-it-starts"],
    "ev-041": ["url-is-its-own"],
}

REVIEWING_RULES = {
    "ev-005": ["weekday-fits"],
    "ev-009": ["category-is-known"],
    "ev-012": ["sold-within-capacity"],
    "ev-016": ["price-is-usual"],
    "ev-023": ["sold-within-capacity"],
    "ev-028": ["category-is-known"],
    "ev-033": ["weekday-fits"],
    "ev-038": ["weekday-fits"],
}


class Judging(NamedTuple):
    """What the judges say of one record: a verdict, or the reason why there is none."""

    faithful: str
    quality: str
    disposition: str
    verdict: str


NOT_ASKED = "policy_skip"

JUDGED = {
    "ev-001": Judging("pass", "pass", "clean", "pass"),  # a code fence; prose and a label
    "ev-005": Judging("fail", NOT_ASKED, "quarantined", "fail"),  # asked by a rule
    "ev-006": Judging("pass", "pass", "clean", "pass"),  # uncertain, escalated
    "ev-009": Judging(NOT_ASKED, "uncertain", "review", "none"),  # uncertain on both tiers
    "ev-010": Judging("fail", "pass", "quarantined", "fail"),  # low confidence, overruled
    "ev-016": Judging("pass", NOT_ASKED, "review", "pass"),  # the rule's review stands
    "ev-017": Judging("pass", "pass", "clean", "pass"),  # refused, escalated
    "ev-019": Judging("empty", "pass", "review", "pass"),
    "ev-020": Judging("pass", "refusal", "review", "pass"),
    "ev-023": Judging(NOT_ASKED, "fail", "review", "fail"),
    "ev-027": Judging("off_menu", "pass", "review", "pass"),
    "ev-028": Judging(NOT_ASKED, "pass", "review", "pass"),
    "ev-031": Judging("pass", "pass", "clean", "pass"),  # cut, then asked with more room
    "ev-035": Judging("truncated", "pass", "review", "pass"),
    "ev-037": Judging("ambiguous", "pass", "review", "pass"),  # two objects that disagree
    "ev-038": Judging("fail", NOT_ASKED, "quarantined", "fail"),
    "ev-043": Judging("provider_error", "pass", "review", "pass"),
    "ev-044": Judging("fail", "pass", "review", "fail"),  # too little confidence to quarantine
    "ev-048": Judging("fail", "pass", "quarantined", "fail"),  # quotes an injected verdict
    "ev-053": Judging("pass", "pass", "clean", "pass"),
    "ev-054": Judging("pass", "budget", "review", "pass"),
    "ev-056": Judging("budget", "budget", "review", "none"),
}

REASONS = {
    "faithful": {
        "errored": {"provider_error": 1, "stage_error": 4},
        "skipped": {"policy_skip": 37},
        "unscored": {"ambiguous": 1, "budget": 1, "empty": 1, "off_menu": 1, "truncated": 1},
    },
    "record-quality": {
        "errored": {"stage_error": 4},
        "skipped": {"policy_skip": 37},
        "unscored": {"budget": 2, "refusal": 1},
    },
}


def rows(run: Run) -> dict[str, dict[str, Any]]:
    return {str(row["case_id"]): row for row in run.results().to_dict("records")}  # type: ignore[misc]


def test_lines_that_are_no_record_are_quarantined_with_the_reason(events: Run) -> None:
    found = {case: row["error_message"] for case, row in rows(events).items() if row["error_kind"]}

    assert found == MALFORMED
    assert {rows(events)[case]["disposition"] for case in MALFORMED} == {"quarantined"}


@pytest.mark.parametrize(
    ("outcome", "expected"), [("fail", BROKEN_RULES), ("review", REVIEWING_RULES)]
)
def test_rules_find_what_is_wrong_and_nothing_else(
    events: Run, outcome: str, expected: dict[str, list[str]]
) -> None:
    names = [column for column in events.results() if f"{column}.state" in events.results()]
    rules = [name for name in names if name not in REASONS]

    found = {
        case: sorted(name for name in rules if row[name] == outcome)
        for case, row in rows(events).items()
    }

    assert {case: broken for case, broken in found.items() if broken} == expected


def test_records_that_break_a_rule_are_quarantined_and_no_judge_is_paid(events: Run) -> None:
    for case in BROKEN_RULES:
        row = rows(events)[case]
        assert row["disposition"] == "quarantined", case
        assert (row["faithful.state"], row["record-quality.state"]) == ("skipped", "skipped"), case


@pytest.mark.parametrize("case", JUDGED)
def test_a_reply_comes_to_a_verdict_or_to_a_reason(case: str, events: Run) -> None:
    row, expected = rows(events)[case], JUDGED[case]

    assert (row["disposition"], row["verdict"]) == (expected.disposition, expected.verdict)
    states = {"budget": "unscored", "provider_error": "errored", NOT_ASKED: "skipped"}
    for check, said in (("faithful", expected.faithful), ("record-quality", expected.quality)):
        if said in ("pass", "fail", "uncertain"):
            assert (row[check], row[f"{check}.state"]) == (said, "scored"), check
        else:
            assert row[f"{check}.state"] == states.get(said, "unscored"), check


def test_every_other_record_is_clean_without_a_judge(events: Run) -> None:
    others = {
        case: (row["disposition"], row["faithful.state"], row["record-quality.state"])
        for case, row in rows(events).items()
        if case not in JUDGED and case not in BROKEN_RULES and case not in MALFORMED
    }

    assert len(others) == 24
    assert set(others.values()) == {("clean", "skipped", "skipped")}


def test_scores_that_are_missing_are_counted_by_reason(events: Run) -> None:
    card = events.scorecard()

    assert card is not None
    assert {name: card["metrics"][name]["reasons"] for name in REASONS} == REASONS


def test_the_budget_ends_after_its_last_call_and_calls_are_counted_by_tier(events: Run) -> None:
    card = events.scorecard()

    assert card is not None
    calls = {one["tier"]: one["calls"] for one in card["cost"]["by_tier_and_model"]}
    assert calls == {"primary": 36, "escalation": 10}
    assert events.summary().calls == events.summary().budget_calls == 46


# --- text-tools ---------------------------------------------------------------------


def test_only_the_two_wrong_references_fail(settings: Settings) -> None:
    run = weirbox.run(EXAMPLES / "text-tools/suite.yaml", engine="direct", settings=settings)

    failing = [case for case, row in rows(run).items() if row["verdict"] == "fail"]
    card = run.scorecard()

    assert failing == ["base64-051", "reverse-001"]
    assert card is not None
    assert card["categories"] == {
        "base64": {"pass": 19, "fail": 1, "none": 0},
        "reverse": {"pass": 9, "fail": 1, "none": 0},
        "rot13": {"pass": 30, "fail": 0, "none": 0},
    }


# --- the README -----------------------------------------------------------------------


def test_the_python_of_the_readme_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    environment = {**os.environ, "WEIRBOX_HOME": str(tmp_path)}
    environment.pop("WEIRBOX_DATABASE_URL", None)

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=EXAMPLES.parent,
        env=environment,
    )

    assert done.returncode == 0, done.stderr
    for said in ("planned=60 executed=60 judged=60", "base64-051", "96.7 % pass (58 of 60, "):
        assert said in done.stdout
    assert done.stdout.splitlines()[-1] == "{'pass': 58, 'fail': 2, 'none': 0}"
