"""Spans to events: every vocabulary, tokens counted once, order, parents, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weirbox.domain.trace import TraceEvent, Usage, total_usage
from weirbox.domain.words import EventKind, PullState
from weirbox.traces.attributes import SpanEvent, langfuse_usage, span_of
from weirbox.traces.chat import Call, Message, messages_of
from weirbox.traces.mapping import TEXT_LIMIT, events_of, standing
from weirbox.traces.otlp import hex_id
from weirbox.traces.spans import Span

MS = 1_000_000


def span(
    id: str,
    parent: str | None = None,
    at: int = 0,
    *,
    took: int | None = 10,
    error: str | None = None,
    events: tuple[SpanEvent, ...] = (),
    **attributes: Any,
) -> Span:
    """A span that begins after so many milliseconds; ``__`` stands for a dot."""
    return span_of(
        {name.replace("__", "."): value for name, value in attributes.items()},
        trace_id="t",
        id=id,
        parent=parent,
        name=f"span {id}",
        start=at * MS,
        end=None if took is None else (at + took) * MS,
        failed=error is not None,
        status=error or "",
        events=events,
    )


def chat(id: str, parent: str | None = None, at: int = 0, **more: Any) -> Span:
    """A model's call with ten tokens in and one out."""
    counts = {"gen_ai__usage__input_tokens": 10, "gen_ai__usage__output_tokens": 1}
    return span(id, parent, at, **({"gen_ai__operation__name": "chat"} | counts | more))


def shown(events: tuple[TraceEvent, ...]) -> list[tuple[str, str, int | None]]:
    """Kinds, names and parents."""
    return [(event.kind.value, event.name, event.parent) for event in events]


# --- vocabularies ---------------------------------------------------------------------

ASKED = [{"role": "user", "content": "How warm?"}]
ANSWERED = [{"role": "assistant", "content": "14 °C"}]

CALLS: dict[str, dict[str, Any]] = {
    "gen_ai": {
        "gen_ai__operation__name": "chat",
        "gen_ai__request__model": "m",
        "gen_ai__usage__input_tokens": 30,
        "gen_ai__usage__output_tokens": 4,
        "gen_ai__usage__cache_read__input_tokens": 20,
        "gen_ai__usage__cost": 0.5,
        "gen_ai__input__messages": json.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": "How warm?"}]}]
        ),
        "gen_ai__output__messages": json.dumps(
            [{"role": "assistant", "parts": [{"type": "text", "content": "14 °C"}]}]
        ),
    },
    "gen_ai of old": {
        "gen_ai__operation__name": "text_completion",
        "gen_ai__request__model": "m",
        "gen_ai__usage__prompt_tokens": 30,
        "gen_ai__usage__completion_tokens": 4,
        "gen_ai__usage__cache_read_input_tokens": 20,
        "gen_ai__usage__cost": 0.5,
        "gen_ai__prompt__0__role": "user",
        "gen_ai__prompt__0__content": "How warm?",
        "gen_ai__completion__0__role": "assistant",
        "gen_ai__completion__0__content": "14 °C",
    },
    "gen_ai in events": {
        "gen_ai__operation__name": "generate_content",
        "gen_ai__response__model": "m",
        "gen_ai__usage__input_tokens": 30,
        "gen_ai__usage__output_tokens": 4,
        "gen_ai__usage__cache_read__input_tokens": 20,
        "gen_ai__usage__cost": 0.5,
        "events": (
            SpanEvent("gen_ai.user.message", {"content": "How warm?"}),
            SpanEvent("gen_ai.choice", {"index": 0, "message": json.dumps(ANSWERED[0])}),
        ),
    },
    "openinference": {
        "openinference__span__kind": "LLM",
        "llm__model_name": "m",
        "llm__token_count__prompt": 30,
        "llm__token_count__completion": 4,
        "llm__token_count__prompt_details__cache_read": 20,
        "llm__cost__total": 0.5,
        "llm__input_messages__0__message__role": "user",
        "llm__input_messages__0__message__contents__0__message_content__type": "text",
        "llm__input_messages__0__message__contents__0__message_content__text": "How warm?",
        "llm__output_messages__0__message__role": "assistant",
        "llm__output_messages__0__message__content": "14 °C",
        "input__value": "something else",
    },
    "mlflow": {
        "mlflow__spanType": '"CHAT_MODEL"',
        "mlflow__llm__model": '"m"',
        "mlflow__chat__tokenUsage": {
            "input_tokens": 30,
            "output_tokens": 4,
            "cache_read_input_tokens": 20,
        },
        "mlflow__llm__cost": json.dumps({"total_cost": 0.5}),
        "mlflow__spanInputs": json.dumps({"messages": ASKED, "model": "m"}),
        "mlflow__spanOutputs": {"choices": [{"index": 0, "message": ANSWERED[0]}]},
    },
    "langfuse": {
        "langfuse__observation__type": "generation",
        "langfuse__observation__model__name": "m",
        "langfuse__observation__usage_details": json.dumps(
            {"input": 10, "input_cached_tokens": 20, "output": 4, "total": 34}
        ),
        "langfuse__observation__cost_details": json.dumps({"total": 0.5}),
        "langfuse__observation__input": json.dumps(ASKED),
        "langfuse__observation__output": "14 °C",
    },
}


