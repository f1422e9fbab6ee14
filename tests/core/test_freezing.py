"""What a plan freezes: nothing that happens later changes a run, and no id breaks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories import (
    PASSES,
    Fakes,
    column,
    counts,
    drive,
    go_on,
    judged,
    of_records,
    plan,
    scores,
    suite,
    timeline,
    trials,
)
from tests.fakes import passing
from weirbox.domain.base import storable
from weirbox.domain.plan import Plan
from weirbox.domain.spec import Suite
from weirbox.domain.words import Reason, RunKind, RunStatus, ScoreState
from weirbox.errors import SuiteError
from weirbox.pipeline.planning import Selection, plan_run
from weirbox.store import queries
from weirbox.store.engine import Database
from weirbox.testing import ReplayJudge


def cases(database: Database, run_id: str) -> list[str]:
    """The ids of a plan, in its order."""
    return column(database, run_id, "case_id")


def frozen(database: Database, run_id: str) -> Plan:
    """The plan of a run."""
    with database.read() as connection:
        return queries.load_plan(connection, run_id)


# --- frozen ------------------------------------------------------------------------


def rewrite(path: Path) -> None:
    """Change a file's meaning."""
    path.write_text(path.read_text().replace("right", "wrong"))


@pytest.mark.parametrize("happens", [rewrite, Path.unlink], ids=["changed", "deleted"])
@pytest.mark.parametrize("file", ["cases.jsonl", "answer.py", "prompts/ask.yaml", "replies.jsonl"])
def test_nothing_that_happens_to_a_file_after_planning_changes_the_run(
    file: str, happens: Callable[[Path], None], shared_sqlite: Database, tmp_path: Path
) -> None:
    (tmp_path / "cases.jsonl").write_text('{"id": "one", "input": "right"}\n')
    (tmp_path / "answer.py").write_text("def answer(case):\n    return [case.input, 'right']\n")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "ask.yaml").write_text(
        "id: ask\nversion: 1\nuser: 'right? {{ output }}'\n"
    )
    reply = {"verdict": "pass", "confidence": 0.9, "reason": "right"}
    (tmp_path / "replies.jsonl").write_text(json.dumps({"check": "quality", "reply": reply}))
    chosen = judged(
        dataset={"path": "cases.jsonl"},
        harness={"kind": "python", "function": "answer.py:answer"},
        graders=[],
        providers={"account": {"kind": "replay", "path": "replies.jsonl"}},
        judges=[{"name": "quality", "prompt": "ask", "primary": {"provider": "account"}}],
    )
    run_id = plan(
        shared_sqlite, chosen, folder=str(tmp_path), prompt_folders=(str(tmp_path / "prompts"),)
    )

    happens(tmp_path / file)

    run = go_on(shared_sqlite, run_id)
    assert (run.status, run.verdicts.passed) == (RunStatus.COMPLETED, 1)
    with shared_sqlite.read() as connection:
        [row] = trials(shared_sqlite, run_id)
        output = queries.load_observation(connection, row.observation).output
    assert output == ["right", "right"]
    assert frozen(shared_sqlite, run_id).prompts["quality"].user == "right? {{ output }}"
    assert scores(shared_sqlite, run_id)["quality"].rationale == "right"


