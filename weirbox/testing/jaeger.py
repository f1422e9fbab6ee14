"""A Jaeger query server in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from weirbox.testing.otlp import to_otlp
from weirbox.testing.platform import FakePlatform, FakeSpan, Reply, Request, route

US = 1000
"""Nanoseconds in a microsecond, the time that Jaeger's v1 keeps."""

Generation = Literal["v1", "both", "v3"]


class FakeJaeger(FakePlatform):
    """Jaeger with its query API v1, with both, or with v3 only, as from v2.21 on.

    As with the real one, v3 answers 404 where a search finds nothing, v1 keeps searching the
    last two days unless told otherwise, and the trace of an id stays at its v1 address.
    """

    def __init__(self, generation: Generation = "both") -> None:
        super().__init__()
        self.generation = generation

    # --- v3 ---------------------------------------------------------------------------

    @route("GET", "/api/v3/services")
    def services_v3(self, request: Request) -> Reply:
        """The names of all services."""
        if self.generation == "v1":
            return self.unknown(request)
        return Reply(200, {"services": self._services()})

    @route("GET", "/api/v3/traces")
    def search_v3(self, request: Request) -> Reply:
        """Traces whose spans fit, all in one."""
        if self.generation == "v1":
            return self.unknown(request)
        query = {name.replace("_", "").lower(): value for name, value in request.query}
        begin, end = query.get("query.starttimemin"), query.get("query.starttimemax")
        if not begin or not end:
            return _v3_error(400, "malformed parameter query.startTimeMin: missing")
        if not query.get("query.servicename"):
            return _v3_error(400, "malformed parameter query.serviceName: missing")
        found = self._search(
            query["query.servicename"],
            json.loads(query.get("query.attributes") or "{}"),
            _nanoseconds(begin),
            _nanoseconds(end),
            int(query.get("query.searchdepth") or 100),
        )
        if not found:
            return _v3_error(404, "No traces found")
        return Reply(200, {"result": to_otlp(found)})

    @route("GET", "/api/v3/traces/(?P<trace_id>[^/]+)")
    def trace_v3(self, request: Request, trace_id: str) -> Reply:
        """One trace."""
        if self.generation == "v1":
            return self.unknown(request)
        spans = self.traces().get(trace_id)
        if spans is None:
            return _v3_error(404, "No traces found")
        return Reply(200, {"result": to_otlp(spans)})

    # --- v1 ---------------------------------------------------------------------------

    @route("GET", "/api/services")
    def services_v1(self, request: Request) -> Reply:
        """The names of all services."""
        if self.generation == "v3":
            return self.unknown(request)
        names = self._services()
        return Reply(
            200, {"data": names, "total": len(names), "limit": 0, "offset": 0, "errors": None}
        )

    @route("GET", "/api/traces")
    def search_v1(self, request: Request) -> Reply:
        """Traces whose spans fit."""
        if self.generation == "v3":
            return self.unknown(request)
        service = request.one("service")
        if not service:
            return _v1_error(400, "parameter 'service' is required")
        wanted = json.loads(request.one("tags") or "{}")
        wanted |= dict(tag.split(":", 1) for tag in request.all("tag"))
        newest = max((span.start for span in self.spans), default=0)
        begin = int(request.one("start") or 0) * US or newest - 2 * 86_400 * 10**9
        end = int(request.one("end") or 0) * US or newest + 1
        limit = int(request.one("limit") or 100)
        found = self._search(service, wanted, begin, end, limit)
        return Reply(200, _v1_envelope(self.traces(found).values()))

    @route("GET", "/api/traces/(?P<trace_id>[^/]+)")
    def trace_v1(self, request: Request, trace_id: str) -> Reply:
        """One trace; this address stays when v1's search is gone."""
        spans = self.traces().get(trace_id)
        if spans is None:
            return _v1_error(404, "trace not found")
        return Reply(200, _v1_envelope([spans]))

    # --- both -------------------------------------------------------------------------

    def _services(self) -> list[str]:
        return sorted({str(span.resource.get("service.name", "")) for span in self.spans})

    def _search(
        self, service: str, wanted: Mapping[str, str], begin: int, end: int, limit: int
    ) -> list[FakeSpan]:
        """All spans of the traces with a span that has all attributes, its resource's included."""
        found: dict[str, None] = {}
        for span in self.spans:
            has = {**span.resource, **span.attributes}
            fits = all(_text(has.get(name)) == value for name, value in wanted.items())
            if fits and has.get("service.name") == service and begin <= span.start < end:
                found[span.trace_id] = None
        traces = self.traces()
        return [span for trace_id in list(found)[:limit] for span in traces[trace_id]]


def _v1_envelope(traces: Iterable[list[FakeSpan]]) -> dict[str, Any]:
    data = [_v1_trace(spans) for spans in traces]
    return {"data": data, "total": 0, "limit": 0, "offset": 0, "errors": None}


def _v1_trace(spans: list[FakeSpan]) -> dict[str, Any]:
    processes: dict[str, Any] = {}
    shown = []
    for span in spans:
        resource = dict(span.resource)
        process = {
            "serviceName": resource.pop("service.name", ""),
            "tags": [_tag(name, value) for name, value in resource.items()],
        }
        key = next((key for key, one in processes.items() if one == process), None)
        if key is None:
            key = f"p{len(processes) + 1}"
            processes[key] = process
        shown.append(_v1_span(span, key))
    return {
        "traceID": spans[0].trace_id,
        "spans": shown,
        "processes": processes,
        "warnings": None,
    }


def _v1_span(span: FakeSpan, process: str) -> dict[str, Any]:
    tags = {**span.attributes, "span.kind": "internal", "otel.scope.name": "fake"}
    if span.error is not None:
        tags |= {"error": True, "otel.status_code": "ERROR"}
        tags |= {"otel.status_description": span.error} if span.error else {}
    above = [
        {"refType": "CHILD_OF", "traceID": span.trace_id, "spanID": parent}
        for parent in (span.parent_id,)
        if parent
    ]
    logs = [
        {
            "timestamp": event.at // US,
            "fields": [
                _tag(name, value)
                for name, value in {"event": event.name, **event.attributes}.items()
            ],
        }
        for event in span.events
    ]
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "operationName": span.name,
        "references": above,
        "startTime": span.start // US,
        "duration": ((span.end or span.start) - span.start) // US,
        "tags": [_tag(name, value) for name, value in tags.items()],
        "logs": logs,
        "processID": process,
        "warnings": None,
    }


def _tag(name: str, value: Any) -> dict[str, Any]:
    kinds: list[tuple[type, str]] = [(bool, "bool"), (int, "int64"), (float, "float64")]
    for python_type, kind in kinds:
        if isinstance(value, python_type):
            return {"key": name, "type": kind, "value": value}
    return {"key": name, "type": "string", "value": _text(value)}


def _text(value: Any) -> Any:
    """A value as the text that Jaeger compares and shows."""
    return value if isinstance(value, str) or value is None else json.dumps(value)


def _nanoseconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1_000_000) * US


def _v3_error(status: int, message: str) -> Reply:
    body = {"error": {"httpCode": status, "message": message}}
    return Reply(status, json.dumps(body))


def _v1_error(status: int, message: str) -> Reply:
    body = {
        "data": None,
        "total": 0,
        "limit": 0,
        "offset": 0,
        "errors": [{"code": status, "msg": message}],
    }
    return Reply(status, json.dumps(body))