@pytest.mark.parametrize("vocabulary", CALLS)
def test_a_models_call_is_told_in_any_vocabulary(vocabulary: str) -> None:
    usage = Usage(input_tokens=30, cached_tokens=20, output_tokens=4, cost_usd=0.5)

    assert events_of([span("1", **CALLS[vocabulary])]) == (
        TraceEvent(kind=EventKind.MESSAGE, name="user", text="How warm?", at=0.0),
        TraceEvent(
            kind=EventKind.LLM_CALL,
            name="span 1",
            text="14 °C",
            at=0.0,
            duration=0.01,
            usage=usage,
            model="m",
        ),
    )


TOOLS: dict[str, dict[str, Any]] = {
    "gen_ai": {
        "gen_ai__operation__name": "execute_tool",
        "gen_ai__tool__name": "weather",
        "gen_ai__tool__call__arguments": '{"city": "Oslo"}',
        "gen_ai__tool__call__result": '{"warm": 14}',
    },
    "openinference": {
        "openinference__span__kind": "TOOL",
        "tool__name": "weather",
        "input__value": '{"city": "Oslo"}',
        "output__value": '{"warm": 14}',
    },
    "phoenix": {
        "openinference__span__kind": "TOOL",
        "tool__name": "weather",
        "tool__parameters__city": "Oslo",
        "output__value": '{"warm": 14}',
    },
    "mlflow": {
        "mlflow__spanType": "TOOL",
        "gen_ai__tool__name": "weather",
        "mlflow__spanInputs": {"city": "Oslo"},
        "mlflow__spanOutputs": {"warm": 14},
    },
}


@pytest.mark.parametrize("vocabulary", TOOLS)
def test_a_tools_call_is_told_in_any_vocabulary(vocabulary: str) -> None:
    assert events_of([span("1", **TOOLS[vocabulary])]) == (
        TraceEvent(
            kind=EventKind.TOOL_CALL,
            name="weather",
            data={"city": "Oslo"},
            at=0.0,
            duration=0.01,
        ),
        TraceEvent(
            kind=EventKind.TOOL_RESULT, name="weather", data={"warm": 14}, at=0.01, parent=0
        ),
    )


def test_a_step_keeps_what_went_in_and_came_out() -> None:
    step = span("1", input__value=json.dumps(ASKED), output__value="14 °C", took=None)

    assert events_of([step]) == (
        TraceEvent(
            kind=EventKind.LOG,
            name="span 1",
            data={"input": ASKED, "output": "14 °C"},
            at=0.0,
        ),
    )


# --- tokens ---------------------------------------------------------------------------


def test_tokens_that_outer_spans_repeat_are_counted_once() -> None:
    spans = [
        span("agent", gen_ai__usage__input_tokens=20, gen_ai__usage__output_tokens=2),
        chat("wrapper", "agent", 1),
        chat("one", "wrapper", 2),
        chat("two", "agent", 3),
    ]

    events = events_of(spans)

    assert total_usage(events) == Usage(input_tokens=20, output_tokens=2)
    assert [e.name for e in events if e.kind is EventKind.LLM_CALL] == ["span one", "span two"]


