"""command: a program's exit status decides."""

from __future__ import annotations

from pydantic import JsonValue

from weirbox.domain.case import Case
from weirbox.domain.grading import CommandGrader
from weirbox.domain.score import Score
from weirbox.domain.seams import ExecResult, Handle
from weirbox.domain.trace import Observation
from weirbox.domain.words import Reason
from weirbox.graders.base import ComputeGrader
from weirbox.graders.sandbox import (
    MISSING_EXECUTABLE,
    NOT_EXECUTABLE,
    TemplateGap,
    encode,
    fill_files,
    fill_in,
    last_line,
    tail,
    template_values,
)


class ExitStatusGrader(ComputeGrader[CommandGrader]):
    """Passes when a command in compute ends with exit status 0."""

    async def measure(
        self, case: Case, observation: Observation, handle: Handle | None
    ) -> list[Score]:
        """Lay the files, run the command, read its exit status."""
        if handle is None:
            return [self.errored(Reason.GRADER_ERROR, f"{self.name!r} was given no compute")]
        values = template_values(case, observation)
        try:
            files = fill_files(self.files, values)
            argv = [fill_in(word, values, where="'argv'") for word in self.spec.argv]
            stdin = encode(fill_in(self.spec.stdin or "", values, where="'stdin'"))
        except TemplateGap as gap:
            return [self.unscored(Reason.MISSING_EVIDENCE, str(gap))]
        await handle.put(files)
        ran = await handle.exec(argv, stdin=stdin, timeout_s=self.spec.timeout_s)
        return [self._read(argv[0], ran)]

    def _read(self, program: str, ran: ExecResult) -> Score:
        detail: JsonValue = {
            "exit_code": ran.exit_code,
            "stdout": tail(ran.stdout),
            "stderr": tail(ran.stderr),
        }
        if ran.timed_out:
            return self.errored(
                Reason.TIMEOUT, f"{program!r} timed out after {ran.duration:.1f} s", detail=detail
            )
        if ran.exit_code in (MISSING_EXECUTABLE, NOT_EXECUTABLE):
            fault = "is missing" if ran.exit_code == MISSING_EXECUTABLE else "cannot be executed"
            return self.errored(
                Reason.GRADER_ERROR,
                f"{program!r} {fault} in compute (exit status {ran.exit_code}): "
                f"{last_line(ran.stderr)}",
                detail=detail,
            )
        if ran.exit_code is None:
            return self.errored(Reason.GRADER_ERROR, f"{program!r} was killed", detail=detail)
        passed = ran.exit_code == 0
        rationale = f"exit status {ran.exit_code}"
        if not passed:
            rationale += f": {last_line(ran.stdout, ran.stderr)}"
        return self.scored(passed, passed=passed, rationale=rationale, detail=detail)
