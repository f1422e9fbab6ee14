"""tests-pass: tests run in compute, and pass when all of them do."""

from __future__ import annotations

import secrets
import sys
from abc import abstractmethod
from collections.abc import Mapping

from pydantic import JsonValue

from weirbox.domain.case import Case
from weirbox.domain.grading import TestsPass
from weirbox.domain.score import Score
from weirbox.domain.seams import ExecResult, Handle
from weirbox.domain.trace import Observation
from weirbox.domain.words import Reason
from weirbox.graders.base import ComputeGrader
from weirbox.graders.pytest_report import Tally, read_report
from weirbox.graders.sandbox import (
    MISSING_EXECUTABLE,
    TemplateGap,
    end_of,
    fill_files,
    last_line,
    tail,
    template_values,
)

INTERPRETER = sys.executable
"""The interpreter that runs weirbox: the one known to have pytest and its report plugin."""

ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": ""}

NO_TESTS = 5
"""pytest's exit status when it collected no tests."""

NAMED_FAILURES = 50
"""How many failing tests a score names."""


def tests_grader(spec: TestsPass, files: Mapping[str, str | bytes]) -> TestsGrader:
    """Make the grader of the spec's runner."""
    return PytestGrader(spec, files) if spec.runner == "pytest" else ScriptGrader(spec, files)


class TestsGrader(ComputeGrader[TestsPass]):
    """Lays the test files over what the harness left, and runs them.

    Tests that exceed their time limit fail, since it is the answer that is slow.
    """

    __test__ = False

    async def measure(
        self, case: Case, observation: Observation, handle: Handle | None
    ) -> list[Score]:
        """Fill the files in, lay them, run the tests."""
        if handle is None:
            return [self.errored(Reason.GRADER_ERROR, f"{self.name!r} was given no compute")]
        values = template_values(case, observation)
        try:
            files = fill_files(self.files, values)
        except TemplateGap as gap:
            return [self.unscored(Reason.MISSING_EVIDENCE, str(gap))]
        return [await self.run(files, handle)]

    @abstractmethod
    async def run(self, files: dict[str, bytes], handle: Handle) -> Score:
        """Lay the filled files and run the tests."""

    def timed_out(self, ran: ExecResult) -> Score:
        """The fail of tests that took too long."""
        limit = self.spec.timeout_s or ran.duration
        return self.scored(
            False,
            passed=False,
            rationale=f"timeout: the tests took more than {limit:.1f} s",
            detail={"output": tail(ran.stdout, ran.stderr)},
        )


class PytestGrader(TestsGrader):
    """Runs pytest and believes its report only, never its exit status alone."""

    async def run(self, files: dict[str, bytes], handle: Handle) -> Score:
        """Run pytest with a report of a name that the answer cannot know."""
        await handle.put(files)
        report = f".weirbox-{secrets.token_hex(8)}.jsonl"
        ran = await handle.exec(
            [
                *(INTERPRETER, "-m", "pytest", "-p", "no:cacheprovider", "--color=no"),
                *("--tb=short", f"--report-log={handle.workdir}/{report}", *self.spec.target),
            ],
            env=ENVIRONMENT,
            timeout_s=self.spec.timeout_s,
        )
        if ran.timed_out:
            return self.timed_out(ran)
        try:
            tally = read_report(await handle.get(report))
        except FileNotFoundError:
            return self.unscored(
                Reason.INVALID_RUN,
                f"pytest wrote no report (exit status {ran.exit_code}): "
                f"{end_of(ran.stdout, ran.stderr)}",
                detail={"output": tail(ran.stdout, ran.stderr)},
            )
        return self._conclude(ran, tally)

    def _conclude(self, ran: ExecResult, tally: Tally) -> Score:
        failing = list(tally.failing)
        detail: JsonValue = {
            "passed": tally.passed,
            "failed": len(failing),
            "skipped": tally.skipped,
            "failing": [*failing[:NAMED_FAILURES]],
            "output": tail(ran.stdout, ran.stderr),
        }
        if failing:
            first = f"{failing[0]}: {tally.failing[failing[0]]}"
            rationale = f"{len(failing)} of {tally.total} failed; first {first}"
            return self.scored(False, passed=False, rationale=rationale, detail=detail)
        invalid = _why_invalid(ran.exit_code, tally)
        if invalid:
            return self.unscored(Reason.INVALID_RUN, invalid, detail=detail)
        return self.scored(True, passed=True, rationale=f"{tally.passed} passed", detail=detail)


def _why_invalid(exit_code: int | None, tally: Tally) -> str:
    """Why a run without a failing test is no pass; empty when it is one."""
    if tally.exit_status is None:
        return f"the process ended with exit status {exit_code} before pytest had finished"
    if exit_code == NO_TESTS or (exit_code == 0 and tally.total == 0):
        return "no tests were collected"
    if exit_code != 0 or tally.exit_status != 0:
        return f"pytest ended with exit status {exit_code} without a failing test"
    if tally.passed == 0:
        return f"no test passed: all {tally.skipped} were skipped or expected to fail"
    return ""


class ScriptGrader(TestsGrader):
    """Runs one Python file, which must come to its end.

    An answer that calls ``sys.exit(0)`` or ``os._exit(0)`` ends the script with
    exit status 0 before its assertions. So a last statement is appended that
    writes a random word, and without that word there is no pass.
    """

    async def run(self, files: dict[str, bytes], handle: Handle) -> Score:
        """Run the script with the last statement appended."""
        path = self.spec.target[0]
        if path not in files:
            try:
                files[path] = await handle.get(path)
            except FileNotFoundError:
                return self.unscored(
                    Reason.INVALID_RUN, f"{path!r} is neither among 'files' nor in the work folder"
                )
        word = secrets.token_hex(16)
        files[path] += f'\n__import__("os").write(1, b"\\n{word}\\n")\n'.encode()
        await handle.put(files)
        ran = await handle.exec([INTERPRETER, path], env=ENVIRONMENT, timeout_s=self.spec.timeout_s)
        if ran.timed_out:
            return self.timed_out(ran)
        if ran.exit_code == MISSING_EXECUTABLE and not await _has_interpreter(handle):
            return self.errored(
                Reason.GRADER_ERROR, f"the interpreter {INTERPRETER!r} is missing in compute"
            )
        return self._conclude(ran, path, word)

    def _conclude(self, ran: ExecResult, path: str, word: str) -> Score:
        came_to_its_end = word.encode() in ran.stdout.splitlines()
        passed = ran.exit_code == 0 and came_to_its_end
        if passed:
            rationale = "the script came to its end"
        elif ran.exit_code == 0:
            rationale = f"{path!r} ended with exit status 0 before its last line"
        else:
            rationale = f"exit status {ran.exit_code}: {last_line(ran.stdout, ran.stderr)}"
        output = tail(ran.stdout.replace(word.encode(), b""), ran.stderr)
        detail: JsonValue = {"exit_code": ran.exit_code, "output": output}
        return self.scored(passed, passed=passed, rationale=rationale, detail=detail)


async def _has_interpreter(handle: Handle) -> bool:
    """Whether the interpreter is there; the answer itself may end with status 127."""
    return (await handle.exec([INTERPRETER, "-c", ""])).exit_code == 0
