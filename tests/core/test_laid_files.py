"""Files, functions and templates of a suite: checked before a run, frozen with its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.factories import column, counts, go_on, suite
from weirbox.domain.words import RunKind, RunStatus
from weirbox.errors import NotPossible, SuiteError
from weirbox.pipeline.planning import Selection, plan_run
from weirbox.store.engine import Database
from weirbox.suites import parse_suite

ECHO = "import sys\nprint('{{ not a slot of ours }}'[:0] + sys.stdin.read(), end='')\n"


def parts(**changes: Any) -> dict[str, Any]:
    """The data of a suite whose program is a file of its folder."""
    return {
        "suite": "laid",
        "dataset": {"records": [{"id": "a", "input": "x", "target": "x"}]},
        "compute": {"kind": "local", "files": {"agent.py": {"path": "agent.py"}}},
        "harness": {"kind": "command", "argv": ["python", "agent.py"], "stdin": "{{ case.input }}"},
        "graders": [
            {"kind": "answer-match", "name": "same"},
            {
                "kind": "command",
                "name": "check",
                "argv": ["python", "check.py"],
                "files": {"check.py": {"path": "check.py"}},
            },
        ],
    } | changes


def test_files_of_the_suites_folder_are_laid_as_they_were_when_planned(
    shared_sqlite: Database, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(ECHO)
    (tmp_path / "check.py").write_text("import os; assert os.path.exists('agent.py')\n")
    planned = plan_run(shared_sqlite, parse_suite(parts(), place="here"), folder=str(tmp_path))
    (tmp_path / "agent.py").write_text("print('changed')")
    (tmp_path / "check.py").unlink()

    assert go_on(shared_sqlite, planned.run_id).status is RunStatus.COMPLETED
    assert column(shared_sqlite, planned.run_id, "verdict") == ["pass"]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("grade.py:closed", "has no function 'closed'"),
        ("broken.py:score", "SyntaxError"),
        ("absent_module:score", "No module named 'absent_module'"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_a_mistake_before_anything_is_written(
    shared_sqlite: Database, tmp_path: Path, function: str, words: str
) -> None:
    (tmp_path / "grade.py").write_text("def score(case, observation): return 1\n")
    (tmp_path / "broken.py").write_text("def score(:\n")
    before = counts(shared_sqlite)
    made = suite(graders=[{"kind": "script-score", "name": "s", "function": function}])

    with pytest.raises(SuiteError, match=words):
        plan_run(shared_sqlite, made, folder=str(tmp_path))
    assert counts(shared_sqlite) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"harness": {"kind": "command", "argv": ["cat", "{{ nope.x }}"]}},
            r"harness.argv.*'\{\{ nope.x \}\}'; known: case.id, case.input, case.record, trial",
        ),
        (
            {"harness": {"kind": "command", "argv": ["cat"], "stdin": "{{ case.target }}"}},
            "harness.stdin.*case.target",
        ),
        ({"compute": {"files": {"../x": "text"}}}, r"compute.files.*'\.\./x' is no place"),
        ({"compute": {"files": {"/x": "text"}}}, "compute.files.*'/x' is no place"),
        ({"compute": {"files": {"x": "{{ output }}"}}}, "compute.files.*file 'x' names"),
    ],
)
def test_a_template_or_place_that_no_case_can_fit_is_a_mistake_in_the_suite(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SuiteError, match=words):
        parse_suite(parts(**changes), place="here")


def test_a_run_of_another_suite_is_nothing_to_compare_with(shared_sqlite: Database) -> None:
    other = suite(suite="another")
    run = plan_run(shared_sqlite, other, folder="/")

    with pytest.raises(NotPossible, match=r"no run .* of suite 'third'"):
        plan_run(
            shared_sqlite,
            suite(suite="third"),
            folder="/",
            selection=Selection(kind=RunKind.DELTA, since=run.run_id),
        )
    with pytest.raises(NotPossible, match="there is no run of suite 'third' yet"):
        plan_run(
            shared_sqlite,
            suite(suite="third"),
            folder="/",
            selection=Selection(kind=RunKind.DELTA, since="latest"),
        )
