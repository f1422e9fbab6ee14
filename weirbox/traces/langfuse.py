"""Langfuse: the observations API of v4 first, and the traces API of v3 where there is none."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from weirbox.domain.seams import Workshop
from weirbox.domain.tracing import LangfuseSource, TraceSpec
from weirbox.errors import TraceError
from weirbox.traces.attributes import langfuse_usage
from weirbox.traces.chat import as_chat, decoded, messages_of
from weirbox.traces.http import Answer, Api, Query, Secrets
from weirbox.traces.pulling import LOOKBACK, MOST_TRACES, Found, Source, earliest, nanoseconds
from weirbox.traces.spans import Span, SpanKind

PAGE = 1000
"""Observations of one request: the most that there may be, as requests are rationed."""

_V4 = "/api/public/v2/observations"
_V3 = "/api/public/traces"
_FIELDS = "core,basic,time,io,metadata,model,usage,trace_context"
_KINDS = {"GENERATION": SpanKind.LLM, "TOOL": SpanKind.TOOL}
_TOOL_NAME = "gen_ai.tool.name"


class Langfuse(Source):
    """See `LangfuseSource`."""

    def __init__(self, spec: TraceSpec, source: LangfuseSource, workshop: Workshop) -> None:
        self._spec = source

        def headers(secrets: Secrets) -> dict[str, str]:
            pair = f"{secrets(source.public_key)}:{secrets(source.secret_key)}"
            basic = base64.b64encode(pair.encode("ascii")).decode("ascii")
            secrets.hide(basic)
            return secrets.fill(source.headers) | {"authorization": f"Basic {basic}"}

        api = Api(
            f"trace source 'langfuse' at {source.url}",
            source.url,
            workshop.read_secret,
            headers,
            timeout_s=source.timeout_s,
        )
        super().__init__(spec, source, api)

    async def _find_by_id(self, trace_id: str) -> Found:
        return await self._found([trace_id])

    async def _find_by_tag(self, correlation: str) -> Found:
        for wanted in self._filters(correlation, "traceTags"):
            found = await self._search_v4(wanted)
            if found is None:
                return await self._find_by_tag_v3(correlation)
            if found:
                return await self._found(found)
        return Found()

    async def _knock(self) -> None:
        self._api.check(await self._api.get("/api/public/projects"), "projects")

    # --- v4 ---------------------------------------------------------------------------

    async def _found(self, traces: list[str]) -> Found:
        spans: list[Span] = []
        link: str | None = None
        for trace_id in traces:
            cursor: str | None = None
            while True:
                query = [("traceId", trace_id), ("fields", _FIELDS), ("limit", str(PAGE))]
                body = await self._page(query, cursor)
                if body is None:
                    return await self._found_v3(traces)
                for one in body.get("data") or ():
                    spans.append(_span(one))
                    if link is None and one.get("projectId"):
                        link = f"/project/{one['projectId']}/traces/{trace_id}"
                self._room(spans)
                cursor = (body.get("meta") or {}).get("cursor")
                if not cursor:
                    break
        return self._told(spans, link)

    async def _search_v4(self, wanted: dict[str, Any]) -> list[str] | None:
        """The traces with an observation that fits; None where the server has no such API."""
        since = {
            "type": "datetime",
            "column": "startTime",
            "operator": ">=",
            "value": _since(),
        }
        traces: list[str] = []
        cursor: str | None = None
        while True:
            query = [("filter", json.dumps([wanted, since])), ("fields", "core")]
            body = await self._page([*query, ("limit", str(PAGE))], cursor)
            if body is None:
                return None
            traces = self._checked([*traces, *(one["traceId"] for one in body.get("data") or ())])
            cursor = (body.get("meta") or {}).get("cursor")
            if not cursor:
                return traces

    async def _page(self, query: Query, cursor: str | None) -> dict[str, Any] | None:
        more = [("cursor", cursor)] if cursor else []
        answer = await self._api.get(_V4, [*query, *more])
        if answer.status == 404:
            return None
        return self._api.check(answer, "observations")

    # --- v3 ---------------------------------------------------------------------------

    async def _find_by_tag_v3(self, correlation: str) -> Found:
        since = {"type": "datetime", "column": "timestamp", "operator": ">=", "value": _since()}
        nested = f'"{self._attribute}":"{correlation}"'
        inside = [
            {
                "type": "stringObject",
                "column": "metadata",
                "key": key,
                "operator": "contains",
                "value": nested,
            }
            for key in ("resourceAttributes", "attributes")
        ]
        for wanted in (*self._filters(correlation, "tags"), *inside):
            found = await self._search_v3([wanted, since])
            if found:
                return await self._found_v3(found)
        return Found()

    async def _search_v3(self, filters: list[dict[str, Any]]) -> list[str]:
        traces: list[str] = []
        page, pages = 1, 1
        while page <= pages:
            query = [("filter", json.dumps(filters)), ("fields", "core"), ("page", str(page))]
            answer = await self._api.get(_V3, [*query, ("limit", str(MOST_TRACES))])
            if answer.status == 404:
                raise self._nothing_here(answer)
            body = self._api.check(answer, "traces")
            traces = self._checked([*traces, *(str(one["id"]) for one in body.get("data") or ())])
            page, pages = page + 1, (body.get("meta") or {}).get("totalPages") or 1
        return traces

    async def _found_v3(self, traces: list[str]) -> Found:
        spans: list[Span] = []
        link: str | None = None
        for trace_id in traces:
            answer = await self._api.get(f"{_V3}/{trace_id}")
            if answer.status == 404 and answer.object:
                continue
            if answer.status == 404:
                raise self._nothing_here(answer)
            trace = self._api.check(answer, f"trace {trace_id}")
            spans += await asyncio.to_thread(_spans, trace.get("observations") or [])
            self._room(spans)
            link = link or trace.get("htmlPath")
        return self._told(spans, link)

    # --- both -------------------------------------------------------------------------

    def _filters(self, correlation: str, tags: str) -> Iterator[dict[str, Any]]:
        """What finds the attribute: in the environment's resource, on a span, as a tag."""
        for place in ("resourceAttributes", "attributes"):
            yield {
                "type": "stringObject",
                "column": "metadata",
                "key": f"{place}.{self._attribute}",
                "operator": "=",
                "value": correlation,
            }
        yield {
            "type": "arrayOptions",
            "column": tags,
            "operator": "any of",
            "value": [f"{self._attribute}:{correlation}"],
        }

    def _told(self, spans: list[Span], link: str | None) -> Found:
        first = earliest(spans)
        if first is None:
            return Found()
        return Found(spans=spans, trace_id=first, url=link and f"{self._spec.url}{link}")

    def _nothing_here(self, answer: Answer) -> TraceError:
        return self._api.refusal(answer, "traces", "is this the address of a Langfuse server?")


