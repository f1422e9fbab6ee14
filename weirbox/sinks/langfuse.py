"""Langfuse: an OTLP trace in the keys' project, and a score for each score."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weirbox.domain.exporting import LangfuseSink
from weirbox.domain.platforms import SourceTrace
from weirbox.domain.seams import ReadSecret, RunHeader, TrialExport
from weirbox.sinks import otlp
from weirbox.sinks.platform import Delivery, PlatformSink
from weirbox.sinks.scores import SentScore, scores_of
from weirbox.sinks.spans import Attributes, Span, TraceSpans, facts, spans_of
from weirbox.sinks.wire import Refused

_VERSION = {"x-langfuse-ingestion-version": "4"}
"""Without it, what is sent may show ten minutes later."""


class Langfuse(PlatformSink[LangfuseSink, str]):
    """Sends to the project that the keys belong to, whose id is the place."""

    def _credentials(self, read_secret: ReadSecret) -> Mapping[str, str]:
        """HTTP Basic with the two keys."""
        keys = f"{read_secret(self._spec.public_key)}:{read_secret(self._spec.secret_key)}"
        return {"authorization": f"Basic {b64encode(keys.encode('ascii')).decode('ascii')}"}

    async def _prepare(self, run: RunHeader) -> str:
        return await self._project()

    async def _project(self) -> str:
        answer = await self._wire.call("GET", "/api/public/projects")
        found = answer.found("data", 0, "id")
        if found is None:
            raise Refused(
                f"{self._spec.url} does not answer as Langfuse does", status=answer.status
            )
        return str(found)

    async def _deliver(self, trial: TrialExport, run: RunHeader, place: str) -> Delivery:
        trace_id = self._attached_to(trial, run)
        if not _is_of(place, trial.source_trace):
            trace_id = None
        left_out = []
        if trace_id is None:
            trace = self._trace(trial, run)
            trace_id = trace.trace_id
            rest = await otlp.post(
                self._wire, "/api/public/otel/v1/traces", trace, headers=_VERSION
            )
            left_out = [Refused(rest, status=200)] if rest else []
        sending = {
            score.name: self._wire.call(
                "POST", "/api/public/scores", body=self._score(trace_id, score)
            )
            for score in scores_of(trial, run)
        }
        url = f"{self._spec.url}/project/{place}/traces/{trace_id}"
        return Delivery(url, tuple(left_out)).without(await self._all(sending))

    def _trace(self, trial: TrialExport, run: RunHeader) -> TraceSpans:
        """The spans with what Langfuse shows of a trace in its lists."""
        trace = spans_of(trial, run)
        root = replace(
            trace.root, attributes={**trace.root.attributes, **_shown(trace, trial, run)}
        )
        resource = dict(trace.resource)
        if self._spec.environment is not None:
            resource["langfuse.environment"] = self._spec.environment
        return replace(trace, spans=(root, *trace.spans[1:]), resource=resource)

    def _score(self, trace_id: str, score: SentScore) -> dict[str, Any]:
        value, kind = _typed(score)
        body = {
            "id": score.id,
            "traceId": trace_id,
            "name": score.name,
            "value": value,
            "dataType": kind,
            "comment": score.why or None,
            "metadata": dict(score.facts),
            "environment": self._spec.environment,
        }
        return {key: value for key, value in body.items() if value is not None}

    async def _ask(self) -> None:
        await self._project()


def _is_of(project: str, source: SourceTrace | None) -> bool:
    """Whether a trace is of the project, which no one names and its link tells."""
    return source is None or source.url is None or f"/project/{project}/" in source.url


def _shown(trace: TraceSpans, trial: TrialExport, run: RunHeader) -> Attributes:
    root: Span = trace.root
    shown: dict[str, Any] = {
        "langfuse.trace.name": root.name,
        "langfuse.trace.tags": [f"run:{trial.run_id}", f"suite:{trial.suite}"],
        "langfuse.trace.input": root.inputs,
        "langfuse.trace.output": root.outputs,
    }
    shown |= {
        f"langfuse.trace.metadata.{name}": root.attributes[f"weirbox.{name}"]
        for name in facts(trial, run)
    }
    return {key: value for key, value in shown.items() if value is not None}


def _typed(score: SentScore) -> tuple[str | float | None, str]:
    """The value as Langfuse types it. What was not measured is a category, which no average
    of Langfuse's takes in."""
    if not score.measured or score.number is None:
        return score.label, "CATEGORICAL"
    return score.number, "BOOLEAN" if isinstance(score.value, bool) else "NUMERIC"
