"""LangSmith: a tree of runs in a project, and feedback for each score."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from weirbox.domain.exporting import LangsmithSink
from weirbox.domain.seams import ReadSecret, RunHeader, TrialExport
from weirbox.domain.words import EventKind
from weirbox.sinks.identity import project_uuid, run_uuid
from weirbox.sinks.platform import Delivery, PlatformSink
from weirbox.sinks.scores import SentScore, scores_of
from weirbox.sinks.spans import NS, ROOT, Span, TraceSpans, facts, spans_of
from weirbox.sinks.wire import Answer, Refused

AT_ONCE = 100
"""The most runs of one request, as LangSmith's own clients have it."""

_THERE = frozenset({409})


class Project(NamedTuple):
    """Where runs go."""

    id: str
    tenant: str


class Langsmith(PlatformSink[LangsmithSink, Project]):
    """Sends to a project."""

    def _scope(self, run: RunHeader) -> str:
        return self._spec.project or run.suite

    def _credentials(self, read_secret: ReadSecret) -> Mapping[str, str]:
        """The API key, and the workspace where one is named."""
        tenant = {"x-tenant-id": self._spec.tenant} if self._spec.tenant else {}
        return {"x-api-key": read_secret(self._spec.secret)} | tenant

    async def _prepare(self, run: RunHeader) -> Project:
        """Find the project, or make it; its id is made from its name, so that it is made once."""
        name = self._scope(run)
        answer = await self._wire.call("GET", "/sessions", params={"name": name, "limit": "1"})
        found = answer.found(0)
        if found is None:
            made = {"id": project_uuid(self._spec.url, name), "name": name}
            answer = await self._wire.call(
                "POST", "/sessions", body=made, params={"upsert": "true"}
            )
            found = answer.json()
        if not isinstance(found, dict) or "id" not in found:
            raise Refused(
                f"{self._spec.url} does not answer as LangSmith does", status=answer.status
            )
        return Project(str(found["id"]), str(found.get("tenant_id") or self._spec.tenant or ""))

    async def _deliver(self, trial: TrialExport, run: RunHeader, place: Project) -> Delivery:
        root = self._attached_to(trial, run)
        left_out: list[Refused] = []
        started = None
        if root is None:
            trace = spans_of(trial, run)
            root, started = run_uuid(trial, ROOT), _moment(trace.root.start)
            left_out = await self._post_runs(_runs(trial, run, trace, self._scope(run)))
        sending = {
            score.name: self._wire.call(
                "POST", "/feedback", body=_feedback(score, root, place, started), fine=_THERE
            )
            for score in scores_of(trial, run)
        }
        return Delivery(self._link(place, root), tuple(left_out)).without(await self._all(sending))

    async def _post_runs(self, runs: list[dict[str, Any]]) -> list[Refused]:
        """Send the runs, the root first; those that are there already are left as they are."""
        left_out = []
        for first in range(0, len(runs), AT_ONCE):
            body = {"post": runs[first : first + AT_ONCE], "patch": []}
            answer = await self._wire.call("POST", "/runs/batch", body=body, fine=_THERE)
            if (message := _errors(answer)) is not None:
                left_out.append(Refused(message, status=answer.status))
        return left_out

    def _link(self, place: Project, root: str) -> str:
        if not place.tenant:
            return f"{_site(self._spec.url)}/projects/p/{place.id}/r/{root}?poll=true"
        return f"{_site(self._spec.url)}/o/{place.tenant}/projects/p/{place.id}/r/{root}?poll=true"

    async def _ask(self) -> None:
        await self._wire.call("GET", "/sessions", params={"limit": "1"})


def _runs(
    trial: TrialExport, run: RunHeader, trace: TraceSpans, project: str
) -> list[dict[str, Any]]:
    order: dict[str | int, str] = {}
    runs = []
    for span in trace.spans:
        own = run_uuid(trial, span.place)
        stamp = f"{_moment(span.start):%Y%m%dT%H%M%S%fZ}{own}"
        order[span.place] = stamp if span.parent is None else f"{order[span.parent]}.{stamp}"
        body = {
            "id": own,
            "trace_id": run_uuid(trial, ROOT),
            "dotted_order": order[span.place],
            "parent_run_id": None if span.parent is None else run_uuid(trial, span.parent),
            "name": span.name,
            "run_type": _RUN_TYPES.get(span.kind, "chain"),
            "start_time": _moment(span.start).isoformat(),
            "end_time": _moment(span.end).isoformat(),
            "inputs": {} if span.inputs is None else {"input": span.inputs},
            "outputs": _outputs(span),
            "error": span.error,
            "session_name": project,
            "tags": [f"run:{trial.run_id}", f"suite:{trial.suite}"],
            "extra": {"metadata": _metadata(span, trial, run)},
        }
        runs.append({key: value for key, value in body.items() if value is not None})
    return runs


_RUN_TYPES: dict[EventKind | None, str] = {
    EventKind.LLM_CALL: "llm",
    EventKind.TOOL_CALL: "tool",
    EventKind.TOOL_RESULT: "tool",
}


def _outputs(span: Span) -> dict[str, Any]:
    outputs: dict[str, Any] = {} if span.outputs is None else {"output": span.outputs}
    usage = span.usage
    if span.kind is EventKind.LLM_CALL and usage is not None and usage.total_tokens is not None:
        outputs["usage_metadata"] = {
            "input_tokens": usage.input_tokens or 0,
            "output_tokens": usage.output_tokens or 0,
            "total_tokens": usage.total_tokens,
        }
    return outputs


def _metadata(span: Span, trial: TrialExport, run: RunHeader) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if span.place == ROOT:
        known = {
            f"weirbox.{name}": span.attributes[f"weirbox.{name}"] for name in facts(trial, run)
        }
    if span.model is not None:
        known["ls_model_name"] = span.model
    return known


def _feedback(
    score: SentScore, root: str, place: Project, started: datetime | None
) -> dict[str, Any]:
    """One score; what was not measured has a value in words, and no number."""
    body = {
        "id": score.id,
        "run_id": root,
        "trace_id": root,
        "session_id": place.id,
        "start_time": None if started is None else started.isoformat(),
        "key": score.name,
        "score": score.number,
        "value": score.label,
        "comment": score.why or None,
        "feedback_source": {
            "type": "model" if score.by_model else "api",
            "metadata": dict(score.facts),
        },
    }
    return {key: value for key, value in body.items() if value is not None}


def _errors(answer: Answer) -> str | None:
    """What a batch did not take, though it was taken."""
    errors = answer.found("errors") if answer.status == 207 else None
    return f"{len(errors)} runs were rejected: {str(errors[0])[:200]}" if errors else None


def _site(api: str) -> str:
    """Where people look, by where programs do: the host without ``api.``, or the path
    without ``/api``."""
    parts = urlsplit(api)
    host = parts.netloc.removeprefix("api.").replace(".api.smith.", ".smith.", 1)
    path = parts.path.removesuffix("/v1").removesuffix("/api")
    return urlunsplit((parts.scheme, host, path, "", ""))


def _moment(ns: int) -> datetime:
    seconds, rest = divmod(ns, NS)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
