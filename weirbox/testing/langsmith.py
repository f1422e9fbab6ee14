"""A LangSmith workspace in memory."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

from weirbox.testing.platform import FakePlatform, FakeSpan, Reply, Request, route

Generation = Literal["v1", "v2"]

API_KEY = "lsv2_fake_key"
"""The key that the fake takes."""

PROJECT_ID = str(uuid5(NAMESPACE_URL, "weirbox fake project"))
TENANT_ID = str(uuid5(NAMESPACE_URL, "weirbox fake tenant"))

_FILTER = re.compile(r'and\(eq\(metadata_key, "([^"]*)"\), eq\(metadata_value, "([^"]*)"\)\)')
_TYPES = {"chat": "llm", "execute_tool": "tool"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST = 100


class FakeLangsmith(FakePlatform):
    """LangSmith with the run queries of v1, or with those of v2 only.

    As with the real one, v2 gives ids unless more is selected and looks one day back unless
    told otherwise, and a trace's id is its root run's.

    Attributes:
        project: Where spans go that are added; it is there once the first span is.
    """

    def __init__(self, generation: Generation = "v2", project: str = "default") -> None:
        super().__init__()
        self.generation = generation
        self.project = project
        self.required = {"x-api-key": API_KEY}
        self._made = 0
        self._all: list[dict[str, Any]] = []

    def unauthorized(self, request: Request) -> Reply:
        """What is wrong with the key."""
        return Reply(401, {"detail": "Invalid token"})

    @route("GET", "/sessions")
    def sessions(self, request: Request) -> Reply:
        """Projects by name."""
        if not self.spans or request.one("name") not in ("", self.project):
            return Reply(200, [])
        project = {"id": PROJECT_ID, "name": self.project, "tenant_id": TENANT_ID}
        return Reply(200, [project])

    @route("POST", "/api/v2/runs/query")
    def query_v2(self, request: Request) -> Reply:
        """Runs that fit, page by page."""
        if self.generation == "v1":
            return self.unknown(request)
        asked = request.json()
        if not asked.get("project_ids"):
            return _invalid("project_ids: field required")
        size = asked.get("page_size", _MOST)
        if size > _MOST:
            return _invalid(f"page_size: at most {_MOST}")
        yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
        since = datetime.fromisoformat(asked.get("min_start_time", yesterday))
        found = self._runs(asked, "trace_id", "project_ids")
        found = [run for run in found if datetime.fromisoformat(run["start_time"]) >= since]
        begin = int(asked.get("cursor") or 0)
        selects = [name.lower() for name in asked.get("selects", ["ID"])]
        page = [
            {name: run[name] for name in selects if name in run}
            for run in map(_as_v2, found[begin : begin + size])
        ]
        more = str(begin + size) if begin + size < len(found) else None
        return Reply(200, {"items": page, "next_cursor": more})

    @route("POST", "/runs/query")
    def query_v1(self, request: Request) -> Reply:
        """Runs that fit, page by page."""
        if self.generation == "v2":
            return self.unknown(request)
        asked = request.json()
        limit = asked.get("limit", _MOST)
        if limit > _MOST:
            return _invalid(f"limit: at most {_MOST}")
        found = self._runs(asked, "trace", "session")
        begin = int(asked.get("cursor") or 0)
        page = found[begin : begin + limit]
        more = str(begin + limit) if begin + limit < len(found) else None
        return Reply(200, {"runs": page, "cursors": {"next": more}})

    def unknown(self, request: Request) -> Reply:
        """What the API says of all addresses that it does not have."""
        return Reply(404, {"detail": "Not Found"})

    def _runs(self, asked: dict[str, Any], trace: str, projects: str) -> list[dict[str, Any]]:
        if PROJECT_ID not in asked.get(projects, ()):
            return []
        if self._made != len(self.spans):
            self._made = len(self.spans)
            made = [run for spans in self.traces().values() for run in _trace_runs(spans)]
            self._all = sorted(made, key=lambda run: str(run["start_time"]), reverse=True)
        runs = self._all
        if asked.get(trace):
            runs = [run for run in runs if run["trace_id"] == asked[trace]]
        if asked.get("filter"):
            wanted = _FILTER.fullmatch(asked["filter"])
            if wanted is None:
                raise ValueError(f"the fake knows no such filter: {asked['filter']}")
            runs = [r for r in runs if r["extra"]["metadata"].get(wanted[1]) == wanted[2]]
        return runs


def _trace_runs(spans: list[FakeSpan]) -> list[dict[str, Any]]:
    """A trace's runs as v1 has them, parents with the tokens of those below."""
    by_id = {span.span_id: span for span in spans}
    root_id = str(UUID(hex=spans[0].trace_id))

    def run_id(span: FakeSpan) -> str:
        if span.parent_id is None:
            return root_id
        return str(uuid5(UUID(root_id), span.span_id))

    return [_run(span, run_id(span), root_id, _above(span, by_id, run_id)) for span in spans]


