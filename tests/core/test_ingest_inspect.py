"""Inspect's logs as runs; the logs are made by Inspect itself, offline."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.test_ingest import ingested, observation, planned, record_of, warnings
from tests.factories import column, counts, scores, suite, trials
from weirbox.errors import UserError
from weirbox.store.engine import Database

inspect_ai = pytest.importorskip("inspect_ai")


@pytest.fixture(scope="module", params=["eval", "json"])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of two samples and two epochs: one is right, the other asks a tool and fails once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INSPECT_DISPLAY", "none")
        return _evaluated(tmp_path_factory.mktemp("logs"), request.param)


def _evaluated(folder: Path, log_format: str) -> Path:
    from inspect_ai import Task, eval, task_with
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ChatMessageUser, ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import Score, includes, mean, scorer
    from inspect_ai.solver import generate, solver, use_tools
    from inspect_ai.tool import tool

    @tool
    def add() -> Any:
        async def execute(x: int, y: int) -> int:
            """Add two numbers.

            Args:
                x: One.
                y: The other.
            """
            return x + y

        return execute

    @solver
    def fail_once() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            if state.sample_id == 2 and state.epoch == 2:
                raise ValueError("the sandbox burnt down")
            return state

        return solve

    @scorer(metrics={"*": [mean()]})
    def several() -> Any:
        async def score(state: Any, target: Any) -> Any:
            judge = get_model("mockllm/judge", custom_outputs=[_said("mockllm/judge", "grade")])
            await judge.generate("grade this")
            value = {"good": True, "grade": "P", "word": "fine", "none": float("nan"), "n": 3}
            return Score(value=value, answer="five", explanation="because", reason="refusal")

        return score

    def _said(model: str, text: str) -> Any:
        return _used(ModelOutput.from_content(model, text))

    def _used(output: Any) -> Any:
        output.usage = ModelUsage(
            input_tokens=10, output_tokens=5, total_tokens=18, input_tokens_cache_read=3
        )
        return output

    def outputs() -> Iterator[Any]:
        while True:
            yield _used(ModelOutput.for_tool_call("mockllm/model", "add", {"x": 2, "y": 3}))
            yield _said("mockllm/model", "it is 5")

    task = Task(
        dataset=[
            Sample(id="sum", input="2+3?", target="5", metadata={"level": 1}),
            Sample(id=2, input=[ChatMessageUser(content="7?")], target=["7", "seven"]),
        ],
        solver=[fail_once(), use_tools(add()), generate()],
        scorer=[includes(), several()],
    )
    (done,) = eval(
        task_with(task, name="group/sums"),
        model=get_model("mockllm/model", custom_outputs=outputs()),
        epochs=2,
        max_samples=1,
        fail_on_error=False,
        log_dir=str(folder),
        log_format=log_format,
        display="none",
    )
    assert done.status == "success", done.error
    (file,) = folder.glob(f"*.{log_format}")
    return file


def test_samples_and_epochs_become_cases_and_trials(database: Database, log: Path) -> None:
    run = ingested(database, log)

    rows = trials(database, run.run_id)
    assert sorted((row.case_id, row.trial) for row in rows) == [
        ("2", 1),
        ("2", 2),
        ("sum", 1),
        ("sum", 2),
    ]
    assert run.suite == "sums"
    assert run.dataset == log.name
    assert (run.progress.scored, run.progress.errored) == (3, 1)
    failed = next(row for row in rows if row.error_kind)
    assert (failed.case_id, failed.trial, failed.error_kind) == ("2", 2, "harness_error")
    assert "the sandbox burnt down" in failed.error_message
    assert warnings(database, run.run_id) == []


def _seq(database: Database, run_id: str, case_id: str, trial: int) -> int:
    rows = trials(database, run_id)
    return next(row.seq for row in rows if (row.case_id, row.trial) == (case_id, trial))


def test_grades_have_inspects_own_meaning_and_nan_is_unscored(sqlite: Database, log: Path) -> None:
    run_id = ingested(sqlite, log).run_id

    right = scores(sqlite, run_id, _seq(sqlite, run_id, "sum", 2))
    wrong = scores(sqlite, run_id, _seq(sqlite, run_id, "2", 1))

    assert {name: (s.value, s.passed) for name, s in right.items()} == {
        "includes": (1.0, True),
        "several.good": (True, True),
        "several.grade": (0.5, False),
        "several.word": ("fine", None),
        "several.none": (None, None),
        "several.n": (3, None),
    }
    assert (right["several.none"].state, right["several.none"].reason) == ("unscored", "refusal")
    assert right["several.grade"].rationale == "because"
    assert right["several.grade"].detail == {"answer": "five", "value": "P", "reason": "refusal"}
    assert (wrong["includes"].value, wrong["includes"].passed) == (0.0, False)


def test_the_trace_has_the_solvers_calls_and_not_the_scorers(sqlite: Database, log: Path) -> None:
    run_id = ingested(sqlite, log).run_id

    found = observation(sqlite, run_id, _seq(sqlite, run_id, "sum", 1))

    assert [(e.kind, e.name, e.text, e.model, e.parent) for e in found.trace] == [
        ("llm_call", "", "tool call for tool add", "mockllm/model", None),
        ("tool_call", "add", "", None, None),
        ("tool_result", "add", "5", None, 1),
        ("llm_call", "", "it is 5", "mockllm/model", None),
    ]
    assert found.trace[1].data == {"x": 2, "y": 3}
    assert found.output == "it is 5"
    assert found.model == "mockllm/model"
    assert found.duration > 0
    usage = found.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (26, 6, 10)
    assert [event.at for event in found.trace] == sorted(event.at or 0 for event in found.trace)


def test_input_target_and_metadata_make_the_case(sqlite: Database, log: Path) -> None:
    run_id = ingested(sqlite, log).run_id

    plain = record_of(sqlite, run_id, _seq(sqlite, run_id, "sum", 1))
    chat = record_of(sqlite, run_id, _seq(sqlite, run_id, "2", 1))

    assert plain == {"id": "sum", "input": "2+3?", "target": "5", "metadata": {"level": 1}}
    assert chat["target"] == ["7", "seven"]
    assert [(m["role"], m["content"]) for m in chat["input"]] == [("user", "7?")]
    assert "id" not in chat["input"][0]


def test_a_suite_judges_a_log_over_its_own_dataset(sqlite: Database, log: Path) -> None:
    given = [{"id": name, "input": "q", "target": "it is 5"} for name in ("sum", "2", "more")]
    graders = [
        {"kind": "answer-match", "name": "match"},
        {"kind": "given", "name": "includes", "authority": "ground_truth"},
    ]

    run = ingested(sqlite, log, suite(dataset={"records": given}, graders=graders))

    assert run.suite == "tested"
    assert column(sqlite, run.run_id, "case_id") == ["sum", "sum", "2", "2"]
    assert column(sqlite, run.run_id, "verdict") == ["pass", "pass", "fail", "none"]


@pytest.mark.parametrize("name", ["torn.eval", "other.json", "lines.json"])
def test_what_is_no_log_is_refused(sqlite: Database, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text('{"id": "a", "scores": {"s": 1}}\n' * (2 if name == "lines.json" else 1))
    before = counts(sqlite)

    with pytest.raises(UserError) as caught:
        planned(sqlite, file)

    assert str(caught.value).startswith(f"results {str(file)!r} is no log that inspect-ai ")
    assert str(caught.value).endswith("(results in JSON lines have a name that ends in .jsonl)")
    assert counts(sqlite) == before


def test_without_inspect_ai_the_message_says_how_to_install_it(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    (tmp_path / "a.eval").write_bytes(b"")

    with pytest.raises(UserError, match=r"pip install 'weirbox\[inspect\]'"):
        planned(sqlite, tmp_path / "a.eval")
