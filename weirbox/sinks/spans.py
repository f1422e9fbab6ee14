"""A judged trial as the spans of one trace.

Each span says the same in two vocabularies, OpenTelemetry's ``gen_ai.*`` and OpenInference,
so that every platform shows what it can.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from weirbox.domain.seams import RunHeader, TrialExport
from weirbox.domain.trace import TraceEvent, Usage
from weirbox.domain.words import EventKind
from weirbox.sinks.identity import span_id, trace_id
from weirbox.sinks.texts import Texts

NS = 1_000_000_000
ROOT = "root"

Attribute = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Attribute]


@dataclass(frozen=True, kw_only=True)
class Span:
    """One span; times are nanoseconds since 1970.

    Attributes:
        place: ``root``, the position of the event in the trial's trace, or a name.
        error: Why it failed; None where it did not.
        inputs, outputs: Also among the attributes; texts.
        events: Attributes of what happened at its end, by name.
    """

    place: str | int
    span_id: str
    parent: str | int | None
    parent_id: str | None
    name: str
    start: int
    end: int
    attributes: Attributes
    error: str | None = None
    inputs: str | None = None
    outputs: str | None = None
    usage: Usage | None = None
    model: str | None = None
    kind: EventKind | None = None
    events: Mapping[str, Attributes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TraceSpans:
    """A trial's spans, the root first and each parent before its children."""

    trace_id: str
    spans: tuple[Span, ...]
    resource: Attributes = field(default_factory=dict)

    @property
    def root(self) -> Span:
        """The span of the trial."""
        return self.spans[0]


def spans_of(trial: TrialExport, run: RunHeader) -> TraceSpans:
    """Make the spans: a root for the trial, and one for each event of its trace.

    The same trial gives the same spans. A tool's result is part of the call's span, where
    the trace says whose result it is.
    """
    texts = Texts(where_whole(trial, run))
    start = _start(trial, run)
    events = list(_events(trial, texts, start))
    end = max((span.end for span in events), default=start)
    return TraceSpans(
        trace_id=trace_id(trial),
        spans=(_root(trial, run, texts, start, end), *events),
        resource={"service.name": "weirbox", "weirbox.run": run.run_id},
    )


def where_whole(trial: TrialExport, run: RunHeader) -> str:
    """Where a person finds everything about a trial."""
    shown = f"weirbox show {trial.run_id} {trial.case_id[:100]!r}"
    return f"{run.dashboard_url} (or: {shown})" if run.dashboard_url else shown


def facts(trial: TrialExport, run: RunHeader) -> dict[str, str | float]:
    """What weirbox knows of the trial, by the names it has in ``weirbox.*``."""
    known: dict[str, str | float | None] = {
        "run": trial.run_id,
        "run_kind": run.kind,
        "suite": trial.suite,
        "case_id": trial.case_id,
        "trial": trial.trial,
        "round": trial.round,
        "entry_digest": trial.entry_digest,
        "dataset_digest": run.dataset_digest,
        "category": trial.category,
        "state": trial.state.value,
        "verdict": trial.verdict.value,
        "disposition": trial.disposition.value,
        "deciding": trial.deciding or None,
        "cost_usd": trial.cost_usd,
        "correlation": trial.observation.correlation or None,
        "dashboard_url": run.dashboard_url,
    }
    return {name: value for name, value in known.items() if value is not None}


# --- the root -------------------------------------------------------------------------


def _root(trial: TrialExport, run: RunHeader, texts: Texts, start: int, end: int) -> Span:
    inputs, outputs = texts.json(trial.input), _text_or_none(trial.output, texts)
    observation = trial.observation
    attributes: dict[str, Any] = {
        "openinference.span.kind": "AGENT",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": trial.suite,
        **_io(inputs, outputs, trial.input, trial.output),
        **{
            f"weirbox.{name}": texts.text(value) if isinstance(value, str) else value
            for name, value in facts(trial, run).items()
        },
    }
    attributes["metadata"] = json.dumps(
        {name: attributes[f"weirbox.{name}"] for name in facts(trial, run)}
    )
    if trial.target is not None:
        attributes["weirbox.target"] = texts.json(trial.target)
    if not any(event.kind is EventKind.LLM_CALL for event in observation.trace):
        attributes |= _spent(observation.model, observation.usage)
    return Span(
        place=ROOT,
        span_id=span_id(trial, ROOT),
        parent=None,
        parent_id=None,
        name=f"{texts.text(trial.case_id[:200])} #{trial.trial}",
        start=start,
        end=max(end, start + _ns(observation.duration)),
        attributes=attributes,
        error=None if trial.error is None else texts.text(trial.error),
        inputs=inputs,
        outputs=outputs,
        usage=observation.usage,
        model=observation.model,
    )


def _start(trial: TrialExport, run: RunHeader) -> int:
    """When the execution began: before it ended, as long as the harness took."""
    ended = trial.executed_at or trial.judged_at or run.created_at
    moment = datetime.fromisoformat(ended)
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    whole = (since.days * 86_400 + since.seconds) * NS + since.microseconds * 1000
    return max(0, whole - _ns(trial.observation.duration))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# --- the events -----------------------------------------------------------------------


