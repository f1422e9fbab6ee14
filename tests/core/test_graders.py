"""Graders: an answer's fault is a fail, a grader's fault is errored, and neither is the other."""

from __future__ import annotations

import asyncio
import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from weirbox import graders
from weirbox.domain.case import Case
from weirbox.domain.grading import GraderSpec
from weirbox.domain.score import Score
from weirbox.domain.seams import ExecResult, Handle, Workshop
from weirbox.domain.trace import Observation, StageError, TraceEvent, Usage
from weirbox.domain.words import Authority, ErrorKind, EventKind, Reason, ScoreState
from weirbox.errors import ComputeLost, SuiteError
from weirbox.graders.text_metric import bleu, f1, levenshtein, rouge_l
from weirbox.graders.wording import normalise

SPEC: TypeAdapter[Any] = TypeAdapter(GraderSpec)
FEW_PLUGINS = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "pytest_reportlog.plugin",
}
"""Halves the time that pytest takes to start."""


class FolderHandle:
    """A handle whose commands are real processes in a folder."""

    id = "folder"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def workdir(self) -> str:
        return str(self.folder)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = None,
        output_limit: int | None = None,
    ) -> ExecResult:
        return await asyncio.to_thread(self._run, argv, env, stdin, timeout_s)

    def _run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        stdin: bytes | None,
        timeout_s: float | None,
    ) -> ExecResult:
        start = time.perf_counter()

        def result(code: int | None, out: bytes, err: bytes) -> ExecResult:
            return ExecResult(code, out, err, code is None, False, time.perf_counter() - start)

        try:
            ran = subprocess.run(
                argv,
                cwd=self.folder,
                env={"PATH": "/usr/bin:/bin", **FEW_PLUGINS, **(env or {})},
                input=stdin,
                capture_output=True,
                timeout=timeout_s,
            )
        except FileNotFoundError as error:
            return result(127, b"", str(error).encode())
        except subprocess.TimeoutExpired as late:
            return result(None, late.stdout or b"", late.stderr or b"")
        return result(ran.returncode, ran.stdout, ran.stderr)

    async def put(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)

    async def get(self, path: str, *, limit: int = 100 * 2**20) -> bytes:
        return (self.folder / path).read_bytes()

    async def glob(self, pattern: str) -> list[str]:
        return sorted(str(found.relative_to(self.folder)) for found in self.folder.glob(pattern))

    async def quiesce(self) -> None: ...

    async def release(self) -> None: ...


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    return FolderHandle(tmp_path)


def workshop(source: str = "") -> Workshop:
    def no_secret(name: str) -> str:
        raise AssertionError(name)

    return Workshop(folder="/suite", read_file=lambda path: source.encode(), read_secret=no_secret)


def case(target: Any = None, **record: Any) -> Case:
    return Case(id="c1", input="question", target=target, record=record)


def stopped(kind: ErrorKind, output: Any = None) -> Observation:
    return Observation(output=output, error=StageError(kind=kind, message="it stopped"))


async def grade(
    spec: dict[str, Any],
    of: Case,
    observation: Observation | str | None,
    handle: Handle | None = None,
    source: str = "",
) -> list[Score]:
    grader = graders.build(SPEC.validate_python({"name": "check", **spec}), workshop(source))
    if not isinstance(observation, Observation):
        observation = Observation(output=observation)
    return await graders.grade_safely(grader, of, observation, handle)


async def grade_one(*args: Any, **kwargs: Any) -> Score:
    (score,) = await grade(*args, **kwargs)
    return score


def detail_of(score: Score) -> dict[str, Any]:
    assert isinstance(score.detail, dict)
    return score.detail