def test_tokens_that_only_an_outer_span_knows_are_counted_there() -> None:
    spans = [
        span("agent", gen_ai__usage__input_tokens=20),
        span("call", "agent", gen_ai__operation__name="chat"),
    ]

    events = events_of(spans)

    assert [(event.kind, event.usage) for event in events] == [
        (EventKind.LOG, Usage(input_tokens=20)),
        (EventKind.LLM_CALL, None),
    ]


def test_a_step_with_tokens_and_no_call_below_is_a_call() -> None:
    (event,) = events_of([span("embed", gen_ai__usage__input_tokens=7)])

    assert (event.kind, event.usage) == (EventKind.LLM_CALL, Usage(input_tokens=7))


def test_cached_tokens_beside_the_input_are_added_to_it() -> None:
    (event,) = events_of([chat("1", gen_ai__usage__cache_read__input_tokens=90)])

    assert event.usage == Usage(input_tokens=100, cached_tokens=90, output_tokens=1)


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (
            {"input": 2, "input_cached_tokens": 7, "input_cache_creation": 3, "output": 5},
            Usage(input_tokens=12, cached_tokens=7, cache_write_tokens=3, output_tokens=5),
        ),
        (
            {"input": 2, "cache_read_input_tokens": 7, "output": 5, "total": 14},
            Usage(input_tokens=9, cached_tokens=7, output_tokens=5),
        ),
        (
            {"input": 9, "cache_read.input_tokens": 7, "output": 5},
            Usage(input_tokens=9, cached_tokens=7, output_tokens=5),
        ),
        (
            {"input": 9, "output": 1, "output_reasoning_tokens": 4},
            Usage(input_tokens=9, output_tokens=5),
        ),
        ({}, None),
    ],
    ids=["apart", "by Anthropic's names", "a part, by attribute", "reasoning", "none"],
)
def test_langfuse_counts_parts_apart(details: dict[str, int], expected: Usage | None) -> None:
    assert langfuse_usage(details, None) == expected


# --- order, parents, errors -----------------------------------------------------------


def test_spans_side_by_side_are_told_by_time_and_those_below_within() -> None:
    spans = [
        span("late", "root", 50),
        span("inner", "early", 60),
        span("root"),
        span("early", "root", 10, took=100),
    ]

    assert shown(events_of(spans)) == [
        ("log", "span root", None),
        ("log", "span early", 0),
        ("log", "span inner", 1),
        ("log", "span late", 0),
    ]


def test_a_span_whose_parent_is_away_stands_at_the_top() -> None:
    assert shown(events_of([span("1", "elsewhere"), span("2", "1", 5)])) == [
        ("log", "span 1", None),
        ("log", "span 2", 0),
    ]


def test_spans_that_are_each_others_parents_are_told_all_the_same() -> None:
    events = events_of([span("1", "2"), span("2", "1"), span("3", "3")])

    assert sorted(event.name for event in events) == ["span 1", "span 2", "span 3"]


def test_a_span_that_was_sent_twice_is_told_once() -> None:
    assert len(events_of([span("1", took=None), span("1")])) == 1


def test_a_chain_of_ten_thousand_spans_is_told() -> None:
    spans = [span(str(n), str(n - 1) if n else None, n) for n in range(10_000)]

    events = events_of(spans)

    assert [event.parent for event in events] == [None, *range(9_999)]


def test_an_error_is_told_where_it_happened_and_not_again_above() -> None:
    spans = [
        span("root", error="boom"),
        span("middle", "root", error="boom"),
        span("leaf", "middle", error="boom"),
        span("other", "root", 5, error="bang"),
    ]

    errors = [e for e in events_of(spans) if e.kind is EventKind.ERROR]

    assert [(error.name, error.text, error.parent) for error in errors] == [
        ("span leaf", "boom", 2),
        ("span other", "bang", 4),
    ]


def test_an_error_without_a_message_takes_the_exceptions() -> None:
    raised = SpanEvent("exception", {"exception.type": "KeyError", "exception.message": "'a'"})

    texts = [e.text for e in events_of([span("1", error="", events=(raised,))])]

    assert texts == ["", "KeyError: 'a'"]


def test_an_exception_that_was_handled_is_no_error() -> None:
    raised = SpanEvent("exception", {"exception.type": "KeyError"})

    assert len(events_of([span("1", events=(raised,))])) == 1


# --- messages -------------------------------------------------------------------------