def _spans(given: Sequence[Mapping[str, Any]]) -> list[Span]:
    return [_span(one) for one in given]


def _span(given: Mapping[str, Any]) -> Span:
    """An observation of either API as a span."""
    kind = _KINDS.get(str(given.get("type")), SpanKind.STEP)
    told, gave = given.get("input"), given.get("output")
    is_llm = kind is SpanKind.LLM
    exchanged = decoded if kind is SpanKind.TOOL else as_chat
    start = nanoseconds(given["startTime"]) or 0
    is_point = given.get("type") == "EVENT"
    return Span(
        trace_id=str(given["traceId"]),
        id=str(given["id"]),
        parent=given.get("parentObservationId"),
        name=str(given.get("name") or ""),
        start=start,
        end=start if is_point else nanoseconds(given.get("endTime")),
        kind=kind,
        error=(given.get("statusMessage") or "error") if given.get("level") == "ERROR" else None,
        model=given.get("providedModelName") or given.get("model"),
        usage=langfuse_usage(given.get("usageDetails") or {}, _cost(given)),
        tool=str(_metadata(given, _TOOL_NAME) or given.get("name") or ""),
        given=None if is_llm else exchanged(told),
        gave=None if is_llm else exchanged(gave),
        messages=messages_of(told, "user") if is_llm else (),
        reply=messages_of(gave, "assistant") if is_llm else (),
    )


def _cost(given: Mapping[str, Any]) -> Any:
    """What it cost; 0 without details is what Langfuse says where it knows no price."""
    details = given.get("costDetails") or {}
    return (
        details.get("total") or given.get("totalCost") or given.get("calculatedTotalCost") or None
    )


def _metadata(given: Mapping[str, Any], name: str) -> Any:
    """An attribute in the metadata, which has dotted keys or objects."""
    metadata = decoded(given.get("metadata"))
    if not isinstance(metadata, dict):
        return None
    inner = decoded(metadata.get("attributes"))
    nested = inner.get(name) if isinstance(inner, dict) else None
    return metadata.get(f"attributes.{name}", nested)


def _since() -> str:
    return (datetime.now(UTC) - LOOKBACK).isoformat().replace("+00:00", "Z")
