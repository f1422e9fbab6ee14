"""Trials that ran elsewhere: one recorded answer, with its trace and its scores."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, JsonValue, ValidationError, model_validator

from weirbox.domain.base import Frozen
from weirbox.domain.given import GivenScore
from weirbox.domain.trace import TraceEvent, Usage
from weirbox.domain.values import NotJson, parse_json, plain_text
from weirbox.domain.words import EventKind

_SAYS = ("output", "trace", "error", "scores")
"""What a recording is made for: it says at least one of these."""

_LISTS = ("trace", "usage", "scores")
"""Where null stands for nothing."""


DEEPEST = 6
"""How deep into a recording a message says where a mistake is."""


class Recording(Frozen):
    """One recorded trial: a line of a file of recorded answers.

    Attributes:
        trial: The trial it answers; absent means every trial without a line of its own.
        output: The answer. Where only a chat is there, what its assistant said last.
        trace: Events; or a chat as a list of ``{role, content}``, which becomes events.
        duration: Seconds it took.
        error: Why the trial failed; a text, or an object with a ``message``.
        scores: By name; see `GivenScore`.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    output: JsonValue = None
    trial: int | None = Field(default=None, ge=1)
    trace: tuple[TraceEvent, ...] = ()
    usage: Usage = Usage()
    model: str | None = None
    duration: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    error: str | None = None
    scores: dict[str, GivenScore] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        if not any(name in raw for name in _SAYS):
            raise ValueError(f"needs at least one of {', '.join(map(repr, _SAYS))}")
        said = {key: value for key, value in raw.items() if value is not None or key not in _LISTS}
        if "error" in said:
            said["error"] = _message(said["error"])
        if is_chat(said.get("trace")):
            chat = said["trace"]
            said["trace"] = chat_events(chat)
            said.setdefault("output", _last_answer(chat))
        return said


def first_mistake(error: ValidationError) -> str:
    """The first of a recording's mistakes: where in it, and what."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"][:DEEPEST])
    what = str(first.get("ctx", {}).get("error", first["msg"]))
    return f"{where}: {what}" if where else what


def _message(error: Any) -> Any:
    """What an error says; an empty one is none."""
    if isinstance(error, dict):
        return error.get("message") or (plain_text(error) if error else None)
    return None if error in ("", False) else error


def is_chat(trace: Any) -> bool:
    """Whether a trace is a chat: a list of messages, each with a role."""
    return (
        isinstance(trace, list)
        and bool(trace)
        and all(isinstance(item, dict) and "role" in item and "kind" not in item for item in trace)
    )


def chat_events(messages: list[dict[str, Any]]) -> list[TraceEvent]:
    """A chat as events: its messages, the tools that it calls, and what they give.

    A tool's result points to its call where the ids say which that is.
    """
    events: list[TraceEvent] = []
    calls: dict[str, int] = {}
    for message in messages:
        role = str(message["role"])
        text, rest = _content(message.get("content"))
        if role == "tool":
            at = calls.get(str(message.get("tool_call_id")))
            name = message.get("name") or message.get("function")
            events.append(
                TraceEvent(
                    kind=EventKind.TOOL_RESULT,
                    name=str(name or ("" if at is None else events[at].name)),
                    text=text,
                    data=rest,
                    parent=at,
                )
            )
            continue
        said = len(events)
        if text or rest is not None or not message.get("tool_calls"):
            events.append(TraceEvent(kind=EventKind.MESSAGE, name=role, text=text, data=rest))
        parent = said if len(events) > said else None
        for call in _calls(message):
            name, arguments = _call(call)
            calls[str(call.get("id"))] = len(events)
            events.append(
                TraceEvent(kind=EventKind.TOOL_CALL, name=name, data=arguments, parent=parent)
            )
    return events


def _content(content: Any) -> tuple[str, JsonValue]:
    """A message's text; and its parts besides, where some are no text."""
    if content is None or isinstance(content, str):
        return content or "", None
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ValueError("a message's 'content' is a text, or a list of parts")
    texts = [part.get("text") for part in content]
    whole = all(isinstance(text, str) for text in texts)
    shown = [
        text if isinstance(text, str) else f"[{part.get('type', 'part')}]"
        for text, part in zip(texts, content, strict=True)
    ]
    return "\n".join(shown), None if whole else content


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError("a message's 'tool_calls' are a list of objects")
    return calls


def _call(call: dict[str, Any]) -> tuple[str, JsonValue]:
    """A tool call's name and arguments, in OpenAI's nested form or flat."""
    inner = call["function"] if isinstance(call.get("function"), dict) else call
    name = inner.get("name") or inner.get("function") or ""
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except NotJson:
            return str(name), arguments
    return str(name), arguments


def _last_answer(messages: list[dict[str, Any]]) -> JsonValue:
    said = [message.get("content") for message in messages if message["role"] == "assistant"]
    return _content(said[-1])[0] if said else None
