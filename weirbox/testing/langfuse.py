"""A Langfuse project in memory."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from weirbox.testing.platform import FakePlatform, FakeSpan, Reply, Request, route

Generation = Literal["v3", "v4"]

PUBLIC_KEY, SECRET_KEY = "pk-lf-fake", "sk-lf-fake"
"""The keys that the fake takes."""

PROJECT = "fake-project"

_CUT = 200
"""Characters of a value in the metadata of v4's observations."""

_TYPES = {
    "chat": "GENERATION",
    "text_completion": "GENERATION",
    "generate_content": "GENERATION",
    "execute_tool": "TOOL",
    "invoke_agent": "AGENT",
}
_TAKEN = {
    *("gen_ai.input.messages", "gen_ai.output.messages"),
    *("gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "input.value", "output.value"),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GONE = (
    "This endpoint is not available on deployments running in Langfuse v4 events_only mode. "
    "Use the v2 observations API."
)
_NOT_YET = "The observations v2 API is only available in a Langfuse v4 write mode."
_GROUPS = {
    "basic": ("name", "level", "statusMessage", "environment", "version"),
    "time": ("completionStartTime", "createdAt", "updatedAt"),
    "io": ("input", "output"),
    "metadata": ("metadata",),
    "model": ("providedModelName", "internalModelId", "modelParameters"),
    "usage": ("usageDetails", "costDetails", "totalCost"),
    "trace_context": ("tags", "release", "traceName"),
}
_PRICES = ("modelId", "inputPrice", "outputPrice", "totalPrice")
_CORE = ("id", "traceId", "startTime", "endTime", "projectId", "parentObservationId", "type")


class FakeLangfuse(FakePlatform):
    """Langfuse: with the API of v3, or that of v4 in whose place it is taken away.

    As with the real one, tokens from a cache are taken out of the input, times have
    milliseconds, and long values in metadata are cut where v4 is not asked to expand them.
    """

    def __init__(self, generation: Generation = "v4") -> None:
        super().__init__()
        self.generation = generation
        pair = base64.b64encode(f"{PUBLIC_KEY}:{SECRET_KEY}".encode()).decode()
        self.required = {"authorization": f"Basic {pair}"}

    def answer(self, request: Request) -> Reply:
        """An address that is gone says so before it asks for keys."""
        gone = self.generation == "v4" and request.path.startswith("/api/public/traces")
        if gone and not self.troubles:
            self.requests.append(request)
            return _not_found(_GONE)
        return super().answer(request)

    def unauthorized(self, request: Request) -> Reply:
        """What is wrong with the keys."""
        if "authorization" not in request.headers:
            return Reply(401, {"message": "No authorization header"})
        return Reply(
            401,
            {"message": "Invalid credentials. Confirm that you've configured the correct host."},
        )

    @route("GET", "/api/public/projects")
    def projects(self, request: Request) -> Reply:
        """The project of the keys."""
        return Reply(200, {"data": [{"id": PROJECT, "name": "fake", "metadata": {}}]})

    @route("GET", "/api/public/v2/observations")
    def observations(self, request: Request) -> Reply:
        """Observations that fit, page by page; a filter goes before the other conditions."""
        if self.generation == "v3":
            return _not_found(_NOT_YET)
        limit = int(request.one("limit") or 50)
        if limit > 1000:
            return Reply(400, {"message": "Invalid request data", "error": []})
        found = sorted(self.spans, key=lambda span: span.start, reverse=True)
        if request.one("filter"):
            conditions = json.loads(request.one("filter"))
            found = [s for s in found if all(self._fits(s, one) for one in conditions)]
        elif request.one("traceId"):
            found = [span for span in found if span.trace_id == request.one("traceId")]
        begin = int(base64.b64decode(request.one("cursor")) or 0)
        page = found[begin : begin + limit]
        more = begin + limit < len(found)
        cursor = base64.b64encode(str(begin + limit).encode()).decode()
        shown = [self._observation_v4(span, request) for span in page]
        return Reply(200, {"data": shown, "meta": {"cursor": cursor} if more else {}})

    @route("GET", "/api/public/traces")
    def search_v3(self, request: Request) -> Reply:
        """Traces that fit."""
        traces = self.traces()
        found = list(traces)
        if request.one("filter"):
            conditions = json.loads(request.one("filter"))
            found = [t for t in found if all(_fits_v3(traces[t], one) for one in conditions)]
        elif request.all("tags"):
            found = [t for t in found if set(request.all("tags")) <= set(_tags(traces[t]))]
        limit, page = int(request.one("limit") or 50), int(request.one("page") or 1)
        shown = [self._trace(traces[t]) for t in found[(page - 1) * limit : page * limit]]
        meta = {
            "page": page,
            "limit": limit,
            "totalItems": len(found),
            "totalPages": -(-len(found) // limit),
        }
        return Reply(200, {"data": shown, "meta": meta})

    @route("GET", "/api/public/traces/(?P<trace_id>[^/]+)")
    def trace_v3(self, request: Request, trace_id: str) -> Reply:
        """One trace with its observations."""
        spans = self.traces().get(trace_id)
        if spans is None:
            return _not_found(f"Trace {trace_id} not found within authorized project")
        body = self._trace(spans) | {
            "observations": [_observation_v3(span) for span in spans],
            "scores": [],
            "latency": 0.0,
            "totalCost": 0.0,
        }
        return Reply(200, body)

    def unknown(self, request: Request) -> Reply:
        """A page."""
        return Reply(404, "<!DOCTYPE html><title>404</title>")

    def _fits(self, span: FakeSpan, condition: Mapping[str, Any]) -> bool:
        """Whether an observation fits one condition of a filter."""
        match condition["type"], condition["column"]:
            case "stringObject", "metadata":
                return bool(_flat_metadata(span).get(condition["key"]) == condition["value"])
            case "arrayOptions", "traceTags":
                return bool(set(_tags(self.traces()[span.trace_id])) & set(condition["value"]))
            case "datetime", "startTime":
                return bool(_iso(span.start) >= f"{condition['value'][:23]}Z")
            case _:
                raise ValueError(f"the fake knows no such condition: {condition}")

    def _observation_v4(self, span: FakeSpan, request: Request) -> dict[str, Any]:
        groups = (request.one("fields") or "core,basic").split(",")
        names = [*_CORE, *(name for group in groups for name in _GROUPS.get(group, ()))]
        expanded = request.one("expandMetadata").split(",")
        metadata = {
            name: value if name in expanded else value[:_CUT]
            for name, value in _flat_metadata(span).items()
        }
        cost = _cost(span)
        whole = _common(span) | {
            "projectId": PROJECT,
            "isRootObservation": span.parent_id is None,
            "input": _io(span)[0],
            "output": _io(span)[1],
            "metadata": metadata,
            "providedModelName": _model(span),
            "internalModelId": None,
            "totalCost": cost.get("total"),
            "createdAt": _iso(span.start),
            "updatedAt": _iso(span.start),
            "tags": _tags([span]),
            "release": None,
            "traceName": None,
        }
        return dict.fromkeys(_PRICES) | {name: whole[name] for name in names}

    def _trace(self, spans: list[FakeSpan]) -> dict[str, Any]:
        first = min(spans, key=lambda span: span.start)
        return {
            "id": first.trace_id,
            "timestamp": _iso(first.start),
            "name": first.name,
            "input": None,
            "output": None,
            "sessionId": None,
            "release": None,
            "version": None,
            "userId": None,
            "metadata": _metadata(first),
            "tags": _tags(spans),
            "public": False,
            "environment": "default",
            "htmlPath": f"/project/{PROJECT}/traces/{first.trace_id}",
        }


def _common(span: FakeSpan) -> dict[str, Any]:
    """What both APIs say of an observation."""
    operation = str(span.attributes.get("gen_ai.operation.name"))
    return {
        "id": span.span_id,
        "traceId": span.trace_id,
        "type": span.attributes.get("langfuse.observation.type", _TYPES.get(operation, "SPAN")),
        "name": span.attributes.get("gen_ai.tool.name") or span.name,
        "startTime": _iso(span.start),
        "endTime": None if span.end is None else _iso(span.end),
        "completionStartTime": None,
        "level": "DEFAULT" if span.error is None else "ERROR",
        "statusMessage": span.error,
        "parentObservationId": span.parent_id,
        "environment": "default",
        "version": None,
        "modelParameters": {},
        "usageDetails": _usage(span),
        "costDetails": _cost(span),
    }


def _observation_v3(span: FakeSpan) -> dict[str, Any]:
    told, gave = _io(span)
    usage, cost = _usage(span), _cost(span)
    return _common(span) | {
        "model": _model(span),
        "input": _parsed(told),
        "output": _parsed(gave),
        "metadata": _metadata(span),
        "usage": {
            "input": usage.get("input", 0),
            "output": usage.get("output", 0),
            "total": usage.get("total", 0),
            "unit": "TOKENS",
        },
        "promptId": None,
        "promptName": None,
        "promptVersion": None,
        "modelId": None,
        "inputPrice": None,
        "outputPrice": None,
        "totalPrice": None,
        "calculatedInputCost": None,
        "calculatedOutputCost": None,
        "calculatedTotalCost": cost.get("total"),
        "latency": None if span.end is None else (span.end - span.start) / 10**9,
        "timeToFirstToken": None,
    }


def _usage(span: FakeSpan) -> dict[str, int]:
    """Tokens, those of the cache beside those that are not of it."""
    counts = {
        name.removeprefix("gen_ai.usage."): value
        for name, value in span.attributes.items()
        if name.startswith("gen_ai.usage.") and name != "gen_ai.usage.cost"
    }
    if not counts:
        return {}
    read = counts.get("cache_read.input_tokens", 0)
    written = counts.get("cache_creation.input_tokens", 0)
    found = {
        "input": counts.get("input_tokens", 0) - read - written,
        "output": counts.get("output_tokens", 0),
    }
    found |= {"input_cached_tokens": read} if read else {}
    found |= {"input_cache_creation": written} if written else {}
    return found | {"total": sum(found.values())}


def _cost(span: FakeSpan) -> dict[str, float]:
    cost = span.attributes.get("gen_ai.usage.cost")
    return {} if cost is None else {"total": cost}


def _model(span: FakeSpan) -> Any:
    return span.attributes.get("gen_ai.response.model", span.attributes.get("gen_ai.request.model"))


def _io(span: FakeSpan) -> tuple[Any, Any]:
    given = span.attributes
    told = given.get("gen_ai.input.messages", given.get("gen_ai.tool.call.arguments"))
    gave = given.get("gen_ai.output.messages", given.get("gen_ai.tool.call.result"))
    return told or given.get("input.value"), gave or given.get("output.value")


def _metadata(span: FakeSpan) -> dict[str, Any]:
    """What is left of the attributes, as texts."""
    left = {name: _text(value) for name, value in span.attributes.items() if name not in _TAKEN}
    resource = {name: _text(value) for name, value in span.resource.items()}
    return {"attributes": left, "resourceAttributes": resource, "scope": {"name": "fake"}}


def _flat_metadata(span: FakeSpan) -> dict[str, str]:
    return {
        f"{place}.{name}": value
        for place, values in _metadata(span).items()
        for name, value in values.items()
    }


def _tags(spans: list[FakeSpan]) -> list[str]:
    return [tag for span in spans for tag in span.attributes.get("langfuse.trace.tags", ())]


def _fits_v3(spans: list[FakeSpan], condition: Mapping[str, Any]) -> bool:
    """Whether a trace fits: its metadata are the first span's, the inner objects as text."""
    first = min(spans, key=lambda span: span.start)
    match condition["type"], condition["column"], condition["operator"]:
        case "stringObject", "metadata", operator:
            text = json.dumps(_metadata(first).get(condition["key"]), separators=(",", ":"))
            value = condition["value"]
            return bool(text == value if operator == "=" else value in text)
        case "arrayOptions", "tags", "any of":
            return bool(set(_tags(spans)) & set(condition["value"]))
        case "datetime", "timestamp", ">=":
            return bool(_iso(first.start) >= f"{condition['value'][:23]}Z")
        case _:
            raise ValueError(f"the fake knows no such condition: {condition}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "["):
        return json.loads(value)
    return value


def _iso(at: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=at // 1_000_000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _not_found(message: str) -> Reply:
    return Reply(404, {"message": message, "error": "LangfuseNotFoundError"})
