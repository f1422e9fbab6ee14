"""Messages of a chat, in whichever of the many shapes a tracing library writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from weirbox.domain.base import canonical_json
from weirbox.domain.values import NotJson, parse_json, plain_text

ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
"""Other words for a role."""

_KNOWN = {"system", "user", "assistant", "tool", "developer", *ROLES}
_LISTS = ("messages", "choices", "generations")
_TEXTS = ("content", "text", "output", "input", "completion", "prompt", "answer", "question")
_CALLS = {"tool_call", "tool_use", "function_call"}
_RESULTS = {"tool_call_response", "tool_result", "function_call_output"}
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool, as a model asks for it."""

    name: str
    arguments: JsonValue = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        call_id: Of the call that a tool's message answers.
    """

    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str | None = None

    @property
    def key(self) -> str:
        """The same for messages that say the same."""
        calls = [[call.name, call.arguments] for call in self.calls]
        return canonical_json([self.role, self.text, calls])


def decoded(value: Any) -> Any:
    """A value; a text that holds a JSON object or list is taken as that."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(value)
        except NotJson:
            return value
    return value


def messages_of(value: Any, role: str, *, depth: int = 0) -> tuple[Message, ...]:
    """The messages that a value holds.

    Args:
        role: Whose words they are where the value does not say.
    """
    value = decoded(value)
    if value is None or value == "" or depth > _DEEPEST:
        return ()
    if isinstance(value, list):
        if value and all(_is_part(item) for item in value):
            return (_message({"role": role, "content": value}),)
        return tuple(
            message for item in value for message in messages_of(item, role, depth=depth + 1)
        )
    if isinstance(value, dict):
        return _of_object(value, role, depth)
    return (Message(role, plain_text(value)),)


def as_chat(value: Any) -> Any:
    """A value, decoded; a chat in it with roles and contents only."""
    value = decoded(value)
    chat = value.get("messages") if isinstance(value, dict) and len(value) == 1 else value
    if isinstance(chat, list) and chat and all(_is_message(item) for item in chat):
        return [{"role": one.role, "content": one.text} for one in messages_of(chat, "user")]
    return value


def unflattened(attributes: Mapping[str, Any], prefix: str) -> Any:
    """What stands under a prefix in dotted keys, as objects and lists; None where nothing does."""
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        *way, last = key[len(prefix) :].split(".")
        node = tree
        for name in way:
            below = node.setdefault(name, {})
            if not isinstance(below, dict):
                break
            node = below
        else:
            node[last] = value
    return _listed(tree) if tree else None


def _listed(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(name.isdigit() for name in node):
        return [_listed(node[name]) for name in sorted(node, key=int)]
    return {name: _listed(value) for name, value in node.items()}


def _of_object(value: dict[str, Any], role: str, depth: int) -> tuple[Message, ...]:
    if isinstance(value.get("kwargs"), dict) and isinstance(value.get("id"), list):
        said = str(value["id"][-1]).removesuffix("Chunk").removesuffix("Message").lower()
        return (_message({"type": said or role, **value["kwargs"]}),)
    if isinstance(value.get("message"), dict | str):
        return messages_of(value["message"], role, depth=depth + 1)
    if _is_message(value):
        return (_message(value),)
    for name in _LISTS:
        if isinstance(value.get(name), list):
            return messages_of(value[name], role, depth=depth + 1)
    if _is_part(value) or value.get("tool_calls"):
        return (_message({"role": role, "content": [], **value}),)
    for name in _TEXTS:
        if value.get(name) is not None:
            return messages_of(value[name], role, depth=depth + 1)
    return (Message(role, plain_text(value)),)


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("message"), dict):
        return _is_message(value["message"])
    return isinstance(value.get("role"), str) or (
        value.get("type") in _KNOWN and ("content" in value or "tool_calls" in value)
    )


def _is_part(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and value["type"] not in _KNOWN
        and "role" not in value
        and "message" not in value
    )


def _message(value: dict[str, Any]) -> Message:
    role = str(value.get("role") or value.get("type") or "")
    parts = value.get("parts", value.get("contents", value.get("content")))
    texts: list[str] = []
    calls: list[Call] = []
    call_id = value.get("tool_call_id")
    for part in _parts(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _CALLS:
            calls.append(_call(part))
        elif kind in _RESULTS:
            role = "tool"
            call_id = part.get("id", part.get("tool_use_id", part.get("call_id")))
            gave = part.get("response", part.get("result", part.get("content", part.get("output"))))
            texts += [_part_text(item) for item in _parts(gave)]
        else:
            texts.append(_part_text(part))
    for call in value.get("tool_calls") or ():
        if isinstance(call, dict):
            calls.append(_call(call.get("tool_call", call)))
    return Message(
        role=ROLES.get(role, role),
        text="\n".join(texts),
        calls=tuple(calls),
        call_id=None if call_id is None else str(call_id),
    )


def _parts(content: Any) -> Iterable[Any]:
    if content is None:
        return ()
    return content if isinstance(content, list) else (content,)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        return plain_text(part)
    part = part.get("message_content", part)
    for name in ("text", "content"):
        if isinstance(part.get(name), str):
            return str(part[name])
    kind = part.get("type")
    return f"[{kind}]" if isinstance(kind, str) else plain_text(part)


def _call(call: dict[str, Any]) -> Call:
    """A tool call, in OpenAI's nested form or flat."""
    inner = call["function"] if isinstance(call.get("function"), dict) else call
    given = inner.get("arguments", inner.get("args", inner.get("input")))
    id_ = call.get("id", call.get("call_id"))
    return Call(
        name=str(inner.get("name") or ""),
        arguments=decoded(given),
        id=None if id_ is None else str(id_),
    )
