"""Spans as OpenTelemetry's protocol has them in JSON, in the dialects that platforms answer."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from weirbox.traces.attributes import SpanEvent, span_of
from weirbox.traces.spans import Span

_FAILED = (2, "2", "STATUS_CODE_ERROR", "ERROR")


def spans_of(resource_spans: Iterable[Mapping[str, Any]]) -> Iterator[Span]:
    """The spans of ``resourceSpans``, or of ``batches`` as older back ends call them."""
    for resource in resource_spans:
        scopes = _either(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")
        for scope in scopes or ():
            for span in scope.get("spans") or ():
                yield span_in(span)


def span_in(span: Mapping[str, Any]) -> Span:
    """One span: names in either case, ids in hex or base64, moments as numbers or texts."""
    status = span.get("status") or {}
    return span_of(
        attributes_in(span.get("attributes")),
        trace_id=hex_id(_either(span, "traceId", "trace_id"), 32),
        id=hex_id(_either(span, "spanId", "span_id"), 16),
        parent=hex_id(_either(span, "parentSpanId", "parent_span_id"), 16),
        name=str(span.get("name") or ""),
        start=int(_either(span, "startTimeUnixNano", "start_time_unix_nano") or 0),
        end=int(_either(span, "endTimeUnixNano", "end_time_unix_nano") or 0) or None,
        failed=status.get("code") in _FAILED,
        status=str(status.get("message") or ""),
        events=[
            SpanEvent(str(event.get("name") or ""), attributes_in(event.get("attributes")))
            for event in span.get("events") or ()
        ],
    )


def attributes_in(given: Iterable[Mapping[str, Any]] | None) -> dict[str, Any]:
    """A list of keys and values as a dictionary."""
    return {str(one["key"]): _value(one.get("value") or {}) for one in given or ()}


def hex_id(value: Any, digits: int) -> str:
    """An id as hex digits; the empty text for none, or for one of zeros only."""
    text = str(value or "")
    if text.endswith("="):
        text = base64.b64decode(text).hex()
    text = text.lower()
    return text.zfill(digits) if text.strip("0") else ""


def _value(value: Mapping[str, Any]) -> Any:
    for name, given in value.items():
        if given is None:
            continue
        match name.replace("_", "").lower():
            case "intvalue":
                return int(given)
            case "doublevalue":
                return float(given)
            case "arrayvalue":
                return [_value(item) for item in given.get("values") or ()]
            case "kvlistvalue":
                return attributes_in(given.get("values"))
            case _:
                return given
    return None


def _either(value: Mapping[str, Any], *names: str) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)
