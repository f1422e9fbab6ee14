"""Traces that trials' systems have sent to a platform, pulled in either stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.factories import PASSES, Fakes, go_on, judged, scores, suite, summary, trials
from tests.factories import drive as driven
from weirbox import traces
from weirbox.domain.platforms import SourceTrace
from weirbox.domain.pulling import Probe, Pulled
from weirbox.domain.run import RunSummary
from weirbox.domain.spec import Suite
from weirbox.domain.trace import Observation, TraceEvent, Usage
from weirbox.domain.tracing import trace_id_of
from weirbox.domain.words import (
    EventKind,
    FailedStage,
    ProbeState,
    PullState,
    RunStatus,
    ScoreState,
)
from weirbox.errors import TraceError
from weirbox.pipeline import reopening
from weirbox.store import queries
from weirbox.store.engine import Database
from weirbox.testing import MemorySink, ReplayJudge, ScriptedHarness
from weirbox.traces import collecting

STANDS = SourceTrace(platform="phoenix", base_url="http://p", scope="s", trace_id="t", url="u")

CALL = TraceEvent(
    kind=EventKind.LLM_CALL,
    name="chat",
    model="small",
    usage=Usage(input_tokens=7, output_tokens=2, cost_usd=0.5),
)
RESULT = TraceEvent(kind=EventKind.TOOL_CALL, name="look", parent=0)

COMPLETE = Pulled(state=PullState.COMPLETE, events=(CALL, RESULT), spans=2, trace=STANDS)
ABSENT = Pulled(state=PullState.ABSENT)


@dataclass
class Platform:
    """A platform that always answers the same."""

    answer: Pulled | TraceError
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def pull(self, correlation: str, trace_id: str) -> Pulled:
        self.asked.append((correlation, trace_id))
        if isinstance(self.answer, TraceError):
            raise self.answer
        return self.answer

    async def probe(self) -> Probe:
        return Probe(ProbeState.OK)

    async def aclose(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "PAUSE_S", 0.0)


def traced(made: Suite, collect: str) -> Suite:
    """The same suite, whose system sends its traces to Phoenix."""
    source = {"kind": "phoenix", "url": "http://127.0.0.1:1", "project": "p"}
    return Suite.model_validate(
        made.model_dump(exclude_unset=True) | {"trace": {"source": source, "collect": collect}}
    )


def drive(
    database: Database, made: Suite, platform: Platform, monkeypatch: Any, **fakes: Any
) -> RunSummary:
    monkeypatch.setattr(traces, "build", lambda spec, workshop: platform)
    return driven(database, made, fakes=Fakes(**fakes))


def observation(database: Database, run: RunSummary) -> Observation:
    digest = trials(database, run.run_id)[0].observation
    with database.read() as connection:
        return queries.load_observation(connection, digest)


@pytest.mark.parametrize("collect", ["job", "control-plane"])
def test_a_trace_is_pulled_once_and_kept_with_what_it_cost_and_where_it_stands(
    shared_database: Database, monkeypatch: pytest.MonkeyPatch, collect: str
) -> None:
    platform, sink = Platform(COMPLETE), MemorySink()
    made = suite(1, sinks=[{"kind": "jsonl", "path": "/nowhere"}])

    run = drive(shared_database, traced(made, collect), platform, monkeypatch, sink=sink)

    found = observation(shared_database, run)
    assert found.trace == (CALL, RESULT)
    assert (found.model, found.usage.cost_usd, found.source) == ("small", 0.5, STANDS)
    assert platform.asked == [(found.correlation, trace_id_of(found.correlation))]
    (sent,) = sink.sent.values()
    assert (sent.source_trace, sent.observation.trace) == (STANDS, (CALL, RESULT))
    assert (run.status, run.verdicts.passed) == (RunStatus.COMPLETED, 1)


@pytest.mark.parametrize("answer", [ABSENT, TraceError("refused", status=401)], ids=["no", "401"])
def test_a_trace_that_cannot_be_had_in_the_execute_stage_makes_the_trial_errored(
    shared_database: Database, monkeypatch: pytest.MonkeyPatch, answer: Pulled | TraceError
) -> None:
    platform = Platform(answer)

    run = drive(shared_database, traced(suite(1), "job"), platform, monkeypatch)

    (trial,) = trials(shared_database, run.run_id)
    found = observation(shared_database, run)
    assert (trial.error_kind, trial.state, trial.attempt) == ("collect", ScoreState.ERRORED, 1)
    assert repr(found.correlation) in trial.error_message
    assert found.output == "in 0"
    assert scores(shared_database, run.run_id)["match"].passed is True


@pytest.mark.parametrize(("answer", "error"), [(COMPLETE, None), (ABSENT, "collect")])
def test_a_trace_that_is_missing_is_pulled_again_and_nothing_is_executed_again(
    shared_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    answer: Pulled,
    error: str | None,
) -> None:
    platform, harness = Platform(ABSENT), ScriptedHarness()
    made = traced(suite(2), "job")
    run = drive(shared_database, made, platform, monkeypatch, harness=harness)
    assert run.progress.errored == 2

    platform.answer = answer
    reopening.retry(shared_database, run.run_id, reopening.Wanted(stage=FailedStage.COLLECT))
    again = go_on(shared_database, run.run_id, fakes=Fakes(harness=harness))

    (trial, _) = trials(shared_database, run.run_id)
    assert (trial.error_kind, trial.round) == (error, 2)
    assert again.progress.scored == (2 if error is None else 0)
    assert harness.runs == {"case-0": 1, "case-1": 1}
    found = observation(shared_database, run)
    assert found.source == answer.trace
    assert [event.kind for event in found.trace] == (
        [CALL.kind, RESULT.kind] if error is None else [EventKind.ERROR]
    )


@pytest.mark.parametrize("answer", [ABSENT, TraceError("refused", status=401)], ids=["no", "401"])
def test_a_trace_that_cannot_be_had_in_the_judge_stage_never_costs_ground_truth(
    shared_database: Database, monkeypatch: pytest.MonkeyPatch, answer: Pulled | TraceError
) -> None:
    platform = Platform(answer)

    run = drive(shared_database, traced(suite(1), "control-plane"), platform, monkeypatch)

    (trial,) = trials(shared_database, run.run_id)
    found = observation(shared_database, run)
    (event,) = found.trace
    assert (trial.error_kind, trial.state, trial.verdict) == (None, ScoreState.SCORED, "pass")
    assert event.kind is EventKind.ERROR
    assert repr(found.correlation) in event.text
    assert summary(shared_database, run.run_id).verdicts.passed == 1


def test_judges_see_a_trace_that_is_pulled_in_their_stage(
    shared_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = ReplayJudge(lambda request: PASSES)
    prompt = {"id": "any", "version": 1, "user": "Did it look? {{ trace }}"}
    primary = {"provider": "account", "model": "small"}
    made = judged(1, judges=[{"name": "quality", "prompt": prompt, "primary": primary}])
    platform = Platform(COMPLETE)

    run = drive(
        shared_database, traced(made, "control-plane"), platform, monkeypatch, provider=judge
    )

    assert run.progress.scored == 1
    assert "look" in judge.requests[0].user