def refused(spec: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        SPEC.validate_python({"name": "check", **spec})
    return str(caught.value)


# tests-pass with pytest

PYTEST = {
    "kind": "tests-pass",
    "files": {
        "solution.py": "{{ output }}",
        "test_it.py": "from solution import add\n\ndef test_add():\n    assert add(2, 3) == 5\n",
    },
    "target": ("test_it.py",),
}
RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"


async def test_a_right_answer_passes_its_tests(handle: Handle) -> None:
    score = await grade_one(PYTEST, case(), RIGHT, handle)
    assert (score.state, score.value, score.passed) == (ScoreState.SCORED, True, True)
    assert score.authority is Authority.GROUND_TRUTH
    assert (detail_of(score)["passed"], detail_of(score)["failing"]) == (1, [])
    assert score.duration


async def test_a_wrong_answer_fails_with_the_ids_of_the_failing_tests(handle: Handle) -> None:
    score = await grade_one(PYTEST, case(), WRONG, handle)
    assert (score.value, score.passed) == (False, False)
    assert detail_of(score)["failing"] == ["test_it.py::test_add"]
    assert "1 of 1 failed" in score.rationale
    assert "-1 == 5" in score.rationale


async def test_an_answer_that_does_not_import_fails(handle: Handle) -> None:
    score = await grade_one(PYTEST, case(), "def add(:", handle)
    assert score.value is False
    assert "SyntaxError" in score.rationale


async def test_the_tests_replace_what_the_harness_left_in_their_place(
    handle: Handle, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text("def test_nothing():\n    pass\n")
    assert (await grade_one(PYTEST, case(), WRONG, handle)).value is False


INVALID = {
    "a conftest that leaves with status 0": (
        {"conftest.py": "import os\nos._exit(0)\n"},
        RIGHT,
        "exit status 0",
    ),
    "an answer that leaves with status 0 in a test": (
        {},
        "import os\ndef add(a, b):\n    os._exit(0)\n",
        "exit status 0 before pytest had finished",
    ),
    "a killed interpreter": (
        {},
        "import os\ndef add(a, b):\n    os.kill(os.getpid(), 9)\n",
        "before pytest had finished",
    ),
    "no tests": ({"test_it.py": "x = 1\n"}, RIGHT, "no tests were collected"),
    "a target that is not there": ({"elsewhere.py": ""}, RIGHT, "exit status 4"),
    "an answer that skips its tests": (
        {},
        "import pytest\ndef add(a, b):\n    pytest.skip('no')\n",
        "no test passed",
    ),
    "an answer that expects to fail": (
        {},
        "import pytest\ndef add(a, b):\n    pytest.xfail('no')\n",
        "no test passed",
    ),
    "a broken option": (
        {"pytest.ini": "[pytest]\naddopts = --no-such-option\n"},
        RIGHT,
        "no-such-option",
    ),
}


@pytest.mark.parametrize("name", INVALID)
async def test_a_run_that_measured_nothing_is_invalid_and_no_pass(
    name: str, handle: Handle
) -> None:
    files, answer, words = INVALID[name]
    spec = PYTEST | {"files": {**PYTEST["files"], **files}}  # type: ignore[dict-item]
    if "elsewhere.py" in files:
        spec["target"] = ("gone.py",)
    score = await grade_one(spec, case(), answer, handle)
    assert (score.state, score.reason) == (ScoreState.UNSCORED, Reason.INVALID_RUN)
    assert (score.value, score.passed) == (None, None)
    assert words in score.rationale


async def test_failures_known_before_a_kill_still_count(handle: Handle) -> None:
    tests = "import os\ndef test_a():\n    assert False\ndef test_b():\n    os._exit(0)\n"
    spec = PYTEST | {"files": {"test_it.py": tests}}
    score = await grade_one(spec, case(), "", handle)
    assert score.value is False
    assert detail_of(score)["failing"] == ["test_it.py::test_a"]


async def test_skipped_tests_do_not_spoil_a_pass_and_failed_set_up_does(handle: Handle) -> None:
    passing = "import pytest\ndef test_a(): pass\n@pytest.mark.skip\ndef test_b(): pass\n"
    score = await grade_one(PYTEST | {"files": {"test_it.py": passing}}, case(), "", handle)
    assert (score.value, detail_of(score)["skipped"]) == (True, 1)
    failing = passing + "@pytest.fixture\ndef x(): raise OSError\ndef test_c(x): pass\n"
    score = await grade_one(PYTEST | {"files": {"test_it.py": failing}}, case(), "", handle)
    assert detail_of(score)["failing"] == ["test_it.py::test_c"]


async def test_tests_that_take_too_long_fail(handle: Handle) -> None:
    slow = "import time\ndef add(a, b):\n    time.sleep(60)\n"
    score = await grade_one(PYTEST | {"timeout_s": 2.0}, case(), slow, handle)
    assert (score.value, score.passed) == (False, False)
    assert "timeout" in score.rationale


async def test_a_template_that_names_what_the_case_lacks_is_missing_evidence(
    handle: Handle,
) -> None:
    spec = PYTEST | {"files": {"test_it.py": "{{ case.record.test }}"}}
    score = await grade_one(spec, case(other=1), RIGHT, handle)
    assert (score.state, score.reason) == (ScoreState.UNSCORED, Reason.MISSING_EVIDENCE)
    assert "'case.record.test', which case 'c1' does not have" in score.rationale


@pytest.mark.parametrize("kind", ["tests-pass", "command"])
async def test_a_grader_of_compute_without_compute_is_errored(kind: str) -> None:
    spec = {"kind": kind} | ({"argv": ("true",)} if kind == "command" else {})
    score = await grade_one(spec, case(), "x", None)
    assert (score.state, score.reason) == (ScoreState.ERRORED, Reason.GRADER_ERROR)


# tests-pass with a script, in the shape of HumanEval

SCRIPT = {
    "kind": "tests-pass",
    "runner": "script",
    "files": {
        "solution.py": "{{ output }}",
        "run_tests.py": "from solution import {{ case.record.entry_point }}\n"
        "{{ case.record.test }}\n"
        "check({{ case.record.entry_point }})",
    },
    "target": ("run_tests.py",),
}
PROBLEM = case(
    entry_point="add",
    test="def check(candidate):\n    assert candidate(2, 3) == 5, 'two and three'\n",
)

SCRIPT_ANSWERS = {
    "right": (RIGHT, True, "came to its end"),
    "right and chatty": (f"print('hello', end='')\n{RIGHT}", True, "came to its end"),
    "right and silenced": (f"import sys\nsys.stdout = None\n{RIGHT}", True, "came to its end"),
    "right and talking when it leaves": (
        f"import atexit\natexit.register(print, 'bye')\n{RIGHT}",
        True,
        "came to its end",
    ),
    "wrong": (WRONG, False, "two and three"),
    "syntax error": ("def add(:", False, "SyntaxError"),
    "sys.exit(0)": ("import sys\nsys.exit(0)\n", False, "before its last line"),
    "os._exit(0)": ("import os\nos._exit(0)\n", False, "before its last line"),
    "status 127 of its own": ("import os\nos._exit(127)\n", False, "exit status 127"),
    "nothing": ("", False, "ImportError"),
    "a lone surrogate": ("x = '\ud800'\n" + RIGHT, True, "came to its end"),
    "text that looks like a template": (f"s = '{{{{ case.id }}}}'\n{RIGHT}", True, "its end"),
}


@pytest.mark.parametrize("name", SCRIPT_ANSWERS)
async def test_a_script_passes_only_at_its_end(name: str, handle: Handle) -> None:
    answer, passed, rationale = SCRIPT_ANSWERS[name]
    score = await grade_one(SCRIPT, PROBLEM, answer, handle)
    assert (score.state, score.value, score.passed) == (ScoreState.SCORED, passed, passed)
    assert rationale in score.rationale


async def test_an_endless_script_fails(handle: Handle) -> None:
    score = await grade_one(SCRIPT | {"timeout_s": 0.5}, PROBLEM, "while True:\n    pass\n", handle)
    assert score.value is False
    assert "timeout" in score.rationale


async def test_a_script_may_be_one_that_the_harness_left(handle: Handle, tmp_path: Path) -> None:
    spec = SCRIPT | {"files": {}}
    assert (await grade_one(spec, PROBLEM, "", handle)).reason is Reason.INVALID_RUN
    (tmp_path / "run_tests.py").write_text("assert 1 == 1")
    assert (await grade_one(spec, PROBLEM, "", handle)).value is True


async def test_a_missing_interpreter_is_the_graders_fault(
    handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weirbox.graders.tests_pass.INTERPRETER", "/no/such/python")
    script = await grade_one(SCRIPT, PROBLEM, RIGHT, handle)
    assert (script.state, script.reason) == (ScoreState.ERRORED, Reason.GRADER_ERROR)
    assert "/no/such/python" in script.rationale
    tests = await grade_one(PYTEST, case(), RIGHT, handle)
    assert (tests.state, tests.reason) == (ScoreState.UNSCORED, Reason.INVALID_RUN)
    assert "/no/such/python" in tests.rationale


# command


async def test_a_command_passes_by_its_exit_status(handle: Handle) -> None:
    spec = {
        "kind": "command",
        "argv": ("/bin/sh", "check.sh", "{{ case.target }}"),
        "files": {"check.sh": 'read answer\ntest "$answer" = "$1" || { echo differs; exit 3; }\n'},
        "stdin": "{{ output }}\n",
    }
    right = await grade_one(spec, case("42"), "42", handle)
    assert (right.value, right.passed, right.authority) == (True, True, Authority.GROUND_TRUTH)
    wrong = await grade_one(spec, case("42"), "41", handle)
    assert (wrong.value, wrong.passed) == (False, False)
    assert wrong.rationale == "exit status 3: differs"


COMMAND_FAULTS = {
    "missing": (("no-such-program",), Reason.GRADER_ERROR, "no-such-program"),
    "missing below a shell": (("/bin/sh", "-c", "nothing-here"), Reason.GRADER_ERROR, "127"),
    "late": (("/bin/sleep", "30"), Reason.TIMEOUT, "timed out"),
}


@pytest.mark.parametrize("name", COMMAND_FAULTS)
async def test_a_command_that_cannot_judge_is_errored(name: str, handle: Handle) -> None:
    argv, reason, words = COMMAND_FAULTS[name]
    spec = {"kind": "command", "argv": argv, "timeout_s": 0.5}
    score = await grade_one(spec, case(), "x", handle)
    assert (score.state, score.reason) == (ScoreState.ERRORED, reason)
    assert words in score.rationale


# script-score

SCORES = {
    "a number": ("return 0.5", [("check", 0.5, None)]),
    "a number at the threshold": ("return 3.0", [("check", 3.0, True)]),
    "a number below the threshold": ("return 2", [("check", 2, False)]),
    "a boolean": ("return True", [("check", True, True)]),
    "a false boolean": ("return False", [("check", False, False)]),
    "a text": ("return 'blue'", [("check", "blue", None)]),
    "what it was given": ("return case.id + observation.output", [("check", "c1answer", None)]),
    "several": (
        "return {'a': 1, 'b': False, 'c': 'x'}",
        [("check.a", 1, None), ("check.b", False, False), ("check.c", "x", None)],
    ),
    "an array's scalar": ("import numpy\n    return numpy.int64(7)", [("check", 7, None)]),
    "an array's boolean": ("import numpy\n    return numpy.bool_(1)", [("check", True, True)]),
}


@pytest.mark.parametrize("definition", ["def", "async def"])
@pytest.mark.parametrize("name", SCORES)
async def test_a_users_function_gives_scores_as_they_are_typed(name: str, definition: str) -> None:
    body, expected = SCORES[name]
    spec: dict[str, Any] = {"kind": "script-score", "function": "mine.py:f"}
    if "threshold" in name:
        spec["pass_at"] = 3
    source = f"{definition} f(case, observation):\n    {body}\n"
    scores = await grade(spec, case(), "answer", source=source)
    assert [(score.name, score.value, score.passed) for score in scores] == expected
    assert [type(score.value) for score in scores] == [type(value) for _, value, _ in expected]
    assert {score.authority for score in scores} == {Authority.OBJECTIVE}


BAD_SCORES = {
    "nan": ("return float('nan')", ScoreState.ERRORED, Reason.OUT_OF_RANGE, "nan"),
    "infinity": ("return float('-inf')", ScoreState.ERRORED, Reason.OUT_OF_RANGE, "-inf"),
    "beyond floats": ("return 10**400", ScoreState.ERRORED, Reason.OUT_OF_RANGE, "1000"),
    "a list": ("return [1]", ScoreState.ERRORED, Reason.GRADER_ERROR, "returned a list"),
    "none": ("return None", ScoreState.UNSCORED, Reason.EMPTY, "returned None"),
    "no scores": ("return {}", ScoreState.UNSCORED, Reason.EMPTY, "no scores"),
    "raises": (
        "raise ValueError('bad')",
        ScoreState.ERRORED,
        Reason.GRADER_ERROR,
        "ValueError: bad",
    ),
    "interrupts": (
        "raise KeyboardInterrupt",
        ScoreState.ERRORED,
        Reason.GRADER_ERROR,
        "KeyboardInterrupt",
    ),
    "exits": ("raise SystemExit(3)", ScoreState.ERRORED, Reason.GRADER_ERROR, "SystemExit: 3"),
    "stops": ("raise StopIteration", ScoreState.ERRORED, Reason.GRADER_ERROR, "StopIteration"),
    "cancels": (
        "import asyncio\n    raise asyncio.CancelledError",
        ScoreState.ERRORED,
        Reason.GRADER_ERROR,
        "CancelledError",
    ),
}


@pytest.mark.parametrize("definition", ["def", "async def"])
@pytest.mark.parametrize("name", BAD_SCORES)
async def test_a_function_that_gives_no_score_is_a_value_not_an_exception(
    name: str, definition: str
) -> None:
    body, state, reason, words = BAD_SCORES[name]
    if (name, definition) == ("stops", "async def"):
        words = "RuntimeError"
    spec = {"kind": "script-score", "function": "mine.py:f", "required": False}
    source = f"{definition} f(case, observation):\n    {body}\n"
    score = await asyncio.wait_for(grade_one(spec, case(), "x", source=source), 10)
    assert (score.state, score.reason, score.value) == (state, reason, None)
    assert words in score.rationale
    assert score.required is False


async def test_one_bad_value_of_several_leaves_the_others() -> None:
    source = "def f(case, observation):\n    return {'a': 1.0, 'b': float('nan')}\n"
    spec = {"kind": "script-score", "function": "mine.py:f"}
    good, bad = await grade(spec, case(), "x", source=source)
    assert (good.name, good.value) == ("check.a", 1.0)
    assert (bad.name, bad.state, bad.reason) == (
        "check.b",
        ScoreState.ERRORED,
        Reason.OUT_OF_RANGE,
    )


async def test_the_stack_of_a_raising_function_is_kept() -> None:
    source = "def f(case, observation):\n    return 1 / 0\n"
    score = await grade_one(
        {"kind": "script-score", "function": "mine.py:f"}, case(), "x", source=source
    )
    assert "line 2, in f" in detail_of(score)["stack"]


async def test_a_function_that_changes_its_case_changes_a_copy() -> None:
    source = "def f(case, observation):\n    return case.record.pop('answer')\n"
    given_case = case(answer=5)
    spec = {"kind": "script-score", "function": "mine.py:f"}
    assert (await grade_one(spec, given_case, "x", source=source)).value == 5
    assert given_case.record == {"answer": 5}


def test_a_function_that_is_not_there_is_refused_when_it_is_built() -> None:
    spec = SPEC.validate_python({"name": "s", "kind": "script-score", "function": "mine.py:gone"})
    with pytest.raises(SuiteError, match="no function 'gone'"):
        graders.build(spec, workshop("x = 1"))


# answer-match

MATCHES: dict[str, tuple[dict[str, Any], Any, Any, bool]] = {
    "exact": ({}, "Paris", "Paris", True),
    "exact is exact": ({}, "Paris.", "Paris", False),
    "exact, case ignored": ({"ignore_case": True}, "PARIS", "Paris", True),
    "exact, case counts": ({}, "paris", "Paris", False),
    "exact, any of a list": ({}, "b", ["a", "b"], True),
    "exact, none of a list": ({}, "c", ["a", "b"], False),
    "exact, a list as a whole": ({}, ["a", "b"], ["a", "b"], True),
    "exact, a list in another order": ({}, ["b", "a"], ["a", "b"], False),
    "exact, number and text": ({}, "42", 42, True),
    "exact, number written otherwise": ({}, "42.0", 42, True),
    "exact, text and number": ({}, 42, "42", True),
    "exact, text number is a text": ({}, "42.0", "42", False),
    "exact, boolean and text": ({}, "true", True, True),
    "exact, 1 is not true": ({}, "1", True, False),
    "exact, true is not 1": ({}, True, 1, False),
    "exact, objects in any order": ({}, {"b": 1, "a": [2]}, {"a": [2.0], "b": 1}, True),
    "exact, JSON text and object": ({}, '{"a": 1}', {"a": 1}, True),
    "exact, object and JSON text": ({}, {"a": 1}, '{"a":  1}', True),
    "exact, other objects": ({}, {"a": 1}, {"a": 2}, False),
    "exact, empty answer": ({}, "", "x", False),
    "contains": ({"mode": "contains"}, "It is Paris, yes", "Paris", True),
    "contains not": ({"mode": "contains"}, "It is paris", "Paris", False),
    "contains, case ignored": ({"mode": "contains", "ignore_case": True}, "paris!", "Paris", True),
    "contains, in JSON": ({"mode": "contains"}, {"city": "Zürich"}, "Zürich", True),
    "contains, a number": ({"mode": "contains"}, "there are 5 of them", 5, True),
    "contains, 5 is not in 15": ({"mode": "contains"}, "there are 15 or 5.5", 5, False),
    "contains, 1,000": ({"mode": "contains"}, "costs $1,000.00", 1000, True),
    "contains, minus": ({"mode": "contains"}, "it is -5 outside", 5, False),
    "contains, a range": ({"mode": "contains"}, "3-5 days", 5, True),
    "normalised": ({"mode": "normalised"}, "  The  PARIS!", "paris", True),
    "normalised, apostrophe": ({"mode": "normalised"}, "don’t", "dont", True),
    "normalised, full width": ({"mode": "normalised"}, "Ｐａｒｉｓ", "paris", True),
    "normalised, composed": ({"mode": "normalised"}, "Zu\u0308rich", "Zürich", True),
    "normalised, acronym": ({"mode": "normalised"}, "U.S.A.", "USA", True),
    "normalised, hyphen": ({"mode": "normalised"}, "well-known", "well known", True),
    "normalised, sign": ({"mode": "normalised"}, "-5", "5", False),
    "normalised, point": ({"mode": "normalised"}, "3.14", "314", False),
    "normalised, fraction": ({"mode": "normalised"}, "1/2", "12", False),
    "normalised, thousands": ({"mode": "normalised"}, "1,234,567", "1234567", True),
    "normalised, end of sentence": ({"mode": "normalised"}, "42.", "42", True),
    "normalised, choice A": ({"mode": "normalised"}, "B", "A", False),
    "normalised, choice A stays": ({"mode": "normalised"}, "(A)", "A", True),
    "normalised, empty is no choice": ({"mode": "normalised"}, "", "A", False),
    "normalised, punctuation": ({"mode": "normalised"}, "", "?", False),
    "normalised, number": ({"mode": "normalised"}, "5.0", 5, True),
    "normalised, boolean": ({"mode": "normalised"}, "True.", True, True),
    "normalised, Devanagari vowels": ({"mode": "normalised"}, "की", "का", False),
    "regex": ({"mode": "regex"}, "id 42!", r"\d+", True),
    "regex not": ({"mode": "regex"}, "id", r"\d+", False),
    "regex, case ignored": ({"mode": "regex", "ignore_case": True}, "PARIS", "paris", True),
    "regex, the suite's": ({"mode": "regex", "pattern": "^yes"}, "yes, sure", None, True),
    "regex, any of a list": ({"mode": "regex"}, "b1", ["a.", "b."], True),
    "regex, a number": ({"mode": "regex"}, "it is 42", 42, True),
}


@pytest.mark.parametrize("name", MATCHES)
async def test_answers_match(name: str) -> None:
    options, answer, target, expected = MATCHES[name]
    score = await grade_one(
        {"kind": "answer-match", **options}, case(target), Observation(output=answer)
    )
    assert score.value is expected
    assert score.passed is expected
    assert score.authority is Authority.OBJECTIVE


async def test_a_target_can_stand_elsewhere_in_the_record() -> None:
    spec = {"kind": "answer-match", "target": "gold.0.text"}
    assert (await grade_one(spec, case("no", gold=[{"text": "yes"}]), "yes")).value is True


NO_TARGETS: dict[str, tuple[dict[str, Any], Any]] = {
    "none": ({}, None),
    "no items": ({}, []),
    "null items": ({}, [None]),
    "no such path": ({"target": "gold.text"}, "x"),
    "empty text to contain": ({"mode": "contains"}, ""),
    "empty texts to search": ({"mode": "regex"}, ["", ""]),
}


@pytest.mark.parametrize("kind", ["answer-match", "text-metric"])
@pytest.mark.parametrize("name", NO_TARGETS)
async def test_without_a_target_there_is_no_score(name: str, kind: str) -> None:
    options, target = NO_TARGETS[name]
    if kind == "text-metric" and "mode" in options:
        return
    score = await grade_one({"kind": kind, **options}, case(target), "x")
    assert (score.state, score.reason) == (ScoreState.UNSCORED, Reason.MISSING_EVIDENCE)


@pytest.mark.parametrize("kind", ["answer-match", "text-metric"])
async def test_no_output_is_a_fail_only_where_the_system_under_test_is_to_blame(kind: str) -> None:
    spec = {"kind": kind} | ({"pass_at": 0.5} if kind == "text-metric" else {})
    nothing = await grade_one(spec, case("x"), None)
    assert (nothing.state, nothing.reason) == (ScoreState.UNSCORED, Reason.EMPTY)
    for kind_of_error in (ErrorKind.HARNESS_TIMEOUT, ErrorKind.HARNESS_EXIT):
        late = await grade_one(spec, case("x"), stopped(kind_of_error))
        assert late.state is ScoreState.SCORED
        assert (late.value, late.passed) == (0, False)
        assert "it stopped" in late.rationale
    lost = await grade_one(spec, case("x"), stopped(ErrorKind.COLLECT))
    assert (lost.state, lost.reason) == (ScoreState.UNSCORED, Reason.STAGE_ERROR)
    partial = await grade_one(spec, case("x"), stopped(ErrorKind.HARNESS_EXIT, "x"))
    assert partial.passed is True


async def test_a_runaway_pattern_is_given_up_while_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weirbox.domain.patterns.SEARCH_LIMIT_S", 0.2)
    spec = {"kind": "answer-match", "mode": "regex", "pattern": "(a|aa)+$"}
    grading = asyncio.create_task(grade_one(spec, case(), "a" * 80 + "b"))
    turns = 0
    while not grading.done():
        await asyncio.sleep(0.005)
        turns += 1
    score = grading.result()
    assert (score.state, score.reason) == (ScoreState.ERRORED, Reason.TIMEOUT)
    assert "(a|aa)+$" in score.rationale
    assert turns >= 5


async def test_a_target_that_is_no_pattern_is_the_datasets_fault() -> None:
    score = await grade_one({"kind": "answer-match", "mode": "regex"}, case("(x"), "x")
    assert (score.state, score.reason) == (ScoreState.ERRORED, Reason.GRADER_ERROR)
    assert "'(x' is no regular expression" in score.rationale


# text-metric

METRICS = {
    # worked by hand: 2 shared words of 3 and 4
    "f1": (f1, "cat sat down", "the cat sat there still", 4 / 7),
    "f1, multiplicity": (f1, "go go go", "go", 0.5),
    "f1, articles aside": (f1, "the cat", "a cat", 1.0),
    "f1, nothing on both sides": (f1, "", "", 1.0),
    "f1, nothing": (f1, "", "cat", 0.0),
    # Lin 2004, section 3: S1 and S2 share "police the gunman", S1 and S3 "the gunman"
    "rouge-l of Lin's S2": (rouge_l, "police kill the gunman", "police killed the gunman", 0.75),
    "rouge-l of Lin's S3": (rouge_l, "the gunman kill police", "police killed the gunman", 0.5),
    "rouge-l, no words": (rouge_l, "", "", 1.0),
    "levenshtein": (levenshtein, "kitten", "sitting", 1 - 3 / 7),
    "levenshtein, nothing": (levenshtein, "", "", 1.0),
    "bleu, same": (bleu, "the cat sat on the mat", "the cat sat on the mat", 1.0),
    "bleu, other": (bleu, "dog", "the cat sat on the mat", 0.0),
    # precisions 5/6, 3/5, 1/4, 1/6 (smoothed from 0 of 3), no brevity penalty
    "bleu, one word off": (
        bleu,
        "the cat lay on the mat",
        "the cat sat on the mat",
        (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25,
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_text_metrics_give_the_values_of_their_formulas(name: str) -> None:
    metric, answer, target, expected = METRICS[name]
    assert metric(answer, target) == pytest.approx(expected)


async def test_the_best_of_several_targets_counts_from_its_threshold_on() -> None:
    spec = {"kind": "text-metric", "metric": "levenshtein", "pass_at": 0.75}
    score = await grade_one(spec, case(["zzzz", "abcd"]), "abcx")
    assert (score.value, score.passed) == (0.75, True)
    assert '"abcd"' in score.rationale
    free = await grade_one({"kind": "text-metric"}, case("abc"), "abc")
    assert (free.value, free.passed) == (1.0, None)


@given(st.text(max_size=30), st.text(max_size=30))
def test_text_metrics_stay_between_0_and_1(answer: str, target: str) -> None:
    for metric in (f1, rouge_l, levenshtein):
        assert 0.0 <= metric(answer, target) <= 1.0
        assert metric(answer, answer) == 1.0


@given(st.text(max_size=40))
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


# steps, cost, latency


def event(kind: EventKind, cost: float | None = None) -> TraceEvent:
    return TraceEvent(kind=kind, usage=Usage(cost_usd=cost))


LLM, TOOL, LOG = EventKind.LLM_CALL, EventKind.TOOL_CALL, EventKind.LOG
MEASURES: dict[str, tuple[str, Observation, float | None]] = {
    "steps": ("steps", Observation(trace=(event(LLM), event(TOOL), event(LLM))), 2),
    "steps by tools": ("steps", Observation(trace=(event(TOOL), event(LOG))), 1),
    "steps unknown": ("steps", Observation(trace=(event(LOG),)), None),
    "steps without a trace": ("steps", Observation(), None),
    "cost": ("cost", Observation(usage=Usage(cost_usd=0.25)), 0.25),
    "cost of nothing": ("cost", Observation(usage=Usage(cost_usd=0.0)), 0.0),
    "cost summed": ("cost", Observation(trace=(event(LLM, 0.1), event(LLM, 0.2))), 0.3),
    "cost partly unknown": ("cost", Observation(trace=(event(LLM, 0.1), event(LLM))), None),
    "cost unknown": ("cost", Observation(usage=Usage(input_tokens=5)), None),
    "latency": ("latency", Observation(duration=1.5), 1.5),
    "latency not measured": ("latency", Observation(), None),
}


@pytest.mark.parametrize("name", MEASURES)
async def test_measures_are_read_and_what_is_unknown_is_unscored(name: str) -> None:
    kind, observation, expected = MEASURES[name]
    score = await grade_one({"kind": kind, "at_most": 1.5}, case(), observation)
    assert score.authority is Authority.OTHER
    if expected is None:
        assert (score.state, score.reason) == (ScoreState.UNSCORED, Reason.MISSING_EVIDENCE)
        return
    assert score.value == pytest.approx(expected)
    assert score.passed is (expected <= 1.5)
    free = await grade_one({"kind": kind}, case(), observation)
    assert free.passed is None


async def test_a_cost_that_is_no_number_is_out_of_range() -> None:
    score = await grade_one({"kind": "cost"}, case(), Observation(usage=Usage(cost_usd=math.nan)))
    assert (score.state, score.reason) == (ScoreState.ERRORED, Reason.OUT_OF_RANGE)


# what holds for all


@pytest.mark.parametrize("authority", [None, "ground_truth", "other"])
async def test_a_suite_can_override_authority_and_requirement(authority: str | None) -> None:
    spec = {"kind": "answer-match", "authority": authority, "required": False}
    score = await grade_one(spec, case("x"), "x")
    assert score.authority == (authority or "objective")
    assert score.required is False


class Raising:
    """A grader of someone else's."""

    name = "theirs"
    needs_compute = False

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def grade(
        self, case: Case, observation: Observation, *, handle: Handle | None
    ) -> list[Score]:
        raise self.error


async def test_whatever_a_grader_raises_becomes_a_score() -> None:
    (score,) = await graders.grade_safely(
        Raising(KeyError("gone\0\ud800")), case(), Observation(), None
    )
    assert (score.name, score.state, score.reason) == (
        "theirs",
        ScoreState.ERRORED,
        Reason.GRADER_ERROR,
    )
    assert score.rationale.startswith("KeyError: ")
    assert "\0" not in score.rationale
    assert score.rationale.encode("utf-8")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ComputeLost("gone")], ids=type)
async def test_cancelling_and_lost_compute_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        await graders.grade_safely(Raising(error), case(), Observation(), None)


async def test_cancelling_reaches_an_async_users_function() -> None:
    source = "import asyncio\nasync def f(case, observation):\n    await asyncio.sleep(60)\n"
    spec = {"kind": "script-score", "function": "mine.py:f"}
    grading = asyncio.create_task(grade_one(spec, case(), "x", source=source))
    await asyncio.sleep(0.01)
    grading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await grading


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a bad pattern": (
        {"kind": "answer-match", "mode": "regex", "pattern": "(a"},
        "'(a' is no regular expression",
    ),
    "an empty pattern": (
        {"kind": "answer-match", "mode": "regex", "pattern": ""},
        "matches everything",
    ),
    "a pattern without its mode": (
        {"kind": "answer-match", "pattern": "a"},
        "'pattern' needs mode 'regex'",
    ),
    "a function without a name": ({"kind": "script-score", "function": "mine.py"}, "module:name"),
    "a function with a bad name": (
        {"kind": "script-score", "function": "mine.py:a b"},
        "'a b' is no name",
    ),
    "a threshold that is no number": (
        {"kind": "script-score", "function": "m:f", "pass_at": math.nan},
        "finite",
    ),
    "a script that is none": ({"kind": "tests-pass", "runner": "script"}, "one file, not 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_suite_is_refused_for(name: str) -> None:
    spec, words = REFUSED[name]
    assert words in refused(spec)
