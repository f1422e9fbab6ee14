"""Jaeger, the newest query API first; and back ends that give OTLP by a trace's id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from weirbox.domain.seams import Workshop
from weirbox.domain.tracing import OtelSource, TraceSpec
from weirbox.errors import TraceError
from weirbox.traces.attributes import SpanEvent, span_of
from weirbox.traces.http import Answer, Api
from weirbox.traces.otlp import hex_id, spans_of
from weirbox.traces.pulling import LOOKBACK, MOST_TRACES, Found, Source, earliest
from weirbox.traces.spans import Span

_MISSING = (404, 405, 501)
_US = 1000
_SOME_ID = "f" * 31 + "e"


class Otel(Source):
    """See `OtelSource`.

    Traces are asked for as they were sent: by default Jaeger moves times where it believes
    that clocks differ.
    """

    def __init__(self, spec: TraceSpec, source: OtelSource, workshop: Workshop) -> None:
        self._spec = source
        api = Api(
            f"trace source 'otel' at {source.url}",
            source.url,
            workshop.read_secret,
            lambda secrets: secrets.fill(source.headers),
            timeout_s=source.timeout_s,
        )
        super().__init__(spec, source, api)

    async def _find_by_id(self, trace_id: str) -> Found:
        doing = f"trace {trace_id}"
        answer = await self._api.get(f"/api/v3/traces/{trace_id}", [("rawTraces", "true")])
        if _no_such_route(answer):
            answer = await self._api.get(f"/api/traces/{trace_id}", [("raw", "true")])
        if answer.status == 404:
            return Found()
        return await self._found(self._api.check(answer, doing))

    async def _find_by_tag(self, correlation: str) -> Found:
        service = self._spec.service or ""
        now = datetime.now(UTC)
        begin, end = now - LOOKBACK, now + timedelta(hours=1)
        tags = json.dumps({self._attribute: correlation})
        answer = await self._api.get(
            "/api/v3/traces",
            [
                ("query.serviceName", service),
                ("query.attributes", tags),
                ("query.startTimeMin", _rfc3339(begin)),
                ("query.startTimeMax", _rfc3339(end)),
                ("query.searchDepth", str(MOST_TRACES + 1)),
                ("query.rawTraces", "true"),
            ],
        )
        if answer.status == 404 and answer.object:
            return Found()
        if _no_such_route(answer):
            answer = await self._api.get(
                "/api/traces",
                [
                    ("service", service),
                    ("tags", tags),
                    ("start", str(int(begin.timestamp() * 1_000_000))),
                    ("end", str(int(end.timestamp() * 1_000_000))),
                    ("limit", str(MOST_TRACES + 1)),
                    ("raw", "true"),
                ],
            )
            if _no_such_route(answer):
                raise TraceError(
                    f"{self._api.who}: there is no search of Jaeger's at this address, neither "
                    "v3 nor v1: correct the 'url', or find traces by 'correlate: id'",
                    status=answer.status,
                )
        return await self._found(self._api.check(answer, "search"))

    async def _knock(self) -> None:
        if self._by_id:
            await self._find_by_id(_SOME_ID)
        else:
            await self._find_by_tag("weirbox-probe")

    async def _found(self, body: Mapping[str, Any]) -> Found:
        spans = await asyncio.to_thread(lambda: list(_spans_in(body)))
        self._room(spans)
        self._checked(span.trace_id for span in spans)
        first = earliest(spans)
        return Found(
            spans=spans,
            trace_id=first,
            url=None if first is None else f"{self._spec.url}/trace/{first}",
        )


def _no_such_route(answer: Answer) -> bool:
    """Whether there is nothing at an address: a page says so, and not the API."""
    return answer.status in _MISSING and not answer.object


def _spans_in(body: Mapping[str, Any]) -> Iterator[Span]:
    """The spans of an answer: Jaeger's v3 and v1, or OTLP as others wrap it."""
    inner = body.get("result", body.get("trace", body))
    if not isinstance(inner, dict):
        return
    if isinstance(inner.get("data"), list):
        for trace in inner["data"]:
            for span in trace.get("spans") or ():
                yield _v1_span(span)
        return
    yield from spans_of(inner.get("resourceSpans", inner.get("batches")) or ())


def _v1_span(span: Mapping[str, Any]) -> Span:
    tags = _fields(span.get("tags"))
    start = int(span["startTime"]) * _US
    events = []
    for log in span.get("logs") or ():
        fields = _fields(log.get("fields"))
        events.append(SpanEvent(str(fields.pop("event", "")), fields))
    failed = tags.get("otel.status_code") == "ERROR" or tags.get("error") in (True, "true")
    return span_of(
        tags,
        trace_id=hex_id(span["traceID"], 32),
        id=hex_id(span["spanID"], 16),
        parent=hex_id(_parent(span), 16),
        name=str(span.get("operationName") or ""),
        start=start,
        end=start + int(span.get("duration") or 0) * _US,
        failed=failed,
        status=str(tags.get("otel.status_description") or ""),
        events=events,
    )


def _parent(span: Mapping[str, Any]) -> Any:
    """The span that this one is a child of, or else follows from."""
    own = [one for one in span.get("references") or () if one.get("traceID") == span["traceID"]]
    own.sort(key=lambda one: one.get("refType") != "CHILD_OF")
    return own[0].get("spanID") if own else None


def _fields(given: Any) -> dict[str, Any]:
    return {str(one["key"]): one.get("value") for one in given or ()}


def _rfc3339(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}000Z"
