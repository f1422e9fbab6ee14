"""Judged trials sent to real MLflow and Phoenix servers, and read back over their own APIs."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.core.sink_cases import HEADER, a_sink, judged
from tests.factories import no_secret
from tests.platforms import Server
from weirbox import traces
from weirbox.domain.exporting import MlflowSink, PhoenixSink, SinkSpec
from weirbox.domain.platforms import SourceTrace
from weirbox.domain.seams import ExportOutcome, RunHeader, TrialExport, Workshop
from weirbox.domain.tracing import TraceSpec
from weirbox.domain.words import EventKind, ExportStatus, ProbeState, PullState

pytestmark = [pytest.mark.slow, pytest.mark.platforms]

EXPECTED = {
    "match": (True, "CODE"),
    "quality": (0.75, "LLM"),
    "tone": ("friendly", "CODE"),
    "safety": ("unscored: refusal. I cannot help with that.", "LLM"),
    "depth": ("skipped: policy_skip", "CODE"),
}
"""The scores that were sent, by name: the value or why there is none, and by whom."""


@dataclass(frozen=True)
class Real:
    """A real platform, and a run whose suite is nobody else's."""

    kind: str
    server: Server
    suite: str

    @property
    def spec(self) -> SinkSpec:
        model: Any = MlflowSink if self.kind == "mlflow" else PhoenixSink
        spec: SinkSpec = model(kind=self.kind, url=self.server.url)
        return spec

    @property
    def header(self) -> RunHeader:
        return HEADER.model_copy(update={"suite": self.suite, "run_id": self.suite})

    def trial(self, case_id: str, **changes: Any) -> TrialExport:
        own = {"suite": self.suite, "run_id": self.suite, "entry_digest": f"digest of {case_id}"}
        return judged(case_id, **(own | changes))

    async def send(self, *trials: TrialExport) -> list[ExportOutcome]:
        async with a_sink(self.spec, self.header) as sink:
            return [await sink.send(trial) for trial in trials]

    def traces(self) -> dict[str, int]:
        """How many spans each trace has."""
        return _mlflow_traces(self) if self.kind == "mlflow" else _phoenix_traces(self)

    async def arrived(self, traces: int) -> list[str]:
        """The traces, once so many are there whole: Phoenix inserts what it took a while later."""
        for _ in range(150):
            if list((found := self.traces()).values()) == [5] * traces:
                break
            await asyncio.sleep(0.2)
        assert list(found.values()) == [5] * traces
        return list(found)

    def scores(self, trace: str) -> dict[str, tuple[Any, str]]:
        """A trace's scores as `EXPECTED` has them."""
        found = _mlflow_scores(self, trace) if self.kind == "mlflow" else _phoenix(self, trace)
        assert len(found) == len(dict(found))
        return dict(found)


@pytest.fixture(params=["mlflow", "phoenix"])
def real(request: pytest.FixtureRequest) -> Real:
    server = request.getfixturevalue(f"{request.param}_server")
    return Real(request.param, server, f"suite-{uuid.uuid4().hex[:8]}")


async def test_a_trial_is_one_trace_with_scores_however_often_it_is_sent(real: Real) -> None:
    one, two = real.trial("one"), real.trial("two")
    outcomes = await real.send(one, one, two)
    outcomes += await real.send(two, one)
    assert [outcome.status for outcome in outcomes] == [ExportStatus.SUCCEEDED] * 5, outcomes
    for trace in await real.arrived(2):
        assert real.scores(trace) == EXPECTED


async def test_many_at_once_arrive_each_once_in_one_experiment(real: Real) -> None:
    async with a_sink(real.spec, real.header) as sink:
        trials = [real.trial(f"c{n}") for n in range(20)]
        outcomes = await asyncio.gather(*(sink.send(trial) for trial in trials))
    assert {outcome.status for outcome in outcomes} == {ExportStatus.SUCCEEDED}, outcomes
    assert len(await real.arrived(20)) == 20


async def test_the_link_of_a_trial_leads_to_a_page_and_names_its_trace(real: Real) -> None:
    (outcome,) = await real.send(real.trial("one"))
    assert outcome.url is not None
    (trace,) = await real.arrived(1)
    assert trace in outcome.url
    page = await asyncio.to_thread(httpx.get, outcome.url, follow_redirects=True, timeout=60)
    assert page.status_code == 200
    assert "html" in page.headers["content-type"]


async def test_scores_are_attached_to_a_trace_that_is_there_already(real: Real) -> None:
    await real.send(real.trial("original", scores=()))
    (original,) = await real.arrived(1)
    source = SourceTrace(
        platform=real.kind, base_url=real.server.url, scope=real.suite, trace_id=original
    )
    trial = real.trial("one", source_trace=source)
    outcomes = await real.send(trial, trial)
    assert [outcome.status for outcome in outcomes] == [ExportStatus.SUCCEEDED] * 2, outcomes
    assert list(real.traces()) == [original]
    assert real.scores(original) == EXPECTED