def test_what_a_model_is_told_again_is_told_once() -> None:
    yes = {"role": "user", "content": "yes"}
    no = {"role": "assistant", "content": "no"}
    spans = [
        chat("1", None, 0, gen_ai__input__messages=[yes], gen_ai__output__messages=[no]),
        chat("2", None, 9, gen_ai__input__messages=[yes, no, yes], gen_ai__output__messages=[no]),
    ]

    assert shown(events_of(spans)) == [
        ("message", "user", None),
        ("llm_call", "span 1", None),
        ("message", "user", None),
        ("llm_call", "span 2", None),
    ]


def test_tools_without_spans_are_told_from_the_messages() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    asks = {"role": "assistant", "content": None, "tool_calls": [call]}
    gave = {"role": "tool", "tool_call_id": "c", "content": "2"}
    spans = [
        chat("1", None, 0, gen_ai__output__messages=[asks]),
        chat("2", None, 9, gen_ai__input__messages=[asks, gave]),
    ]

    events = events_of(spans)

    assert shown(events) == [
        ("llm_call", "span 1", None),
        ("tool_call", "add", 0),
        ("tool_result", "add", None),
        ("llm_call", "span 2", None),
    ]
    assert events[1].data == {"a": 1}
    assert events[2].text == "2"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hello", (Message("user", "hello"),)),
        (None, ()),
        ('{"messages": [{"role": "system", "content": "s"}]}', (Message("system", "s"),)),
        (
            {"messages": [[{"id": ["langchain", "HumanMessage"], "kwargs": {"content": "h"}}]]},
            (Message("user", "h"),),
        ),
        (
            {"generations": [[{"text": "t", "message": {"type": "ai", "content": "a"}}]]},
            (Message("assistant", "a"),),
        ),
        (
            [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}],
            (Message("assistant", "a\n[image]"),),
        ),
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}],
            (Message("tool", "", call_id="1"),),
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "name": "n", "input": {"a": 1}}],
            },
            (Message("assistant", "", (Call("n", {"a": 1}),)),),
        ),
        ({"question": "why?"}, (Message("user", "why?"),)),
        ({"a": 1}, (Message("user", '{"a":1}'),)),
        (["a", "b"], (Message("user", "a"), Message("user", "b"))),
    ],
)
def test_messages_are_read_in_the_shapes_that_libraries_write(
    value: Any, expected: tuple[Message, ...]
) -> None:
    assert messages_of(value, "user") == expected


def test_texts_beyond_the_limit_are_cut_and_bytes_that_no_row_can_hold_are_shown() -> None:
    long = span(
        "1",
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__call__arguments={"all": "x" * TEXT_LIMIT},
        gen_ai__tool__call__result="\0" + "y" * TEXT_LIMIT,
    )

    call, result = events_of([long])

    assert call.data is None
    assert call.text.startswith('{"all":"xxx')
    assert result.text.startswith("\\x00yyy")
    assert len(call.text) == len(result.text) == TEXT_LIMIT + len("… [cut]")


# --- completeness ---------------------------------------------------------------------

STANDINGS = {
    "nothing": ([], PullState.ABSENT, ""),
    "whole": ([span("1"), span("2", "1")], PullState.COMPLETE, ""),
    "below the trial's parent": ([span("1", "given")], PullState.COMPLETE, ""),
    "no root": (
        [span("2", "1")],
        PullState.PARTIAL,
        "its root span and 1 span that others name as parent",
    ),
    "a gap": (
        [span("1"), span("3", "2"), span("5", "4")],
        PullState.PARTIAL,
        "2 spans that others name as parent",
    ),
    "open": ([span("1", took=None)], PullState.PARTIAL, "the end of 1 span"),
}


@pytest.mark.parametrize("case", STANDINGS)
def test_how_complete_a_trace_is(case: str) -> None:
    spans, state, missing = STANDINGS[case]

    assert standing(spans, "given") == (state, missing)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("GO0vLAGZAAE=", "18ed2f2c01990001"),
        ("18ED2F2C01990001", "18ed2f2c01990001"),
        ("1f", "000000000000001f"),
        ("0000000000000000", ""),
        (None, ""),
    ],
)
def test_ids_are_read_in_hex_and_base64(given: str | None, expected: str) -> None:
    assert hex_id(given, 16) == expected