def _events(trial: TrialExport, texts: Texts, start: int) -> Iterator[Span]:
    trace = trial.observation.trace
    results = _results(trace)
    merged = set(results.values())
    starts: list[int] = []
    for place, event in enumerate(trace):
        parent = _parent(event, place)
        known = starts[-1] if starts else start
        if parent is not None:
            known = max(known, starts[parent])
        starts.append(known if event.at is None else start + _ns(event.at))
        if place in merged:
            continue
        result = trace[results[place]] if place in results else None
        if parent in merged:
            parent = trace[parent].parent
        yield _span(trial, place, parent, event, result, starts[-1], texts)


def _results(trace: tuple[TraceEvent, ...]) -> dict[int, int]:
    """Where the result of a tool call stands, by where the call stands; its first one."""
    found: dict[int, int] = {}
    for place, event in enumerate(trace):
        parent = _parent(event, place)
        if (
            event.kind is EventKind.TOOL_RESULT
            and parent is not None
            and trace[parent].kind is EventKind.TOOL_CALL
        ):
            found.setdefault(parent, place)
    return found


def _parent(event: TraceEvent, place: int) -> int | None:
    """Where the parent stands; None for the root, and for what cannot be a parent."""
    parent = event.parent
    return parent if parent is not None and 0 <= parent < place else None


def _span(
    trial: TrialExport,
    place: int,
    parent: int | None,
    event: TraceEvent,
    result: TraceEvent | None,
    start: int,
    texts: Texts,
) -> Span:
    inputs, outputs = _exchanged(event, result, texts)
    above: str | int = ROOT if parent is None else parent
    end = start + _ns(event.duration or 0.0)
    if result is not None and result.at is not None and event.at is not None:
        end = max(end, start + _ns(result.at - event.at))
    attributes: dict[str, Any] = {"weirbox.event": event.kind.value}
    attributes |= _vocabulary(event, inputs, outputs, texts)
    attributes |= _io(inputs, outputs, event.data, None if result is None else result.data)
    if event.kind is EventKind.LLM_CALL:
        attributes |= _spent(event.model, event.usage or Usage())
    return Span(
        place=place,
        span_id=span_id(trial, place),
        parent=above,
        parent_id=span_id(trial, above),
        name=_name(event, texts),
        start=start,
        end=end,
        attributes=attributes,
        error=_error(event, result, texts),
        inputs=inputs,
        outputs=outputs,
        usage=event.usage,
        model=event.model,
        kind=event.kind,
    )


def _name(event: TraceEvent, texts: Texts) -> str:
    name = event.name or (event.model if event.kind is EventKind.LLM_CALL else None)
    if event.kind is EventKind.TOOL_CALL:
        return texts.text(name or "tool")[:SHOWN]
    return texts.text(f"{event.kind} {name}" if name else event.kind.value)[:SHOWN]


SHOWN = 200
"""The most characters of a span's name."""


def _exchanged(
    event: TraceEvent, result: TraceEvent | None, texts: Texts
) -> tuple[str | None, str | None]:
    """What went in and what came out, as texts."""
    data = None if event.data is None else texts.json(event.data)
    text = texts.text(event.text) if event.text else None
    if event.kind is EventKind.TOOL_CALL:
        if result is None:
            return data, text
        returned = result.text or result.data
        return data or text, None if returned is None else texts.json(returned)
    return data, text


def _error(event: TraceEvent, result: TraceEvent | None, texts: Texts) -> str | None:
    if event.kind is EventKind.ERROR:
        return texts.text(event.text or event.name or "error")
    return None


def _vocabulary(
    event: TraceEvent, inputs: str | None, outputs: str | None, texts: Texts
) -> dict[str, Any]:
    """The kind of the span in both vocabularies."""
    if event.kind is EventKind.LLM_CALL:
        return {"openinference.span.kind": "LLM", "gen_ai.operation.name": "chat"}
    if event.kind not in (EventKind.TOOL_CALL, EventKind.TOOL_RESULT):
        return {"openinference.span.kind": "CHAIN"}
    name = texts.text(event.name or "tool")
    found = {
        "openinference.span.kind": "TOOL",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "tool.name": name,
        "gen_ai.tool.call.arguments": inputs,
        "gen_ai.tool.call.result": outputs,
    }
    return {key: value for key, value in found.items() if value is not None}


def _spent(model: str | None, usage: Usage) -> dict[str, Any]:
    """Model, tokens and cost in both vocabularies; what is unknown is left out."""
    found = {
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "llm.model_name": model,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "llm.token_count.prompt": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "llm.token_count.completion": usage.output_tokens,
        "llm.token_count.total": usage.total_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "llm.token_count.prompt_details.cache_read": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "llm.token_count.prompt_details.cache_write": usage.cache_write_tokens,
        "gen_ai.usage.cost": usage.cost_usd,
        "llm.cost.total": usage.cost_usd,
    }
    return {key: value for key, value in found.items() if value is not None}


def _io(inputs: str | None, outputs: str | None, given: Any, returned: Any) -> dict[str, str]:
    found = {}
    for name, text, value in (("input", inputs, given), ("output", outputs, returned)):
        if text is not None:
            found[f"{name}.value"] = text
            is_json = value is not None and not isinstance(value, str)
            found[f"{name}.mime_type"] = "application/json" if is_json else "text/plain"
    return found


def _text_or_none(value: Any, texts: Texts) -> str | None:
    return None if value is None else texts.json(value)


def _ns(seconds: float) -> int:
    """Nanoseconds; what is no time is none."""
    return int(seconds * NS) if 0 <= seconds < 1e9 else 0
