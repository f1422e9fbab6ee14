"""Spans to the events of a trial's trace, the same whichever platform they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weirbox.domain.base import storable
from weirbox.domain.trace import TraceEvent, Usage
from weirbox.domain.values import plain_text
from weirbox.domain.words import EventKind, PullState
from weirbox.traces.chat import Message
from weirbox.traces.spans import Span, SpanKind

MS = 1_000_000
"""Nanoseconds in a millisecond, the finest time that all platforms keep."""

TEXT_LIMIT = 100_000
"""The most characters of one event's text."""


class Standing(NamedTuple):
    """How complete a trace is, and what it lacks."""

    state: PullState
    missing: str = ""


def standing(spans: Iterable[Span], parent: str) -> Standing:
    """How complete the spans of a trial are.

    Args:
        parent: The span id that the trial was given as its parent: no platform has it.
    """
    traces: dict[str, set[str]] = {}
    parents: dict[str, set[str | None]] = {}
    open_spans = 0
    for span in spans:
        traces.setdefault(span.trace_id, set()).add(span.id)
        parents.setdefault(span.trace_id, set()).add(span.parent)
        open_spans += span.end is None
    if not traces:
        return Standing(PullState.ABSENT)
    lacking = []
    outside = {None, parent}
    if any(not parents[trace] & outside for trace in traces):
        lacking.append("its root span")
    away = sum(len(parents[trace] - traces[trace] - outside) for trace in traces)
    if away:
        lacking.append(f"{away} {'span' if away == 1 else 'spans'} that others name as parent")
    if open_spans:
        lacking.append(f"the end of {open_spans} {'span' if open_spans == 1 else 'spans'}")
    if lacking:
        return Standing(PullState.PARTIAL, " and ".join(lacking))
    return Standing(PullState.COMPLETE)


def events_of(spans: Iterable[Span]) -> tuple[TraceEvent, ...]:
    """The events: a span before those below it, and those side by side in order of time.

    Each span gives one event, and more for what was said, what came out and what failed.
    Tokens are counted once, on the deepest span that knows them, as frameworks repeat on outer
    spans what inner ones used. Messages that a model is told again are told once, and calls of
    tools are taken from a model's reply only where tools have no spans of their own.
    Texts beyond `TEXT_LIMIT` are cut; memory is bounded by the spans that are given.
    """
    tree = _Tree({(span.trace_id, span.id): span for span in spans}.values())
    return tuple(_Telling(tree).events())


class _Node:
    """A span in its tree, and what is known of those below it."""

    __slots__ = ("below", "calls_below", "counted_below", "errors_below", "span", "up")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.up: _Node | None = None
        self.below: list[_Node] = []
        self.calls_below = False
        self.counted_below = False
        self.errors_below: set[str] = set()

    @property
    def like_call(self) -> bool:
        """Whether it stands for a model's call, or for more than one."""
        span = self.span
        return span.kind is SpanKind.LLM or (span.kind is SpanKind.STEP and span.usage is not None)

    @property
    def usage(self) -> Usage | None:
        """What is counted here."""
        return self.span.usage if self.like_call and not self.counted_below else None


class _Tree:
    """Spans by who stands above whom, the earlier first."""

    def __init__(self, spans: Iterable[Span]) -> None:
        nodes = [_Node(span) for span in sorted(spans, key=_when)]
        by_id = {(node.span.trace_id, node.span.id): node for node in nodes}
        for node in nodes:
            above = by_id.get((node.span.trace_id, node.span.parent or ""))
            if above is not None and not _is_above(node, above):
                node.up = above
                above.below.append(node)
        self.roots = [node for node in nodes if node.up is None]
        self.has_tools = any(node.span.kind is SpanKind.TOOL for node in nodes)
        self.start = min((node.span.start for node in nodes), default=0) // MS
        self._look_below()

    def _look_below(self) -> None:
        for node in reversed([node for node, begins in self.walk() if begins]):
            above = node.up
            if above is None:
                continue
            above.calls_below |= node.like_call or node.calls_below
            above.counted_below |= node.counted_below or (
                node.like_call and node.span.usage is not None
            )
            if node.span.error is not None:
                above.errors_below.add(node.span.error)

    def walk(self) -> Iterator[tuple[_Node, bool]]:
        """Each span twice: as it begins, and after those below it."""
        stack = [(root, True) for root in reversed(self.roots)]
        while stack:
            node, begins = stack.pop()
            yield node, begins
            if begins:
                stack.append((node, False))
                stack += [(below, True) for below in reversed(node.below)]


