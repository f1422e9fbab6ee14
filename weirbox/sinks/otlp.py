"""Spans as OTLP, in protobuf: what every receiver takes, while some take no JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from weirbox.sinks.spans import Attribute, Attributes, Span, TraceSpans
from weirbox.sinks.wire import Answer, Wire

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceResponse,
    )
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

AT_ONCE = 1000
"""The most spans of one request."""


async def post(
    wire: Wire, path: str, trace: TraceSpans, *, headers: Attributes | None = None
) -> str | None:
    """Send a trace, in as many requests as it takes.

    Returns:
        What the receiver did not take of it, in words.

    Raises:
        Refused: When it takes nothing.
    """
    left_out: list[str] = []
    for spans in _batches(trace.spans):
        answer = await wire.call(
            "POST",
            path,
            content=encode(trace, spans),
            headers={"content-type": "application/x-protobuf"}
            | {name: str(value) for name, value in (headers or {}).items()},
        )
        if (message := rejection(answer)) is not None:
            left_out.append(message)
    return "; ".join(dict.fromkeys(left_out)) or None


def encode(trace: TraceSpans, spans: Iterable[Span] | None = None) -> bytes:
    """A request's body with these spans, or all of them; equal spans give equal bytes."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    of_resource.resource.attributes.extend(_key_values(trace.resource))
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name = "weirbox"
    of_scope.spans.extend(
        _message(trace.trace_id, span) for span in (trace.spans if spans is None else spans)
    )
    body: bytes = request.SerializeToString(deterministic=True)
    return body


def rejection(answer: Answer) -> str | None:
    """What a receiver says that it did not take, though it says that all is well."""
    found = _response(answer)
    if found is None or not found.HasField("partial_success"):
        return None
    partial = found.partial_success
    if not partial.rejected_spans:
        return None
    return f"{partial.rejected_spans} spans were rejected: {partial.error_message or 'no message'}"


def _response(answer: Answer) -> ExportTraceServiceResponse | None:
    from google.protobuf.json_format import Parse, ParseError
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceResponse,
    )

    found = ExportTraceServiceResponse()
    try:
        if "json" in answer.content_type:
            Parse(answer.content, found, ignore_unknown_fields=True)
        else:
            found.ParseFromString(answer.content)
    except (ParseError, DecodeError, UnicodeDecodeError):
        return None
    return found


def _message(trace_id: str, span: Span) -> SpanMessage:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    message = SpanMessage(
        trace_id=bytes.fromhex(trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id or ""),
        name=span.name,
        kind=SpanMessage.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.start,
        end_time_unix_nano=span.end,
        attributes=_key_values(span.attributes),
    )
    events = dict(span.events)
    if span.error is None:
        message.status.code = Status.STATUS_CODE_OK
    else:
        message.status.code = Status.STATUS_CODE_ERROR
        message.status.message = span.error
        events["exception"] = {"exception.type": "error", "exception.message": span.error}
    for name, attributes in events.items():
        message.events.add(time_unix_nano=span.end, name=name, attributes=_key_values(attributes))
    return message


def _key_values(attributes: Attributes) -> list[KeyValue]:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    return [KeyValue(key=key, value=_any_value(value)) for key, value in attributes.items()]


def _any_value(value: Attribute) -> AnyValue:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue

    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return AnyValue(int_value=value)
    if isinstance(value, float) and abs(value) <= _LARGEST:
        return AnyValue(double_value=value)
    if isinstance(value, str | int | float):
        return AnyValue(string_value=str(value))
    return AnyValue(array_value=ArrayValue(values=map(_any_value, value)))


_LARGEST = 1.7976931348623157e308


def _batches(spans: Sequence[Span]) -> Iterator[tuple[Span, ...]]:
    left = iter(spans)
    while batch := tuple(islice(left, AT_ONCE)):
        yield batch
