"""A Phoenix server in memory."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from weirbox.testing.platform import FakePlatform, FakeSpan, Reply, Request, route

_KINDS = {"chat": "LLM", "execute_tool": "TOOL", "invoke_agent": "AGENT"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FakePhoenix(FakePlatform):
    """Phoenix 20: it drops resource attributes, and tells kinds of spans apart itself.

    As with the real one, a span id is taken once and never again, and the newest spans come
    first.

    Attributes:
        project: Where spans go that are added; it is there once the first span is.
    """

    def __init__(self, project: str = "default") -> None:
        super().__init__()
        self.project = project

    def add(self, *spans: FakeSpan) -> None:
        """Take spans in, but those whose id is known."""
        known = {span.span_id for span in self.spans}
        super().add(*(span for span in spans if span.span_id not in known))

    @route("GET", "/v1/projects/(?P<project>[^/]+)")
    def project_of(self, request: Request, project: str) -> Reply:
        """A project."""
        if not self._has(project):
            return _no_project(project)
        return Reply(200, {"data": {"name": project, "description": None, "id": "UHJvamVjdDox"}})

    @route("GET", "/v1/projects/(?P<project>[^/]+)/spans")
    def spans_of(self, request: Request, project: str) -> Reply:
        """Spans that fit, page by page."""
        if not self._has(project):
            return _no_project(project)
        limit = int(request.one("limit") or 100)
        if not 1 <= limit <= 1000:
            return Reply(422, {"detail": [{"msg": "limit must be between 1 and 1000"}]})
        traces = request.all("trace_id")
        found = [
            span
            for span in reversed(self.spans)
            if (not traces or span.trace_id in traces)
            and all(_has(span, wanted) for wanted in request.all("attribute"))
        ]
        begin = int(request.one("cursor") or 0)
        page = found[begin : begin + limit]
        more = str(begin + limit) if begin + limit < len(found) else None
        return Reply(200, {"data": [_shown(span) for span in page], "next_cursor": more})

    def unauthorized(self, request: Request) -> Reply:
        """A text."""
        return Reply(401, "Invalid token")

    def _has(self, project: str) -> bool:
        return project == self.project and bool(self.spans)


def _has(span: FakeSpan, wanted: str) -> bool:
    name, _, text = wanted.partition(":")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return bool(span.attributes.get(name) == value)


def _shown(span: FakeSpan) -> dict[str, Any]:
    attributes = dict(span.attributes)
    kind = attributes.pop("openinference.span.kind", None)
    return {
        "id": f"U3Bhbjo{span.span_id}",
        "name": span.name,
        "context": {"trace_id": span.trace_id, "span_id": span.span_id},
        "span_kind": kind or _KINDS.get(str(attributes.get("gen_ai.operation.name")), "UNKNOWN"),
        "parent_id": span.parent_id,
        "start_time": _moment(span.start),
        "end_time": None if span.end is None else _moment(span.end),
        "status_code": "UNSET" if span.error is None else "ERROR",
        "status_message": span.error or "",
        "attributes": attributes,
        "events": [
            {
                "name": event.name,
                "timestamp": _moment(event.at),
                "attributes": dict(event.attributes),
            }
            for event in span.events
        ],
    }


def _moment(at: int) -> str:
    return (_EPOCH + timedelta(microseconds=at // 1000)).isoformat()


def _no_project(project: str) -> Reply:
    return Reply(404, f"Project with name {project} not found")
