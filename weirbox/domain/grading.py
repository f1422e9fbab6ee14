"""What a suite says about graders."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from weirbox.domain.base import Frozen, Seconds
from weirbox.domain.files import GraderFiles
from weirbox.domain.patterns import PatternText
from weirbox.domain.references import FunctionRef
from weirbox.domain.words import Authority


class GraderBase(Frozen):
    """What all graders have in common.

    Attributes:
        name: Unique within the suite; the metric's name.
        required: Whether a trial on which it yields no score goes to review.
        authority: Overrides the family's own.
        needs_compute: Whether it measures in the execute stage, before compute is released.
    """

    needs_compute: ClassVar[bool] = False

    name: str = Field(min_length=1, max_length=100)
    required: bool = True
    authority: Authority | None = None


class TestsPass(GraderBase):
    """Runs tests in compute and passes when all of them do (ground truth).

    Attributes:
        files: Laid over the work folder after the harness has ended; texts are
            templates over the case (``case.id``, ``case.input``, ``case.target``,
            ``case.record``) and the ``output``.
        runner: ``pytest`` collects and runs tests and reads its own report;
            ``script`` runs one Python file that must come to its end.
        target: What is run: pytest arguments, or the script's path. Name the test
            files, or pytest collects those that the harness left, too.
        timeout_s: Tests that take longer fail. Default: the compute's.
    """

    __test__ = False
    needs_compute = True

    kind: Literal["tests-pass"]
    files: GraderFiles = Field(default_factory=dict)
    runner: Literal["pytest", "script"] = "pytest"
    target: tuple[str, ...] = ()
    timeout_s: Seconds | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _a_script_is_one_file(self) -> Self:
        if self.runner == "script" and len(self.target) != 1:
            raise ValueError(
                f"grader {self.name!r}: 'target' of runner 'script' is the path of one file, "
                f"not {len(self.target)}"
            )
        return self


class CommandGrader(GraderBase):
    """Runs a command in compute and passes on exit status 0 (ground truth).

    Attributes:
        argv: The program and its arguments; templates like the files.
        files: Laid over the work folder; templates as for ``tests-pass``.
        stdin: A template, too.
        timeout_s: Default: the compute's.
    """

    needs_compute = True

    kind: Literal["command"]
    argv: tuple[str, ...] = Field(min_length=1)
    files: GraderFiles = Field(default_factory=dict)
    stdin: str | None = None
    timeout_s: Seconds | None = Field(default=None, gt=0)


class ScriptScore(GraderBase):
    """A python function ``f(case, observation) -> number, bool, text, or a dict of these``.

    Attributes:
        function: ``module:name`` or ``file.py:name``.
        pass_at: The score passes from here on; booleans pass when true.
    """

    kind: Literal["script-score"]
    function: FunctionRef
    pass_at: float | None = Field(default=None, allow_inf_nan=False)


class AnswerMatch(GraderBase):
    """Compares the answer with the target (objective).

    Attributes:
        mode: ``exact``; ``contains`` (the target stands in the answer);
            ``normalised`` (case, white space, punctuation and articles aside);
            ``regex`` (the target, or `pattern`, is found in the answer).
        target: The dot path of the target in the record, instead of the case's. A
            list of targets is matched by any of them.
        pattern: A regular expression for ``regex``, instead of the target.
    """

    kind: Literal["answer-match"]
    mode: Literal["exact", "contains", "normalised", "regex"] = "exact"
    target: str | None = None
    pattern: PatternText | None = None
    ignore_case: bool = False

    @model_validator(mode="after")
    def _a_pattern_is_for_regex(self) -> Self:
        if self.pattern is not None and self.mode != "regex":
            raise ValueError(f"grader {self.name!r}: 'pattern' needs mode 'regex'")
        return self


class TextMetric(GraderBase):
    """A text similarity between answer and target, 0 to 1.

    Attributes:
        metric: ``f1`` (token overlap), ``rouge-l`` (longest common subsequence
            F-measure), ``levenshtein`` (1 - distance / longer length), ``bleu``.
        pass_at: Passes from here on; absent means it does not bear on the verdict.
        target: The dot path of the target in the record, instead of the case's. Of a
            list of targets the best counts.
    """

    kind: Literal["text-metric"]
    metric: Literal["f1", "rouge-l", "levenshtein", "bleu"] = "f1"
    pass_at: float | None = Field(default=None, ge=0, le=1)
    target: str | None = None


class MeasureGrader(GraderBase):
    """Steps, cost or latency of a trial, from its trace and clock.

    Attributes:
        kind: ``steps`` counts LLM calls (tool calls where there are none),
            ``cost`` sums US dollars, ``latency`` is the harness's seconds.
        at_most: Passes up to here; absent means it does not bear on the verdict.
    """

    kind: Literal["steps", "cost", "latency"]
    at_most: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _measures_are_no_ground_truth(self) -> Self:
        if self.authority is Authority.GROUND_TRUTH:
            raise ValueError(f"grader {self.name!r}: {self.kind} is not ground truth")
        return self


class Given(GraderBase):
    """A score that was given elsewhere: the recorded trial's score of the grader's name.

    Whether it passed is what the recording says; else a boolean passes when true.

    Attributes:
        pass_at: A number passes from here on; absent means it does not bear on the verdict.
    """

    kind: Literal["given"]
    pass_at: float | None = Field(default=None, allow_inf_nan=False)


GraderSpec = Annotated[
    TestsPass | CommandGrader | ScriptScore | AnswerMatch | TextMetric | MeasureGrader | Given,
    Field(discriminator="kind"),
]
