"""Platform sinks against fakes: what arrives, and that sending again changes no count."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from tests.core.sink_cases import HEADER, PLATFORMS, Platform, a_sink, held, judged, names
from weirbox.domain.platforms import SourceTrace
from weirbox.domain.score import Score
from weirbox.domain.trace import Observation, TraceEvent
from weirbox.domain.words import EventKind, ExportStatus
from weirbox.sinks import texts
from weirbox.testing.platform import Reply
from weirbox.testing.receivers import (
    LangfuseReceiver,
    LangsmithReceiver,
    MlflowReceiver,
    OtlpReceiver,
    PhoenixReceiver,
    Receiver,
)

ALL = pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS)
OTLP = pytest.mark.parametrize(
    "platform",
    [one for name, one in PLATFORMS.items() if name != "langsmith"],
    ids=[name for name in PLATFORMS if name != "langsmith"],
)


async def sent(platform: Platform, receiver: Receiver, *trials: Any, **changes: Any) -> list[Any]:
    """What a sink says of trials, one after another."""
    async with a_sink(platform.at(receiver, **changes)) as sink:
        return [await sink.send(trial) for trial in trials]


@ALL
async def test_a_trial_arrives_as_one_trace_with_its_scores(platform: Platform) -> None:
    with platform.receiver() as receiver:
        (outcome,) = await sent(platform, receiver, judged())
        assert outcome.status is ExportStatus.SUCCEEDED, outcome.message
        assert outcome.url
        assert list(names(receiver))[:5] == [
            *("one #1", "message user", "llm_call ask", "add", "error late")
        ]
        scores = 5 if not isinstance(receiver, OtlpReceiver) else 0
        assert len(receiver.scores) == scores


@ALL
async def test_a_repeated_export_changes_no_count(platform: Platform) -> None:
    with platform.receiver() as receiver:
        await sent(platform, receiver, judged("one"), judged("two"))
        before, scores = held(receiver), dict(receiver.scores)
        outcomes = await sent(platform, receiver, judged("two"), judged("one"), judged("one"))
        assert [outcome.status for outcome in outcomes] == [ExportStatus.SUCCEEDED] * 3
        assert held(receiver) == before
        assert receiver.scores == scores


@ALL
async def test_a_trial_that_is_judged_again_is_a_trace_of_its_own(platform: Platform) -> None:
    again = judged(round=2, judged_at="2026-11-02T00:00:00+00:00")
    only_sent_again = judged(round=2)
    with platform.receiver() as receiver:
        await sent(platform, receiver, judged())
        once = held(receiver)
        await sent(platform, receiver, only_sent_again)
        assert held(receiver) == once
        await sent(platform, receiver, again)
        assert held(receiver) == tuple(2 * n for n in once)


@ALL
async def test_a_run_is_set_up_once_however_many_trials_come_at_once(platform: Platform) -> None:
    with platform.receiver() as receiver:
        async with a_sink(platform.at(receiver)) as sink:
            outcomes = await asyncio.gather(*(sink.send(judged(f"c{n}")) for n in range(8)))
        assert {outcome.status for outcome in outcomes} == {ExportStatus.SUCCEEDED}
        made = [r for r in receiver.requests if r.path.endswith(("/create", "/sessions"))]
        assert len([r for r in made if r.method == "POST"]) <= 1
        assert len({outcome.url for outcome in outcomes}) == 8


@OTLP
async def test_spans_have_their_parents_their_times_and_both_vocabularies(
    platform: Platform,
) -> None:
    with platform.receiver() as receiver:
        await sent(platform, receiver, judged())
        root, message, asked, tool, failed = receiver.spans[:5]
    assert root.parent_id is None
    assert {message.parent_id, asked.parent_id, failed.parent_id} == {root.span_id}
    assert tool.parent_id == asked.span_id
    assert (asked.start - root.start, (asked.end or 0) - asked.start) == (10**8, 2 * 10**8)
    assert root.start <= message.start
    assert (failed.end or 0) <= (root.end or 0)
    assert failed.error == "too late"
    assert root.error is None
    expected = {
        "openinference.span.kind": "LLM",
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": "small",
        "llm.model_name": "small",
        "gen_ai.usage.input_tokens": 10,
        "llm.token_count.prompt": 10,
        "gen_ai.usage.output_tokens": 2,
        "llm.token_count.completion": 2,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "llm.cost.total": 0.001,
        "output.value": "I add.",
    }
    assert {name: asked.attributes.get(name) for name in expected} == expected
    assert tool.attributes["gen_ai.tool.call.arguments"] == '{"a": 2, "b": 2}'
    assert tool.attributes["gen_ai.tool.call.result"] == "4"
    facts = ("case_id", "trial", "verdict", "disposition", "run", "deciding")
    assert [root.attributes[f"weirbox.{name}"] for name in facts] == [
        *("one", 1, "pass", "clean", "run-1", "objective")
    ]


async def test_langsmith_gets_a_tree_of_runs() -> None:
    platform = PLATFORMS["langsmith"]
    with LangsmithReceiver() as receiver:
        await sent(platform, receiver, judged())
        root, _, asked, tool, failed = receiver.runs.values()
        project = receiver.projects["answers"]["id"]
        feedback = list(receiver.scores.values())
    assert {run["trace_id"] for run in (root, asked, tool, failed)} == {root["id"]}
    assert (asked["parent_run_id"], tool["parent_run_id"]) == (root["id"], asked["id"])
    assert tool["dotted_order"].startswith(asked["dotted_order"] + ".")
    assert (asked["run_type"], tool["run_type"], root["run_type"]) == ("llm", "tool", "chain")
    assert asked["outputs"]["usage_metadata"] == {
        "input_tokens": 10,
        "output_tokens": 2,
        "total_tokens": 12,
    }
    assert asked["extra"]["metadata"]["ls_model_name"] == "small"
    assert root["extra"]["metadata"]["weirbox.verdict"] == "pass"
    assert failed["error"] == "too late"
    assert {(one["run_id"], one["session_id"]) for one in feedback} == {(root["id"], project)}


# --- scores ---------------------------------------------------------------------------


async def test_mlflow_gets_typed_values_and_errors_for_what_was_not_measured() -> None:
    with MlflowReceiver() as receiver:
        await sent(PLATFORMS["mlflow"], receiver, judged())
        by_name = {one["assessment_name"]: one for one in receiver.scores.values()}
    assert {name: one["feedback"] for name, one in by_name.items()} == {
        "match": {"value": True},
        "quality": {"value": 0.75},
        "tone": {"value": "friendly"},
        "safety": {
            "error": {
                "error_code": "UNSCORED_REFUSAL",
                "error_message": "unscored: refusal. I cannot help with that.",
            }
        },
        "depth": {
            "error": {
                "error_code": "SKIPPED_POLICY_SKIP",
                "error_message": "skipped: policy_skip",
            }
        },
    }
    assert by_name["quality"]["source"] == {"source_type": "LLM_JUDGE", "source_id": "gpt"}
    assert by_name["match"]["source"] == {"source_type": "CODE", "source_id": "weirbox"}
    assert by_name["match"]["rationale"] == "equal"
    assert by_name["safety"]["metadata"]["reason"] == "refusal"


async def test_phoenix_gets_a_number_only_where_there_is_one() -> None:
    with PhoenixReceiver() as receiver:
        await sent(PLATFORMS["phoenix"], receiver, judged())
        by_name = {one["name"]: one for one in receiver.scores.values()}
    assert {name: one["result"] for name, one in by_name.items()} == {
        "match": {"score": 1.0, "label": "true", "explanation": "equal"},
        "quality": {"score": 0.75, "label": "pass", "explanation": "fine"},
        "tone": {"label": "friendly"},
        "safety": {
            "label": "unscored: refusal",
            "explanation": "unscored: refusal. I cannot help with that.",
        },
        "depth": {"label": "skipped: policy_skip", "explanation": "skipped: policy_skip"},
    }
    assert {one["annotator_kind"] for one in by_name.values()} == {"LLM", "CODE"}


async def test_langfuse_gets_categories_for_what_was_not_measured() -> None:
    with LangfuseReceiver() as receiver:
        await sent(PLATFORMS["langfuse"], receiver, judged(), environment="staging")
        root = receiver.spans[0]
        scores = receiver.scores.values()
    assert {one["name"]: (one["dataType"], one["value"]) for one in scores} == {
        "match": ("BOOLEAN", 1.0),
        "quality": ("NUMERIC", 0.75),
        "tone": ("CATEGORICAL", "friendly"),
        "safety": ("CATEGORICAL", "unscored: refusal"),
        "depth": ("CATEGORICAL", "skipped: policy_skip"),
    }
    assert {one["traceId"] for one in scores} == {root.trace_id}
    assert {one["environment"] for one in scores} == {"staging"}
    assert root.attributes["langfuse.trace.tags"] == ["run:run-1", "suite:answers"]
    assert root.attributes["langfuse.trace.output"] == "4"
    assert root.resource["langfuse.environment"] == "staging"


async def test_langsmith_gets_words_for_what_was_not_measured() -> None:
    with LangsmithReceiver() as receiver:
        await sent(PLATFORMS["langsmith"], receiver, judged())
        by_key = {one["key"]: one for one in receiver.scores.values()}
    assert {k: (one.get("score"), one.get("value")) for k, one in by_key.items()} == {
        "match": (1.0, "true"),
        "quality": (0.75, "pass"),
        "tone": (None, "friendly"),
        "safety": (None, "unscored: refusal"),
        "depth": (None, "skipped: policy_skip"),
    }
    assert by_key["quality"]["feedback_source"]["type"] == "model"
    assert by_key["match"]["feedback_source"]["type"] == "api"


async def test_otlp_receivers_get_a_span_for_each_score() -> None:
    with OtlpReceiver() as receiver:
        await sent(PLATFORMS["otel"], receiver, judged())
        root = receiver.spans[0]
        spans = {s.name: s for s in receiver.spans if s.name.startswith("evaluation ")}
    found = {
        name.removeprefix("evaluation "): (
            span.attributes.get("gen_ai.evaluation.score.value"),
            span.attributes.get("gen_ai.evaluation.score.label"),
        )
        for name, span in spans.items()
    }
    assert found == {
        "match": (1.0, "true"),
        "quality": (0.75, "pass"),
        "tone": (None, "friendly"),
        "safety": (None, "unscored: refusal"),
        "depth": (None, "skipped: policy_skip"),
    }
    assert {span.parent_id for span in spans.values()} == {root.span_id}
    (event,) = spans["evaluation match"].events
    assert event.name == "gen_ai.evaluation.result"
    assert event.attributes["gen_ai.evaluation.explanation"] == "equal"


# --- what a trial may hold -------------------------------------------------------------


@ALL
async def test_what_databases_refuse_arrives_in_a_form_that_they_take(platform: Platform) -> None:
    hostile = "nul \0 lone \ud800 end"
    trial = judged(
        hostile,
        input={hostile: [math.nan, math.inf]},
        output=hostile,
        observation=Observation(
            output=hostile,
            duration=math.nan,
            trace=(
                TraceEvent(kind=EventKind.LOG, name=hostile, text=hostile, at=math.inf),
                TraceEvent(kind=EventKind.LOG, data=[math.nan], parent=7, duration=-1.0),
                TraceEvent(kind=EventKind.LOG, parent=2),
            ),
        ),
        scores=(
            Score(name=hostile, value=math.nan, rationale=hostile),
            Score(name="huge", value=10**400),
            Score(name="words", value=hostile, detail={hostile: math.inf}),
        ),
    )
    with platform.receiver() as receiver:
        (outcome,) = await sent(platform, receiver, trial)
        assert outcome.status is ExportStatus.SUCCEEDED, outcome.message
        bodies = b"".join(request.body for request in receiver.requests)
        assert len(list(names(receiver))) == (7 if isinstance(receiver, OtlpReceiver) else 4)
    assert b"lone \\\\ud800" in bodies or b"lone \\ud800" in bodies
    assert b"nul \0" not in bodies
    assert not any(token in bodies for token in (b":NaN", b": NaN", b"Infinity", b":Inf"))


@ALL
async def test_an_oversized_field_is_cut_with_a_mark_that_says_where_the_whole_is(
    platform: Platform,
) -> None:
    header = HEADER.model_copy(update={"dashboard_url": "http://dash/run?run=run-1"})
    trial = judged(output="x" * 5_000_000, input=["y" * 5_000_000])
    with platform.receiver() as receiver:
        async with a_sink(platform.at(receiver), header) as sink:
            outcome = await sink.send(trial)
        assert outcome.status is ExportStatus.SUCCEEDED, outcome.message
        largest = max(len(request.body) for request in receiver.requests)
        text = b"".join(request.body for request in receiver.requests).decode(errors="replace")
    assert largest < 4 * texts.FIELD + 50_000
    assert f"[weirbox: cut after {texts.FIELD:,} of 5,000,000 characters; the whole: " in text
    assert "http://dash/run?run=run-1" in text
    assert "weirbox show run-1 'one'" in text


@OTLP
async def test_a_trace_of_ten_thousand_events_is_sent_in_bounded_requests(
    platform: Platform,
) -> None:
    long = "z" * 10_000
    trace = tuple(
        TraceEvent(kind=EventKind.LOG, name=f"e{n}", text=long, parent=n - 1 if n else None)
        for n in range(10_000)
    )
    trial = judged(observation=Observation(trace=trace), scores=())
    with platform.receiver() as receiver:
        (outcome,) = await sent(platform, receiver, trial)
        assert outcome.status is ExportStatus.SUCCEEDED, outcome.message
        assert len(receiver.spans) == 10_001
        assert max(len(request.body) for request in receiver.requests) < 2 * texts.TRIAL + 10**6


# --- at the trace's own platform --------------------------------------------------------


@pytest.mark.parametrize("name", ["mlflow", "phoenix", "langfuse", "langsmith"])
async def test_scores_are_attached_to_a_trace_that_is_there_already(name: str) -> None:
    platform = PLATFORMS[name]
    with platform.receiver() as receiver:
        await sent(platform, receiver, judged("original"))
        before = held(receiver)
        original = _trace_id(receiver)
        source = SourceTrace(
            platform=name,
            base_url=receiver.url,
            scope=None if name == "langfuse" else "answers",
            trace_id=original,
            url="http://there/project/project-1/traces/x",
        )
        (outcome,) = await sent(platform, receiver, judged("one", source_trace=source))
        assert outcome.status is ExportStatus.SUCCEEDED, outcome.message
        spans, runs, scores = held(receiver)
        assert (spans, runs, scores) == (before[0], before[1], before[2] + 5)
        assert {_trace_of(one) for one in receiver.scores.values()} == {original}
        assert original in (outcome.url or "")
        other = {"url": "http://there/project/another/traces/x"}
        if name != "langfuse":
            other = {"base_url": "http://elsewhere"}
        elsewhere = source.model_copy(update=other)
        await sent(platform, receiver, judged("two", source_trace=elsewhere))
        assert held(receiver)[0] + held(receiver)[1] == 2 * (before[0] + before[1])


def _trace_id(receiver: Receiver) -> str:
    if isinstance(receiver, LangsmithReceiver):
        return next(iter(receiver.runs))
    found = receiver.spans[0].trace_id
    return f"tr-{found}" if isinstance(receiver, MlflowReceiver) else found


def _trace_of(score: dict[str, Any]) -> str:
    return str(score.get("trace_id") or score.get("traceId"))


# --- partial answers --------------------------------------------------------------------


@OTLP
async def test_spans_that_are_rejected_though_all_is_well_make_a_partial_export(
    platform: Platform,
) -> None:
    with platform.receiver() as receiver:
        receiver.rejects = 2
        (outcome,) = await sent(platform, receiver, judged())
    assert outcome.status is ExportStatus.PARTIAL
    assert "2 spans were rejected: too old" in outcome.message
    assert outcome.url


async def test_a_207_is_looked_into() -> None:
    with LangsmithReceiver() as receiver:
        receiver.refused = {"add"}
        (outcome,) = await sent(PLATFORMS["langsmith"], receiver, judged())
    assert outcome.status is ExportStatus.PARTIAL
    assert "1 runs were rejected: add" in outcome.message


@pytest.mark.parametrize("name", ["mlflow", "langfuse", "langsmith"])
async def test_a_score_that_is_refused_makes_a_partial_export(name: str) -> None:
    platform = PLATFORMS[name]

    class Refusing(platform.receiver):  # type: ignore[name-defined,misc]
        def answer(self, request: Any) -> Reply:
            if b"I cannot help" in request.body and b'"match"' not in request.body:
                return Reply(422, {"message": "no such score"})
            reply: Reply = super().answer(request)
            return reply

    with Refusing() as receiver:
        (outcome,) = await sent(platform, receiver, judged())
        assert outcome.status is ExportStatus.PARTIAL
        assert "score 'safety'" in outcome.message
        assert "HTTP 422" in outcome.message
        assert len(receiver.scores) == 4


async def test_phoenix_waits_for_the_trace_and_else_leaves_the_scores_for_when_it_comes() -> None:
    with PhoenixReceiver() as receiver:
        receiver.lag = 2
        await sent(PLATFORMS["phoenix"], receiver, judged("soon"))
        assert [r.one("sync") for r in receiver.requests[1:]] == ["true"] * 3
        receiver.lag = 100
        (outcome,) = await sent(PLATFORMS["phoenix"], receiver, judged("late"))
        assert receiver.requests[-1].one("sync") == ""
        assert outcome.status is ExportStatus.SUCCEEDED
        assert len(receiver.scores) == 10