async def test_hostile_and_large_trials_arrive(real: Real) -> None:
    hostile = "nul \0 lone \ud800 <img src=x> end"
    trial = real.trial("big", input=hostile, output={"text": "x" * 3_000_000, hostile: hostile})
    (outcome,) = await real.send(trial)
    assert outcome.status is ExportStatus.SUCCEEDED, outcome.message
    assert len(await real.arrived(1)) == 1


async def test_what_was_sent_can_be_pulled_as_the_trace_that_it_was(real: Real) -> None:
    (outcome,) = await real.send(real.trial("one"))
    assert outcome.url is not None
    (trace,) = await real.arrived(1)
    scope = {"experiment" if real.kind == "mlflow" else "project": real.suite}
    source = {"kind": real.kind, "url": real.server.url} | scope
    spec = TraceSpec.model_validate({"source": source, "correlate": "id"})
    pulling = traces.build(spec, Workshop("/", lambda path: b"", no_secret))
    try:
        pulled = await pulling.pull("unknown", trace.removeprefix("tr-"))
    finally:
        await pulling.aclose()
    assert pulled.state is PullState.COMPLETE
    (asked,) = [event for event in pulled.events if event.kind is EventKind.LLM_CALL]
    assert asked.usage is not None
    assert (asked.model, asked.usage.input_tokens, asked.usage.output_tokens) == ("small", 10, 2)
    tools = [e for e in pulled.events if e.kind in (EventKind.TOOL_CALL, EventKind.TOOL_RESULT)]
    assert [(event.kind.value, event.name) for event in tools] == [
        ("tool_call", "add"),
        ("tool_result", "add"),
    ]


async def test_a_probe_finds_the_server(real: Real) -> None:
    async with a_sink(real.spec, real.header) as sink:
        assert (await sink.probe()).state is ProbeState.OK
    assert real.traces() == {}


# --- reading back ----------------------------------------------------------------------


def _get(real: Real, path: str, **params: Any) -> Any:
    return httpx.get(f"{real.server.url}{path}", params=params, timeout=60).json()


def _mlflow_traces(real: Real) -> dict[str, int]:
    found = _get(real, "/api/2.0/mlflow/experiments/get-by-name", experiment_name=real.suite)
    if "experiment" not in found:
        return {}
    place = {
        "type": "MLFLOW_EXPERIMENT",
        "mlflow_experiment": {"experiment_id": found["experiment"]["experiment_id"]},
    }
    traces = httpx.post(
        f"{real.server.url}/api/3.0/mlflow/traces/search",
        json={
            "locations": [place],
            "max_results": 500,
            "filter": f"tags.`weirbox.run` = '{real.suite}'",
        },
        timeout=60,
    ).json()
    ids = sorted(trace["trace_id"] for trace in traces.get("traces", []))
    path = "/api/3.0/mlflow/traces/get"
    return {one: len(_get(real, path, trace_id=one)["trace"]["spans"]) for one in ids}


def _mlflow_scores(real: Real, trace: str) -> list[tuple[str, tuple[Any, str]]]:
    info = _get(real, f"/api/3.0/mlflow/traces/{trace}")["trace"]["trace_info"]
    return [
        (
            one["assessment_name"],
            (
                one["feedback"]["error"]["error_message"]
                if "error" in one["feedback"]
                else one["feedback"]["value"],
                one["source"]["source_type"].removesuffix("_JUDGE"),
            ),
        )
        for one in info["assessments"]
    ]


def _phoenix_traces(real: Real) -> dict[str, int]:
    found: dict[str, int] = {}
    spans = _get(real, f"/v1/projects/{real.suite}/spans", limit=1000) if _project(real) else {}
    for span in spans.get("data", []):
        trace = span["context"]["trace_id"]
        found[trace] = found.get(trace, 0) + 1
    return dict(sorted(found.items()))


def _project(real: Real) -> bool:
    return any(one["name"] == real.suite for one in _get(real, "/v1/projects", limit=1000)["data"])


def _phoenix(real: Real, trace: str) -> list[tuple[str, tuple[Any, str]]]:
    path = f"/v1/projects/{real.suite}/trace_annotations"
    return [
        (one["name"], (_value(one["result"]), one["annotator_kind"]))
        for one in _get(real, path, trace_ids=trace, limit=1000)["data"]
    ]


def _value(result: dict[str, Any]) -> Any:
    """The value behind a number, a label and an explanation."""
    if result["score"] is not None:
        return (
            result["label"] == "true" if result["label"] in ("true", "false") else result["score"]
        )
    measured = result["label"].partition(":")[0] not in ("unscored", "skipped")
    return result["label"] if measured else result["explanation"]
