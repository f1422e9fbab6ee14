"""Fake spans to OTLP's JSON and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weirbox.testing.platform import FakeSpan, SpanEvent

ERROR = 2
"""The status code of a span that failed."""


def to_otlp(spans: Iterable[FakeSpan]) -> dict[str, Any]:
    """The spans as an export request, those of one resource together."""
    resources: list[Mapping[str, Any]] = []
    groups: list[list[FakeSpan]] = []
    for span in spans:
        if span.resource not in resources:
            resources.append(span.resource)
            groups.append([])
        groups[resources.index(span.resource)].append(span)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": attributes(resource)},
                "scopeSpans": [
                    {"scope": {"name": "fake"}, "spans": [_span(span) for span in group]}
                ],
            }
            for resource, group in zip(resources, groups, strict=True)
        ]
    }


def from_otlp(request: Mapping[str, Any]) -> Iterator[FakeSpan]:
    """The spans of an export request in JSON, whose ids are hex digits."""
    for group in request.get("resourceSpans", []):
        resource = plain(group.get("resource", {}).get("attributes", []))
        for scope in group.get("scopeSpans", []):
            for span in scope.get("spans", []):
                status = span.get("status") or {}
                failed = status.get("code") in (ERROR, "STATUS_CODE_ERROR")
                yield FakeSpan(
                    trace_id=span["traceId"],
                    span_id=span["spanId"],
                    parent_id=span.get("parentSpanId") or None,
                    name=span["name"],
                    start=int(span["startTimeUnixNano"]),
                    end=int(span.get("endTimeUnixNano") or 0) or None,
                    attributes=plain(span.get("attributes", [])),
                    events=tuple(
                        SpanEvent(
                            name=event["name"],
                            at=int(event["timeUnixNano"]),
                            attributes=plain(event.get("attributes", [])),
                        )
                        for event in span.get("events", [])
                    ),
                    error=status.get("message", "") if failed else None,
                    resource=resource,
                )


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes as OTLP has them."""
    return [{"key": key, "value": _any_value(value)} for key, value in values.items()]


def plain(given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """OTLP's attributes as values."""
    return {one["key"]: _plain_value(one.get("value", {})) for one in given}


def _span(span: FakeSpan) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id or "",
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end or 0),
        "attributes": attributes(span.attributes),
        "events": [
            {
                "timeUnixNano": str(event.at),
                "name": event.name,
                "attributes": attributes(event.attributes),
            }
            for event in span.events
        ],
        "status": {} if span.error is None else {"code": ERROR, "message": span.error},
    }


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": attributes(value)}}
    return {"arrayValue": {"values": [_any_value(item) for item in value]}}


def _plain_value(value: Mapping[str, Any]) -> Any:
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_plain_value(item) for item in value["arrayValue"].get("values", [])]
    if "kvlistValue" in value:
        return plain(value["kvlistValue"].get("values", []))
    return next(iter(value.values()), None)
