"""A trace that has everything a trace can have, as a program would send it."""

from __future__ import annotations

import json
import time
from typing import Any

from weirbox.domain.tracing import trace_id_of
from weirbox.testing.platform import FakeSpan, SpanEvent

CORRELATION = "run-1.0.7.1"
SERVICE = "agent"
MS = 1_000_000
NOW = time.time_ns() // (1000 * MS) * 1000 * MS

SYSTEM = {"role": "system", "parts": [{"type": "text", "content": "Answer in one word."}]}
ASKED = {"role": "user", "parts": [{"type": "text", "content": "How warm is it in Oslo?"}]}
CALLED = {
    "role": "assistant",
    "parts": [
        {
            "type": "tool_call",
            "id": "call-1",
            "name": "weather",
            "arguments": {"city": "Oslo", "days": 2},
        }
    ],
}
GAVE = {
    "role": "tool",
    "parts": [{"type": "tool_call_response", "id": "call-1", "response": "14 °C"}],
}
ANSWERED = {"role": "assistant", "parts": [{"type": "text", "content": "14 °C"}]}


def sample(
    correlation: str = CORRELATION, *, trace_id: str | None = None, tagged: bool = True
) -> list[FakeSpan]:
    """An agent that calls a model, a tool that works, a model, and a tool that fails.

    The agent's own span repeats the usage of all its calls, as some frameworks do.
    """
    trace = trace_id or trace_id_of(correlation)
    resource = {"service.name": SERVICE}
    tags: dict[str, Any] = {}
    if tagged:
        resource["weirbox.run_id"] = correlation
        tags = {"weirbox.run_id": correlation, "langsmith.metadata.weirbox.run_id": correlation}

    def span(
        number: int,
        name: str,
        begin: int,
        end: int,
        parent: int | None = 1,
        error: str | None = None,
        events: tuple[SpanEvent, ...] = (),
        **attributes: Any,
    ) -> FakeSpan:
        return FakeSpan(
            trace_id=trace,
            span_id=span_id(trace, number),
            parent_id=None if parent is None else span_id(trace, parent),
            name=name,
            start=NOW + begin * MS,
            end=NOW + end * MS,
            attributes={key.replace("__", "."): value for key, value in attributes.items()},
            error=error,
            events=events,
            resource=resource,
        )

    root = span(
        1,
        "invoke_agent oslo",
        0,
        2500,
        None,
        gen_ai__operation__name="invoke_agent",
        gen_ai__usage__input_tokens=130,
        gen_ai__usage__output_tokens=12,
    )
    broke = SpanEvent(
        name="exception",
        at=NOW + 2400 * MS,
        attributes={"exception.type": "TimeoutError", "exception.message": "no reply in 0.3 s"},
    )
    return [
        FakeSpan(**(vars(root) | {"attributes": {**root.attributes, **tags}})),
        span(
            2,
            "chat first",
            100,
            900,
            gen_ai__operation__name="chat",
            gen_ai__request__model="small",
            gen_ai__response__model="small-2026",
            gen_ai__usage__input_tokens=50,
            gen_ai__usage__output_tokens=10,
            gen_ai__usage__cache_read__input_tokens=20,
            gen_ai__usage__cost=0.25,
            gen_ai__input__messages=json.dumps([SYSTEM, ASKED]),
            gen_ai__output__messages=json.dumps([CALLED]),
        ),
        span(
            3,
            "execute_tool weather",
            1000,
            1400,
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name="weather",
            gen_ai__tool__call__id="call-1",
            gen_ai__tool__call__arguments=json.dumps({"city": "Oslo", "days": 2}),
            gen_ai__tool__call__result="14 °C",
        ),
        span(4, "look up", 1100, 1300, 3),
        span(
            5,
            "chat second",
            1500,
            2000,
            gen_ai__operation__name="chat",
            gen_ai__request__model="small",
            gen_ai__usage__input_tokens=80,
            gen_ai__usage__output_tokens=2,
            gen_ai__input__messages=json.dumps([SYSTEM, ASKED, CALLED, GAVE]),
            gen_ai__output__messages=json.dumps([ANSWERED]),
        ),
        span(
            6,
            "execute_tool notify",
            2100,
            2400,
            error="TimeoutError: no reply in 0.3 s",
            events=(broke,),
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name="notify",
            gen_ai__tool__call__id="call-2",
            gen_ai__tool__call__arguments=json.dumps({"to": "ann"}),
        ),
    ]


def span_id(trace: str, number: int) -> str:
    """A span's id that no other trace has."""
    return f"{trace[:12]}{number:04x}"
