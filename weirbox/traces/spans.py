"""The one model of a span that all platforms' spans are brought to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from weirbox.domain.trace import Usage
from weirbox.traces.chat import Message


class SpanKind(StrEnum):
    """What a span stands for."""

    LLM = "llm"  # one call of a model
    TOOL = "tool"  # one call of a tool
    STEP = "step"  # whatever else a program traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span.

    Attributes:
        parent: The id of the parent span, which the trace may not have.
        start, end: In nanoseconds since 1970; no end while it is open.
        error: What went wrong; None where nothing did.
        tool: The tool's name.
        given, gave: A tool's arguments and result, or what went into a step and came out.
        messages: What a model was told.
        reply: What a model answered.
    """

    trace_id: str
    id: str
    parent: str | None
    name: str
    start: int
    end: int | None
    kind: SpanKind = SpanKind.STEP
    error: str | None = None
    model: str | None = None
    usage: Usage | None = None
    tool: str = ""
    given: Any = None
    gave: Any = None
    messages: tuple[Message, ...] = ()
    reply: tuple[Message, ...] = ()
