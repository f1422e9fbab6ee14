"""LangSmith: the run queries of v2 first, and those of v1 where there are none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from weirbox.domain.seams import Workshop
from weirbox.domain.tracing import LangsmithSource, TraceSpec
from weirbox.errors import TraceError
from weirbox.traces.attributes import usage_of
from weirbox.traces.chat import as_chat, decoded, messages_of
from weirbox.traces.http import Api, Secrets
from weirbox.traces.pulling import LOOKBACK, Found, Source, earliest, nanoseconds
from weirbox.traces.spans import Span, SpanKind

PAGE = 100
"""Runs of one request: the most that there may be."""

_SELECTS = (
    *("ID", "NAME", "RUN_TYPE", "STATUS", "START_TIME", "END_TIME", "INPUTS", "OUTPUTS", "ERROR"),
    *("TRACE_ID", "PARENT_RUN_IDS", "METADATA", "EXTRA", "PROMPT_TOKENS", "COMPLETION_TOKENS"),
    *("PROMPT_TOKEN_DETAILS", "TOTAL_COST"),
)
_SELECT_V1 = (
    *("id", "name", "run_type", "status", "start_time", "end_time", "inputs", "outputs", "error"),
    *("trace_id", "parent_run_id", "extra", "prompt_tokens", "completion_tokens"),
    *("prompt_token_details", "total_cost"),
)
_KINDS = {"llm": SpanKind.LLM, "tool": SpanKind.TOOL}


class Langsmith(Source):
    """See `LangsmithSource`."""

    def __init__(self, spec: TraceSpec, source: LangsmithSource, workshop: Workshop) -> None:
        self._spec = source

        def headers(secrets: Secrets) -> dict[str, str]:
            filled = secrets.fill(source.headers) | {"x-api-key": secrets(source.secret)}
            return filled | ({"x-tenant-id": source.tenant} if source.tenant else {})

        api = Api(
            f"trace source 'langsmith' at {source.url}",
            source.url.removesuffix("/api/v1"),
            workshop.read_secret,
            headers,
            timeout_s=source.timeout_s,
        )
        self._v1 = source.url[len(api.base_url) :]
        super().__init__(spec, source, api)

    async def _find_by_id(self, trace_id: str) -> Found:
        """The root run's id is the trace's id, which the harness was given as hex digits."""
        return await self._found([str(UUID(hex=trace_id))])

    async def _find_by_tag(self, correlation: str) -> Found:
        project = await self._project()
        if project is None:
            return Found()
        wanted = f'and(eq(metadata_key, "{self._attribute}"), eq(metadata_value, "{correlation}"))'
        traces: list[str] = []
        async for page in self._pages(str(project["id"]), wanted=wanted):
            traces = self._checked([*traces, *(str(run["trace_id"]) for run in page)])
        return await self._found(traces)

    async def _knock(self) -> None:
        if await self._project() is None:
            raise TraceError(
                f"{self._api.who}: there is no project {self._spec.project!r} yet", status=404
            )

    async def _found(self, traces: list[str]) -> Found:
        project = await self._project()
        if project is None:
            return Found()
        spans: list[Span] = []
        for trace_id in traces:
            async for page in self._pages(str(project["id"]), trace=trace_id):
                spans += [_span(run) for run in page]
                self._room(spans)
        first = earliest(spans)
        return Found(
            spans=spans, trace_id=first, url=None if first is None else self._link(project, first)
        )

    async def _project(self) -> dict[str, Any] | None:
        """The project; None while it does not exist."""
        answer = await self._api.get(
            f"{self._v1}/sessions", [("name", self._spec.project), ("limit", "1")]
        )
        found = self._api.check_list(answer, f"project {self._spec.project!r}")
        return next((one for one in found if one.get("name") == self._spec.project), None)

    async def _pages(
        self, project: str, *, trace: str | None = None, wanted: str | None = None
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """All runs of a trace, or those that a filter finds, page by page."""
        query, path, is_v2 = _query_v2, "/api/v2/runs/query", True
        cursor: str | None = None
        while True:
            page = query(project, trace, wanted)
            answer = await self._api.post(path, page | ({"cursor": cursor} if cursor else {}))
            if answer.status in (404, 405) and is_v2 and cursor is None:
                query, path, is_v2 = _query_v1, f"{self._v1}/runs/query", False
                continue
            body = self._api.check(answer, "runs")
            yield body.get("items" if is_v2 else "runs") or []
            cursor = body.get("next_cursor") if is_v2 else (body.get("cursors") or {}).get("next")
            if not cursor:
                return

    def _link(self, project: Mapping[str, Any], trace_id: str) -> str:
        host = self._api.base_url.removesuffix("/api").replace("://api.", "://", 1)
        host = host.replace(".api.smith.", ".smith.", 1)
        return f"{host}/o/{project.get('tenant_id')}/projects/p/{project['id']}/r/{trace_id}"


def _query_v2(project: str, trace: str | None, wanted: str | None) -> dict[str, Any]:
    query: dict[str, Any] = {
        "project_ids": [project],
        "min_start_time": (datetime.now(UTC) - LOOKBACK).isoformat(),
        "selects": list(_SELECTS if wanted is None else ("ID", "TRACE_ID")),
        "page_size": PAGE,
    }
    return query | ({"trace_id": trace} if trace else {}) | ({"filter": wanted} if wanted else {})


def _query_v1(project: str, trace: str | None, wanted: str | None) -> dict[str, Any]:
    query: dict[str, Any] = {
        "session": [project],
        "select": list(_SELECT_V1 if wanted is None else ("id", "trace_id")),
        "limit": PAGE,
    }
    return query | ({"trace": trace} if trace else {}) | ({"filter": wanted} if wanted else {})


def _span(run: Mapping[str, Any]) -> Span:
    """A run of either API as a span."""
    kind = _KINDS.get(str(run.get("run_type")).lower(), SpanKind.STEP)
    above = run.get("parent_run_ids") or [run.get("parent_run_id")]
    told, gave = run.get("inputs") or None, run.get("outputs") or None
    is_llm = kind is SpanKind.LLM
    exchanged = _sole if kind is SpanKind.TOOL else as_chat
    metadata = {**((run.get("extra") or {}).get("metadata") or {}), **(run.get("metadata") or {})}
    return Span(
        trace_id=str(run["trace_id"]),
        id=str(run["id"]),
        parent=above[-1],
        name=str(run.get("name") or ""),
        start=nanoseconds(run["start_time"]) or 0,
        end=nanoseconds(run.get("end_time")),
        kind=kind,
        error=str(run["error"]) if run.get("error") else None,
        model=metadata.get("ls_model_name"),
        usage=_usage(run, is_llm),
        tool=str(run.get("name") or ""),
        given=None if is_llm else exchanged(told),
        gave=None if is_llm else exchanged(gave),
        messages=messages_of(told, "user") if is_llm else (),
        reply=messages_of(_without_usage(gave), "assistant") if is_llm else (),
    )


def _usage(run: Mapping[str, Any], is_llm: bool) -> Any:
    """Tokens and cost; LangSmith says 0 where no model was called."""
    details = run.get("prompt_token_details") or {}
    given, gave = run.get("prompt_tokens"), run.get("completion_tokens")
    if not is_llm and not given and not gave:
        return None
    cost = run.get("total_cost")
    return usage_of(
        given=given,
        read=details.get("cache_read"),
        written=details.get("cache_creation"),
        gave=gave,
        cost=float(cost) if cost is not None else None,
    )


def _sole(value: Any) -> Any:
    """What a tool was given or gave: LangSmith wraps what is no object."""
    if isinstance(value, dict) and len(value) == 1:
        (name, inner), *_ = value.items()
        if name in ("input", "output"):
            return decoded(inner)
    return decoded(value)


def _without_usage(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: inner for name, inner in value.items() if name != "usage_metadata"}
    return value
