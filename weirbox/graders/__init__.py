"""Graders score observations with code, one module per family."""

from __future__ import annotations

from weirbox.domain.grading import (
    AnswerMatch,
    CommandGrader,
    Given,
    GraderSpec,
    MeasureGrader,
    ScriptScore,
    TestsPass,
    TextMetric,
)
from weirbox.domain.seams import Grader, Workshop
from weirbox.functions import read_files
from weirbox.graders.answer_match import AnswerMatchGrader
from weirbox.graders.base import grade_safely
from weirbox.graders.command import ExitStatusGrader
from weirbox.graders.given import GivenGrader
from weirbox.graders.measures import measure_grader
from weirbox.graders.script_score import ScriptScoreGrader
from weirbox.graders.tests_pass import tests_grader
from weirbox.graders.text_metric import TextMetricGrader


def build(spec: GraderSpec, workshop: Workshop) -> Grader:
    """Make the grader that a suite describes.

    Raises:
        SuiteError: When a user's function cannot be loaded.
    """
    match spec:
        case TestsPass():
            return tests_grader(spec, read_files(spec.files, workshop))
        case CommandGrader():
            return ExitStatusGrader(spec, read_files(spec.files, workshop))
        case ScriptScore():
            return ScriptScoreGrader(spec, workshop)
        case AnswerMatch():
            return AnswerMatchGrader(spec)
        case TextMetric():
            return TextMetricGrader(spec)
        case MeasureGrader():
            return measure_grader(spec)
        case Given():
            return GivenGrader(spec)


__all__ = ["build", "grade_safely"]
