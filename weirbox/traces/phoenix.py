"""Phoenix, by its REST interface."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

from weirbox.domain.seams import Workshop
from weirbox.domain.tracing import PhoenixSource, TraceSpec
from weirbox.errors import TraceError
from weirbox.traces.attributes import SpanEvent, span_of
from weirbox.traces.http import Api, Secrets
from weirbox.traces.pulling import Found, Source, earliest, nanoseconds
from weirbox.traces.spans import Span

PAGE = 500
"""Spans of one request; the server allows 1000."""


class Phoenix(Source):
    """See `PhoenixSource`."""

    def __init__(self, spec: TraceSpec, source: PhoenixSource, workshop: Workshop) -> None:
        self._spec = source

        def headers(secrets: Secrets) -> dict[str, str]:
            filled = secrets.fill(source.headers)
            if source.secret is not None:
                filled["authorization"] = f"Bearer {secrets(source.secret)}"
            return filled

        api = Api(
            f"trace source 'phoenix' at {source.url}",
            source.url,
            workshop.read_secret,
            headers,
            timeout_s=source.timeout_s,
        )
        super().__init__(spec, source, api)

    async def _find_by_id(self, trace_id: str) -> Found:
        return self._found(await self._spans(trace_id))

    async def _find_by_tag(self, correlation: str) -> Found:
        wanted = f"{self._attribute}:{json.dumps(correlation)}"
        traces: list[str] = []
        async for span in self._pages(("attribute", wanted)):
            # A server that does not know the filter gives all spans there are.
            if _flat(span.get("attributes") or {}).get(self._attribute) == correlation:
                traces.append(span["context"]["trace_id"])
        spans: list[Span] = []
        for trace_id in self._checked(traces):
            spans += await self._spans(trace_id)
            self._room(spans)
        return self._found(spans)

    async def _knock(self) -> None:
        path = f"/v1/projects/{quote(self._spec.project, safe='')}"
        answer = await self._api.get(path)
        if answer.status == 404:
            raise TraceError(
                f"{self._api.who}: there is no project {self._spec.project!r} yet", status=404
            )
        self._api.check(answer, f"project {self._spec.project!r}")

    async def _spans(self, trace_id: str) -> list[Span]:
        spans: list[Span] = []
        async for span in self._pages(("trace_id", trace_id)):
            if span["context"]["trace_id"] == trace_id:
                spans.append(_span(span))
                self._room(spans)
        return spans

    async def _pages(self, wanted: tuple[str, str]) -> AsyncIterator[dict[str, Any]]:
        """All spans that are wanted, page by page; none while there is no such project."""
        path = f"/v1/projects/{quote(self._spec.project, safe='')}/spans"
        cursor: str | None = None
        while True:
            query = [wanted, ("limit", str(PAGE))]
            answer = await self._api.get(path, query + ([("cursor", cursor)] if cursor else []))
            if answer.status == 404 and answer.said.startswith("Project"):
                return
            body = self._api.check(answer, "spans")
            for span in body.get("data") or ():
                yield span
            cursor = body.get("next_cursor")
            if not cursor:
                return

    def _found(self, spans: list[Span]) -> Found:
        first = earliest(spans)
        url = None if first is None else f"{self._spec.url}/redirects/traces/{first}"
        return Found(spans=spans, trace_id=first, url=url)


def _span(span: Mapping[str, Any]) -> Span:
    attributes = _flat(span.get("attributes") or {})
    kind = span.get("span_kind")
    if kind and kind != "UNKNOWN":
        attributes.setdefault("openinference.span.kind", kind)
    return span_of(
        attributes,
        trace_id=span["context"]["trace_id"],
        id=span["context"]["span_id"],
        parent=span.get("parent_id"),
        name=span.get("name") or "",
        start=nanoseconds(span["start_time"]) or 0,
        end=nanoseconds(span.get("end_time")),
        failed=span.get("status_code") == "ERROR",
        status=span.get("status_message") or "",
        events=[
            SpanEvent(event.get("name") or "", event.get("attributes") or {})
            for event in span.get("events") or ()
        ],
    )


def _flat(attributes: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Attributes by dotted keys; some versions give them as objects."""
    flat: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{above}{name}.")
        else:
            flat[f"{above}{name}"] = value
    return flat