def _when(span: Span) -> tuple[int, int, str, str]:
    end = span.start if span.end is None else span.end
    return span.start // MS, end // MS, span.name, span.id


def _is_above(node: _Node, other: _Node | None) -> bool:
    """Whether a span stands above another, or is the same: a parent that it cannot have."""
    if not node.below:
        return node is other
    while other is not None:
        if other is node:
            return True
        other = other.up
    return False


@dataclass
class _Telling:
    """Makes the events of a tree."""

    tree: _Tree
    _events: list[TraceEvent] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)
    _said: Counter[str] = field(default_factory=Counter)
    _tools: dict[str | None, str] = field(default_factory=dict)

    def events(self) -> Sequence[TraceEvent]:
        for node, begins in self.tree.walk():
            above = self._places[id(node.up)] if node.up is not None else None
            if begins:
                self._begin(node, above)
            else:
                self._end(node, self._places[id(node)])
        return self._events

    def _begin(self, node: _Node, above: int | None) -> None:
        span = node.span
        at = self._at(span.start)
        is_call = node.like_call and not node.calls_below
        if is_call:
            self._told(span.messages, at, above)
        self._places[id(node)] = len(self._events)
        common: dict[str, Any] = {
            "at": at,
            "duration": None if span.end is None else (span.end // MS - span.start // MS) / 1000,
            "parent": above,
            "usage": node.usage,
        }
        if is_call:
            text = "\n".join(message.text for message in span.reply if message.text)
            self._add(EventKind.LLM_CALL, span.name, text, model=span.model, **common)
            self._replied(span.reply, self._places[id(node)], at)
        elif span.kind is SpanKind.TOOL:
            self._add(EventKind.TOOL_CALL, span.tool, **_held(span.given), **common)
        else:
            said = {"input": span.given, "output": span.gave}
            data = {name: value for name, value in said.items() if value is not None}
            self._add(EventKind.LOG, span.name, **_held(data or None), **common)

    def _end(self, node: _Node, place: int) -> None:
        span = node.span
        at = self._at(span.start if span.end is None else span.end)
        if span.kind is SpanKind.TOOL and span.gave is not None:
            gave = span.gave if isinstance(span.gave, dict | list) else plain_text(span.gave)
            said = {"text": gave} if isinstance(gave, str) else _held(gave)
            self._add(EventKind.TOOL_RESULT, span.tool, at=at, parent=place, **said)
        if span.error is not None and span.error not in node.errors_below:
            name = span.tool if span.kind is SpanKind.TOOL else span.name
            self._add(EventKind.ERROR, name, span.error, at=at, parent=place)

    def _told(self, messages: Sequence[Message], at: float, above: int | None) -> None:
        """What a model is told for the first time."""
        counts: Counter[str] = Counter()
        for message in messages:
            key = message.key
            counts[key] += 1
            if counts[key] <= self._said[key]:
                continue
            self._said[key] = counts[key]
            if message.role == "tool":
                if not self.tree.has_tools:
                    name = self._tools.get(message.call_id, "")
                    self._add(EventKind.TOOL_RESULT, name, message.text, at=at, parent=above)
                continue
            if message.text or not message.calls:
                self._add(EventKind.MESSAGE, message.role, message.text, at=at, parent=above)
            self._asked_for(message, at, above)

    def _replied(self, reply: Sequence[Message], place: int, at: float) -> None:
        for message in reply:
            self._said[message.key] += 1
            self._asked_for(message, at, place)

    def _asked_for(self, message: Message, at: float, above: int | None) -> None:
        if self.tree.has_tools:
            return
        for call in message.calls:
            self._tools[call.id] = call.name
            held = _held(call.arguments)
            self._add(EventKind.TOOL_CALL, call.name, at=at, parent=above, **held)

    def _add(self, kind: EventKind, name: str, text: str = "", **more: Any) -> None:
        self._events.append(
            TraceEvent(kind=kind, name=storable(name), text=_cut(storable(text)), **more)
        )

    def _at(self, moment: int) -> float:
        return (moment // MS - self.tree.start) / 1000


def _held(data: Any) -> dict[str, Any]:
    """An event's data; as a text that is cut where it is too large."""
    if isinstance(data, str | dict | list):
        text = plain_text(data)
        if len(text) > TEXT_LIMIT:
            return {"text": text}
    return {"data": data}


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}… [cut]"