def _above(span: FakeSpan, by_id: dict[str, FakeSpan], run_id: Any) -> list[str]:
    """The runs above, from the root to the direct parent."""
    above: list[str] = []
    while span.parent_id is not None:
        parent = by_id.get(span.parent_id)
        if parent is None:
            return [str(UUID(hex=span.trace_id)), *above]
        above.insert(0, run_id(parent))
        span = parent
    return above


def _run(span: FakeSpan, run_id: str, root_id: str, above: list[str]) -> dict[str, Any]:
    given = span.attributes
    kind = _TYPES.get(str(given.get("gen_ai.operation.name")), "chain")
    told, gave = _io(span, kind)
    metadata = {
        name.removeprefix("langsmith.metadata."): value
        for name, value in given.items()
        if name.startswith("langsmith.metadata.")
    }
    model = given.get("gen_ai.response.model", given.get("gen_ai.request.model"))
    return {
        "id": run_id,
        "trace_id": root_id,
        "parent_run_id": above[-1] if above else None,
        "parent_run_ids": above,
        "session_id": PROJECT_ID,
        "name": given.get("gen_ai.tool.name", span.name),
        "run_type": kind,
        "status": "pending" if span.end is None else ("success" if span.error is None else "error"),
        "start_time": _iso(span.start),
        "end_time": None if span.end is None else _iso(span.end),
        "inputs": told,
        "outputs": gave,
        "error": span.error,
        "extra": {"metadata": metadata | ({"ls_model_name": model} if model else {})},
        "tags": [],
        "prompt_tokens": given.get("gen_ai.usage.input_tokens", 0),
        "completion_tokens": given.get("gen_ai.usage.output_tokens", 0),
        "prompt_token_details": _details(span),
        "total_cost": _cost(span),
    }


def _as_v2(run: dict[str, Any]) -> dict[str, Any]:
    return run | {"run_type": run["run_type"].upper(), "metadata": run["extra"]["metadata"]}


def _details(span: FakeSpan) -> dict[str, int]:
    return {
        name: span.attributes[f"gen_ai.usage.{name}.input_tokens"]
        for name in ("cache_read", "cache_creation")
        if f"gen_ai.usage.{name}.input_tokens" in span.attributes
    }


def _cost(span: FakeSpan) -> str | None:
    """Money, as the decimal text that LangSmith gives."""
    cost = span.attributes.get("gen_ai.usage.cost")
    return None if cost is None else str(cost)


def _io(span: FakeSpan, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    given = span.attributes
    if kind == "llm":
        told = json.loads(given.get("gen_ai.input.messages", "[]"))
        gave = json.loads(given.get("gen_ai.output.messages", "[]"))
        usage = {
            "input_tokens": given.get("gen_ai.usage.input_tokens", 0),
            "output_tokens": given.get("gen_ai.usage.output_tokens", 0),
        }
        return (
            {"messages": [_message(one) for one in told]},
            {"messages": [_message(one) for one in gave], "usage_metadata": usage},
        )
    told = given.get("gen_ai.tool.call.arguments", given.get("input.value"))
    gave = given.get("gen_ai.tool.call.result", given.get("output.value"))
    return _wrapped("input", told), _wrapped("output", gave)


def _wrapped(name: str, value: Any) -> dict[str, Any]:
    """An object as it is; what is none in one, since inputs and outputs are objects."""
    if value is None:
        return {}
    parsed = json.loads(value) if value[:1] in ("{", "[") else value
    return parsed if isinstance(parsed, dict) else {name: parsed}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message with parts as LangChain has it."""
    shown: dict[str, Any] = {"role": message["role"], "content": ""}
    for part in message["parts"]:
        match part["type"]:
            case "text":
                shown["content"] += part["content"]
            case "tool_call":
                call = {"id": part["id"], "name": part["name"], "args": part["arguments"]}
                shown.setdefault("tool_calls", []).append(call)
            case "tool_call_response":
                shown |= {"content": part["response"], "tool_call_id": part["id"]}
    return shown


def _iso(at: int) -> str:
    return (_EPOCH + timedelta(microseconds=at // 1000)).isoformat()


def _invalid(message: str) -> Reply:
    return Reply(422, {"detail": [{"msg": message}]})