def test_a_plan_names_every_file_by_an_absolute_path(
    shared_sqlite: Database, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cases.jsonl").write_text('{"id": "one", "input": "x"}\n')
    chosen = suite(
        dataset={"path": "data/cases.jsonl"}, sinks=[{"kind": "jsonl", "path": "../out"}]
    )

    found = frozen(shared_sqlite, plan(shared_sqlite, chosen, folder=str(tmp_path)))

    assert found.suite.dataset.path == str(tmp_path / "data" / "cases.jsonl")
    assert [sink.path for sink in found.suite.sinks] == [str(tmp_path.parent / "out")]


# --- judges that are not there -----------------------------------------------------


def asking(*prompts: str) -> Suite:
    """A suite with one judge for each prompt of the registry."""
    primary = {"provider": "account", "model": "small"}
    return judged(
        2,
        graders=[],
        judges=[
            {"name": f"judge-{n}", "prompt": prompt, "primary": primary}
            for n, prompt in enumerate(prompts)
        ],
    )


def test_a_judge_without_a_prompt_is_skipped_and_makes_no_trial_clean(
    shared_database: Database,
) -> None:
    provider = passing()
    chosen = asking("correctness@1", "nobody-wrote-this")

    run = drive(shared_database, chosen, fakes=Fakes(provider=provider))

    found = scores(shared_database, run.run_id)
    skipped = found["judge-1"]
    assert (skipped.state, skipped.reason) == (ScoreState.SKIPPED, Reason.NO_JUDGE)
    assert "there is no prompt 'nobody-wrote-this'" in skipped.rationale
    assert (run.status, run.dispositions.review) == (RunStatus.COMPLETED, 2)
    assert {request.check for request in provider.requests} <= {"judge-0"}
    told = [message for kind, message in timeline(shared_database, run.run_id) if kind == "skipped"]
    assert len(told) == 1
    assert told[0].startswith("judge 'judge-1' is skipped: there is no prompt 'nobody-wrote-this'")


def test_a_run_all_of_whose_judges_are_missing_completes_unmeasured(sqlite: Database) -> None:
    run = drive(sqlite, asking("nobody", "correctness@99"))

    assert (run.status, run.progress.skipped) == (RunStatus.COMPLETED, 2)
    assert (run.verdicts.none, run.dispositions.review) == (2, 2)


MALFORMED = {
    "no-yaml": "id: [",
    "no-user": "id: ask\nversion: 1\n",
    "unknown-field": "id: ask\nversion: 1\nuser: x\nusr: y\n",
    "unknown-slot": "id: ask\nversion: 1\nuser: '{{ outptu }}'\n",
    "one-version-two-texts": "id: ask\nversion: 1\nuser: x\n---\nid: ask\nversion: 1\nuser: y\n",
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_prompt_is_a_mistake_and_no_missing_judge(
    text: str, shared_sqlite: Database, tmp_path: Path
) -> None:
    (tmp_path / "ask.yaml").write_text(text)
    before = counts(shared_sqlite)

    with pytest.raises(SuiteError, match=r"ask\.yaml"):
        plan(shared_sqlite, asking("ask"), prompt_folders=(str(tmp_path),))

    assert counts(shared_sqlite) == before


def test_a_malformed_prompt_within_the_suite_is_a_mistake_too(shared_sqlite: Database) -> None:
    prompt = {"id": "own", "version": 1, "user": "{{ outptu }}"}
    judge = {"name": "quality", "prompt": prompt, "primary": {"provider": "account"}}

    with pytest.raises(SuiteError, match="outptu"):
        plan(shared_sqlite, judged(judges=[judge]))


# --- values that must be unique ----------------------------------------------------


def test_all_cases_that_share_a_value_are_told_of_one_another(shared_database: Database) -> None:
    given = [
        {"id": "a", "input": "x", "url": "1"},
        {"id": "b", "input": "x", "url": "2"},
        {"id": "c", "input": "x", "url": "1"},
        {"id": "d", "input": "x", "url": "1"},
        {"id": "e", "input": "x", "url": 1},
        {"id": "f", "input": "x", "url": 1.0},
    ]
    rule = {"kind": "unique", "name": "one-url", "path": "url"}

    run = drive(shared_database, of_records(given, rules=[rule], graders=[]))

    twins = frozen(shared_database, run.run_id).twins["one-url"]
    assert twins == {"a": "c", "c": "a", "d": "a", "e": "f", "f": "e"}
    dispositions = dict(
        zip(
            cases(shared_database, run.run_id),
            column(shared_database, run.run_id, "disposition"),
            strict=True,
        )
    )
    assert dispositions.pop("b") == "clean"
    assert set(dispositions.values()) == {"quarantined"}


def test_repeats_of_a_case_are_no_twins_of_it(sqlite: Database) -> None:
    rule = {"kind": "unique", "name": "one-input", "path": "input"}

    run = drive(sqlite, suite(3, rules=[rule], repeats=3))

    assert run.dispositions.clean == 9


# --- hostile ids -------------------------------------------------------------------

HOSTILE = {
    "way-out": "../x",
    "absolute": "/etc/passwd",
    "long": "x" * 10_000,
    "emoji": "😀",
    "nul": "a\0b",
    "lone-surrogate": "a\ud800b",
    "markup": "<script>alert(1)</script>",
    "quote": "'; DROP TABLE trial; --",
    "percent": "%s {0} {{ input }}",
    "spaces": " a ",
    "new-line": "a\nb",
}


@pytest.mark.parametrize(
    "selection", [Selection(), Selection(kind=RunKind.PREVIEW, size=99)], ids=["full", "preview"]
)
def test_no_id_breaks_a_run_or_reaches_beyond_its_folder(
    selection: Selection, shared_database: Database, tmp_path: Path
) -> None:
    given = [{"id": name, "input": "x", "target": "x"} for name in HOSTILE.values()]
    rules = [{"kind": "unique", "name": "one-input", "path": "input", "otherwise": "review"}]
    sink = {"kind": "jsonl", "path": str(tmp_path / "out")}
    chosen = judged(dataset={"records": given}, rules=rules, sinks=[sink])
    before = set(tmp_path.iterdir()) | {tmp_path / "out"}

    run = drive(
        shared_database,
        chosen,
        selection=selection,
        fakes=Fakes(provider=ReplayJudge(lambda request: PASSES)),
    )

    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, len(HOSTILE))
    assert run.verdicts.passed == len(HOSTILE)
    assert set(tmp_path.iterdir()) - before <= {
        tmp_path / "weirbox.db-wal",
        tmp_path / "weirbox.db-shm",
    }
    shown = cases(shared_database, run.run_id)
    assert shown == [storable(name) for name in HOSTILE.values()]
    with shared_database.read() as connection:
        found = [queries.trials_of_case(connection, run.run_id, name) for name in shown]
        exports = [queries.exports_of(connection, run.run_id, seq) for seq in range(len(HOSTILE))]
    assert [len(rows) for rows in found] == [1] * len(HOSTILE)
    assert {row.status for rows in exports for row in rows} == {"succeeded"}


def test_the_planned_run_counts_as_such_for_whoever_planned_it(sqlite: Database) -> None:
    planned = plan_run(sqlite, of_records([{"input": "no id"}]), folder="/")

    assert planned.trials == 1
    assert "without an id" in planned.warnings[0]
    assert ("warning", planned.warnings[0]) in timeline(sqlite, planned.run_id)
