"""Spans from their attributes, in the vocabularies that tracing libraries write.

OpenTelemetry's ``gen_ai.*`` goes first, as platforms add the others to it on their own; then
OpenInference, MLflow's and Langfuse's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from weirbox.domain.trace import Usage
from weirbox.domain.values import is_number
from weirbox.traces.chat import Message, as_chat, decoded, messages_of, unflattened
from weirbox.traces.spans import Span, SpanKind

Attributes = Mapping[str, Any]

_LLM_OPERATIONS = {"chat", "text_completion", "generate_content", "completion"}
_LLM_KINDS = {"LLM", "CHAT_MODEL", "GENERATION"}
_KIND_KEYS = ("openinference.span.kind", "mlflow.spanType", "langfuse.observation.type")
_MODEL_KEYS = (
    *("gen_ai.response.model", "gen_ai.request.model"),
    *("llm.response.model_name", "llm.model_name", "llm.request.model_name"),
    *("mlflow.llm.model", "langfuse.observation.model.name"),
)
_INPUT_TOKENS = ("input_tokens", "prompt_tokens")
_OUTPUT_TOKENS = ("output_tokens", "completion_tokens")
_CACHE_READ = (
    *("cache_read.input_tokens", "cache_read_input_tokens", "cache_read_tokens"),
    "details.cache_read_input_tokens",
)
_CACHE_WRITE = (
    *("cache_creation.input_tokens", "cache_write.input_tokens", "cache_creation_input_tokens"),
    *("cache_write_tokens", "details.cache_creation_input_tokens"),
)
_COST_KEYS = ("gen_ai.usage.cost", "llm.cost.total")
_INPUT_KEYS = (
    *("input.value", "mlflow.spanInputs", "langfuse.observation.input"),
    *("traceloop.entity.input", "gen_ai.input.messages"),
)
_OUTPUT_KEYS = (
    *("output.value", "mlflow.spanOutputs", "langfuse.observation.output"),
    *("traceloop.entity.output", "gen_ai.output.messages"),
)


_INPUT_APART = re.compile(r"input(_.+)?|cache_(read|creation|write)_input_tokens")
_OUTPUT_APART = re.compile(r"output(_.+)?")
_READ = re.compile(r"cached|cache_read")
_WRITTEN = re.compile(r"cache_(creation|write)")


class SpanEvent(NamedTuple):
    """Something that happened within a span."""

    name: str
    attributes: Attributes


def span_of(
    attributes: Attributes,
    *,
    trace_id: str,
    id: str,
    parent: str | None,
    name: str,
    start: int,
    end: int | None,
    failed: bool,
    status: str = "",
    events: Sequence[SpanEvent] = (),
) -> Span:
    """The span that attributes describe.

    Args:
        failed: Whether the span's status is an error; `status` is its description.
    """
    kind = _kind(attributes)
    told, reply = _chat(attributes, events) if kind is SpanKind.LLM else ((), ())
    given, gave = _exchanged(attributes, kind)
    return Span(
        trace_id=trace_id,
        id=id,
        parent=parent or None,
        name=name,
        start=start,
        end=end,
        kind=kind,
        error=_error(status, events) if failed else None,
        model=_first_text(attributes, _MODEL_KEYS),
        usage=_usage(attributes),
        tool=_first_text(attributes, ("gen_ai.tool.name", "tool.name")) or name,
        given=given,
        gave=gave,
        messages=told,
        reply=reply,
    )


def _kind(attributes: Attributes) -> SpanKind:
    operation = attributes.get("gen_ai.operation.name")
    kinds = {str(attributes.get(key, "")).strip('"').upper() for key in _KIND_KEYS}
    if operation == "execute_tool" or "TOOL" in kinds:
        return SpanKind.TOOL
    if operation in _LLM_OPERATIONS or kinds & _LLM_KINDS:
        return SpanKind.LLM
    return SpanKind.STEP


# --- tokens and money -----------------------------------------------------------------


def _usage(attributes: Attributes) -> Usage | None:
    cost = _cost(attributes)
    langfuse = decoded(attributes.get("langfuse.observation.usage_details"))
    if isinstance(langfuse, dict):
        return langfuse_usage(langfuse, cost)
    mlflow = decoded(attributes.get("mlflow.chat.tokenUsage"))
    counted = mlflow if isinstance(mlflow, dict) else {}

    def count(names: Sequence[str], openinference: str) -> int | None:
        gen_ai = [f"gen_ai.usage.{name}" for name in names]
        found = _first_count(attributes, [*gen_ai, f"llm.token_count.{openinference}"])
        return _first_count(counted, names) if found is None else found

    return usage_of(
        given=count(_INPUT_TOKENS, "prompt"),
        read=count(_CACHE_READ, "prompt_details.cache_read"),
        written=count(_CACHE_WRITE, "prompt_details.cache_write"),
        gave=count(_OUTPUT_TOKENS, "completion"),
        cost=cost,
    )


def usage_of(
    *, given: int | None, read: int | None, written: int | None, gave: int | None, cost: Any
) -> Usage | None:
    """A usage; None where nothing of it is known.

    Cached tokens are a part of the input tokens. Where they are more, the library counts them
    beside the input.
    """
    beside = (read or 0) + (written or 0)
    if given is not None and beside > given:
        given += beside
    usage = Usage(
        input_tokens=given,
        cached_tokens=read,
        cache_write_tokens=written,
        output_tokens=gave,
        cost_usd=float(cost) if is_number(cost) else None,
    )
    return None if usage == Usage() else usage


def langfuse_usage(details: Mapping[str, Any], cost: Any) -> Usage | None:
    """Langfuse's usage details, whose ``input_*`` and ``output_*`` stand beside each other.

    Names that it took over from attributes as they were count a part of the input.
    """
    counts = {name: count for name, count in details.items() if _is_count(count)}
    given = [count for name, count in counts.items() if _INPUT_APART.fullmatch(name)]
    written = [count for name, count in counts.items() if _WRITTEN.search(name)]
    read = [count for name, count in counts.items() if _READ.search(name)]
    gave = [count for name, count in counts.items() if _OUTPUT_APART.fullmatch(name)]
    return usage_of(
        given=sum(given) if given else None,
        read=max(read, default=None),
        written=sum(written) if written else None,
        gave=sum(gave) if gave else None,
        cost=cost,
    )


def _cost(attributes: Attributes) -> Any:
    for key in _COST_KEYS:
        if is_number(attributes.get(key)):
            return attributes[key]
    for key, name in (
        ("mlflow.llm.cost", "total_cost"),
        ("langfuse.observation.cost_details", "total"),
    ):
        found = decoded(attributes.get(key))
        if isinstance(found, dict) and is_number(found.get(name)):
            return found[name]
    return None


def _first_count(values: Mapping[str, Any], names: Iterable[str]) -> int | None:
    return next((values[name] for name in names if _is_count(values.get(name))), None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# --- what went in and came out --------------------------------------------------------


def _exchanged(attributes: Attributes, kind: SpanKind) -> tuple[Any, Any]:
    if kind is SpanKind.LLM:
        return None, None
    if kind is SpanKind.STEP:
        return (
            as_chat(_first(attributes, _INPUT_KEYS)),
            as_chat(_first(attributes, _OUTPUT_KEYS)),
        )
    given = decoded(_first(attributes, ("gen_ai.tool.call.arguments", "tool.parameters")))
    if given is None:
        given = unflattened(attributes, "tool.parameters.")
    if given is None:
        given = decoded(_first(attributes, _INPUT_KEYS))
    gave = _first(attributes, ("gen_ai.tool.call.result", *_OUTPUT_KEYS))
    return given, decoded(gave)


def _chat(
    attributes: Attributes, events: Sequence[SpanEvent]
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """What the model was told and what it answered, from the first place that has it."""
    system = messages_of(attributes.get("gen_ai.system_instructions"), "system")
    told = (
        system + messages_of(attributes.get("gen_ai.input.messages"), "user")
        or _told_in_events(events)
        or messages_of(unflattened(attributes, "gen_ai.prompt."), "user")
        or messages_of(unflattened(attributes, "llm.input_messages."), "user")
        or messages_of(_first(attributes, _INPUT_KEYS), "user")
    )
    reply = (
        messages_of(attributes.get("gen_ai.output.messages"), "assistant")
        or _reply_in_events(events)
        or messages_of(unflattened(attributes, "gen_ai.completion."), "assistant")
        or messages_of(unflattened(attributes, "llm.output_messages."), "assistant")
        or messages_of(_first(attributes, _OUTPUT_KEYS), "assistant")
    )
    return told, reply


def _told_in_events(events: Sequence[SpanEvent]) -> tuple[Message, ...]:
    found: tuple[Message, ...] = ()
    for event in events:
        if event.name == "gen_ai.client.inference.operation.details":
            found += messages_of(event.attributes.get("gen_ai.system_instructions"), "system")
            found += messages_of(event.attributes.get("gen_ai.input.messages"), "user")
        elif event.name.startswith("gen_ai.") and event.name.endswith(".message"):
            role = event.name.split(".")[1]
            found += messages_of({"role": role, **event.attributes}, role)
    return found


def _reply_in_events(events: Sequence[SpanEvent]) -> tuple[Message, ...]:
    found: tuple[Message, ...] = ()
    for event in events:
        if event.name == "gen_ai.client.inference.operation.details":
            found += messages_of(event.attributes.get("gen_ai.output.messages"), "assistant")
        elif event.name == "gen_ai.choice":
            choice = decoded(event.attributes.get("message", dict(event.attributes)))
            found += messages_of(choice, "assistant")
    return found


def _error(status: str, events: Sequence[SpanEvent]) -> str:
    if status:
        return status
    for event in reversed(events):
        if event.name == "exception":
            kind = event.attributes.get("exception.type")
            message = event.attributes.get("exception.message")
            return ": ".join(str(part) for part in (kind, message) if part) or "error"
    return "error"


def _first(values: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((values[name] for name in names if values.get(name) not in (None, "")), None)


def _first_text(values: Mapping[str, Any], names: Iterable[str]) -> str | None:
    found = _first(values, names)
    return None if found is None else str(found).strip('"')
