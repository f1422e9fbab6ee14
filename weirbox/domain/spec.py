"""The suite: what a YAML file or a Python object says about an evaluation.

Every model is frozen and refuses unknown fields. The families (graders, rules,
harnesses, sinks) are unions that are told apart by their ``kind``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator

from weirbox.domain.base import Count, Dollars, Frozen, Seconds
from weirbox.domain.exporting import SinkSpec
from weirbox.domain.files import CaseFiles
from weirbox.domain.grading import GraderSpec
from weirbox.domain.judging import JudgeSpec, ProviderSpec
from weirbox.domain.platforms import Name
from weirbox.domain.ruling import RuleSpec
from weirbox.domain.schedule import Schedule
from weirbox.domain.template import CASE_SLOTS, refuse_unknown_slots
from weirbox.domain.tracing import TraceSpec


class DatasetFormat(StrEnum):
    """How a dataset file is written."""

    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    YAML = "yaml"


class Preset(StrEnum):
    """Known shapes of records: where id, input and target stand."""

    OPENAI_EVALS = "openai-evals"
    INSPECT = "inspect"
    PROMPTFOO = "promptfoo"
    SWE_BENCH = "swe-bench"
    HUMANEVAL = "humaneval"
    MLFLOW = "mlflow"
    LANGFUSE = "langfuse"


class FieldMap(Frozen):
    """Where id, input and target stand in a record, as dot paths."""

    id: str | None = None
    input: str | None = None
    target: str | None = None


_OF_STORED = {"path", "records", "name", "version", "limit"}
"""What may be said of a dataset in the store; how a file is read was said when it was added."""


class DatasetSpec(Frozen):
    """Where the cases come from.

    Attributes:
        path: A file, relative to the suite file; or ``package:NAME/FILE`` for a
            data file inside an installed package. A ``.gz`` end is unpacked.
        records: The records themselves, instead of a path.
        name: A dataset that is kept in the store, instead of a path.
        version: Which version of it; the newest one if absent.
        on_error: ``stop`` at a malformed record, or ``quarantine`` it as a case.
        limit: Take only the first N records.
    """

    path: str | None = None
    records: tuple[JsonValue, ...] | None = None
    name: Name | None = None
    version: Count | None = Field(default=None, ge=1)
    format: DatasetFormat | None = None
    preset: Preset | None = None
    fields: FieldMap = FieldMap()
    encoding: str = "utf-8"
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    comment: str | None = Field(default=None, min_length=1, max_length=1)
    on_error: Literal["stop", "quarantine"] = "stop"
    limit: Count | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.path, self.records, self.name)) != 1:
            raise ValueError("give exactly one of 'path', 'records' and 'name'")
        if self.version is not None and self.name is None:
            raise ValueError("'version' goes with 'name' only")
        useless = [
            field
            for field, about in type(self).model_fields.items()
            if field not in _OF_STORED and getattr(self, field) != about.default
        ]
        if self.name is not None and useless:
            raise ValueError(
                f"a dataset in the store is taken as it was added: leave out {', '.join(useless)}"
            )
        return self


class ComputeSpec(Frozen):
    """The isolated place a harness runs in.

    Attributes:
        kind: ``auto`` takes bubblewrap where it works, else local.
        network: Whether the sandbox has a network.
        timeout_s: For one command, unless the harness or grader says otherwise.
        files: Files laid into the work folder before the harness starts: a text is
            a template over the case; ``{path: FILE}`` is a file as it is.
    """

    kind: Literal["auto", "local", "bubblewrap"] = "auto"
    network: bool = False
    timeout_s: Seconds = Field(default=60.0, gt=0)
    memory_mb: Count = Field(default=2048, gt=0)
    processes: Count = Field(default=256, gt=0)
    output_limit_bytes: Count = Field(default=10 * 2**20, gt=0)
    files: CaseFiles = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, str] = Field(default_factory=dict)


def _known_slots(template: Any) -> Any:
    refuse_unknown_slots(template, CASE_SLOTS, where="the template")
    return template


CaseTemplate = Annotated[str, AfterValidator(_known_slots)]
CaseTemplates = Annotated[tuple[str, ...], AfterValidator(_known_slots)]


class CommandHarness(Frozen):
    """A program run in compute; its answer is standard output or a file.

    Attributes:
        argv: The program and its arguments; templates over the case.
        stdin: A template over the case.
        output: ``stdout`` (the default) or the path of a file it writes.
        strip: Whether surrounding white space is taken off the answer.
        keep: Files to keep in the snapshot, as glob patterns.
        events: A JSONL file of trace events that the program writes.
    """

    kind: Literal["command"]
    argv: CaseTemplates = Field(min_length=1)
    stdin: CaseTemplate | None = None
    output: str = "stdout"
    strip: bool = True
    keep: tuple[str, ...] = ()
    events: str | None = None
    timeout_s: Seconds | None = Field(default=None, gt=0)
    version: str | None = None


class HttpHarness(Frozen):
    """A service called over HTTP.

    Attributes:
        url: A template over the case.
        body: JSON whose texts are templates over the case; default ``{"input": ...}``.
        output: The dot path of the answer in the JSON reply; the whole reply if absent.
        headers: Values may name a secret as ``secret:NAME``.
    """

    kind: Literal["http"]
    url: CaseTemplate
    method: Literal["POST", "PUT", "GET"] = "POST"
    headers: dict[str, str] = Field(default_factory=dict)
    body: JsonValue = None
    output: str | None = None
    timeout_s: Seconds = Field(default=60.0, gt=0)
    version: str | None = None


class PythonHarness(Frozen):
    """A function ``f(case) -> answer``, plain or async.

    It may return any JSON value, or an `Observation`.

    Attributes:
        function: ``module:name`` or ``file.py:name``.
    """

    kind: Literal["python"]
    function: str
    timeout_s: Seconds = Field(default=60.0, gt=0)
    version: str | None = None


class RecordedHarness(Frozen):
    """Answers that were produced elsewhere: from exactly one of three places.

    Attributes:
        field: The dot path of the answer in the case's record.
        path: A JSONL file of recorded trials, ``{"id", "output"}`` and more; see
            `weirbox.domain.recording.Recording`.
        template: A template over the case, its target included.
    """

    kind: Literal["recorded"]
    field: str | None = None
    path: str | None = None
    template: str | None = None
    version: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.field, self.path, self.template)) != 1:
            raise ValueError("give exactly one of 'field', 'path' and 'template'")
        return self


HarnessSpec = Annotated[
    CommandHarness | HttpHarness | PythonHarness | RecordedHarness, Field(discriminator="kind")
]


class Routing(Frozen):
    """Which trials are worth a judge.

    Attributes:
        clean_sample_rate: The share of clean trials that is judged all the same,
            chosen by a hash of the case id; only in suites with rules.
        confidence_floor: A primary verdict below it is escalated.
        quarantine_confidence: A judge's fail quarantines from here on.
    """

    clean_sample_rate: float = Field(default=0.20, ge=0, le=1)
    confidence_floor: float = Field(default=0.60, ge=0, le=1)
    quarantine_confidence: float = Field(default=0.70, ge=0, le=1)


class BudgetSpec(Frozen):
    """One hard limit for a run, over all drivers.

    Attributes:
        usd: The most that judges may cost; absent means no limit.
        calls: The most judge calls, replayed ones included.
        allow_unpriced: Accept models without a known price under a dollar limit.
    """

    usd: Dollars | None = Field(default=None, ge=0)
    calls: Count | None = Field(default=None, ge=0)
    allow_unpriced: bool = False


class Concurrency(Frozen):
    """How many trials each stage takes at a time, per driver.

    Attributes:
        execute: Default: what the compute can carry.
        window: The most trials between the start of their execution and their
            verdict; bounds memory. Default: twice execute plus judge.
        drivers: How many drivers may share the run.
    """

    execute: Count | None = Field(default=None, ge=1)
    judge: Count = Field(default=4, ge=1)
    export: Count = Field(default=2, ge=1)
    window: Count | None = Field(default=None, ge=1)
    drivers: Count = Field(default=1, ge=1)


class Suite(Frozen):
    """The versioned specification of an evaluation.

    Attributes:
        trace: Where the traces of the system under test are pulled from.
        schedule: When it is run by itself, once it is registered.
        auto_run: Whether new and changed cases of its dataset are run by themselves, once
            it is registered.
    """

    suite: Name
    description: str = ""
    dataset: DatasetSpec
    harness: HarnessSpec
    compute: ComputeSpec = ComputeSpec()
    trace: TraceSpec | None = None
    graders: tuple[GraderSpec, ...] = ()
    rules: tuple[RuleSpec, ...] = ()
    providers: dict[Name, ProviderSpec] = Field(default_factory=dict)
    judges: tuple[JudgeSpec, ...] = ()
    routing: Routing = Routing()
    budget: BudgetSpec = BudgetSpec()
    sinks: tuple[SinkSpec, ...] = ()
    concurrency: Concurrency = Concurrency()
    granularity: Literal["auto", "case"] = "auto"
    repeats: int = Field(default=1, ge=1, le=1000)
    preview: Count = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    reuse: bool = False
    category: str | None = None
    tags: tuple[str, ...] = ()
    schedule: Schedule | None = None
    auto_run: Literal["delta"] | None = None

    @field_validator("sinks")
    @classmethod
    def _sinks_differ(cls, sinks: tuple[SinkSpec, ...]) -> tuple[SinkSpec, ...]:
        _refuse_twins("sinks", [sink.name for sink in sinks])
        return sinks

    @model_validator(mode="after")
    def _growth_is_seen(self) -> Self:
        if self.auto_run is not None and self.dataset.name is None:
            raise ValueError(
                "'auto_run' needs a dataset in the store (dataset: {name: NAME}), as the growth "
                "of a file is not seen; add the file with: weirbox dataset add FILE --name NAME"
            )
        if self.auto_run is not None and self.dataset.version is not None:
            raise ValueError("'auto_run' needs a dataset without 'version': a version never grows")
        return self

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        _refuse_twins(
            "graders, rules and judges",
            [check.name for check in (*self.graders, *self.rules, *self.judges)],
        )
        if not (self.graders or self.rules or self.judges):
            raise ValueError("a suite needs at least one grader, rule or judge")
        for judge in self.judges:
            for tier in (judge.primary, judge.escalation):
                if tier is not None and tier.provider not in self.providers:
                    known = ", ".join(sorted(self.providers)) or "none"
                    raise ValueError(
                        f"judge {judge.name!r} names the provider {tier.provider!r}, "
                        f"which is not among 'providers' ({known})"
                    )
        return self


def _refuse_twins(what: str, names: list[str]) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise ValueError(f"{what} must have different names; used twice: {', '.join(twins)}")
