"""MLflow: an OTLP trace in an experiment, and an assessment for each score."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import quote

from weirbox.domain.exporting import MlflowSink
from weirbox.domain.seams import RunHeader, TrialExport
from weirbox.sinks import otlp
from weirbox.sinks.platform import Delivery, PlatformSink
from weirbox.sinks.scores import SentScore, scores_of
from weirbox.sinks.spans import TraceSpans, facts, spans_of
from weirbox.sinks.wire import Refused

_EXPERIMENTS = "/api/2.0/mlflow/experiments"
_TRACES = "/api/3.0/mlflow/traces"
_ID = "weirbox.score_id"
"""The metadata of an assessment that tells whether a score is there already."""


class Mlflow(PlatformSink[MlflowSink, str]):
    """Sends to an experiment, whose id is the place."""

    def _scope(self, run: RunHeader) -> str:
        return self._spec.experiment or run.suite

    async def _prepare(self, run: RunHeader) -> str:
        """Find the experiment, or make it; who is second to make it finds it."""
        name = self._scope(run)
        found = await self._find(name)
        if found is not None:
            return found
        try:
            made = await self._wire.call("POST", f"{_EXPERIMENTS}/create", body={"name": name})
        except Refused as error:
            found = await self._find(name)
            if found is None:
                raise error
            return found
        return str(made.found("experiment_id"))

    async def _find(self, name: str) -> str | None:
        answer = await self._wire.call(
            "GET",
            f"{_EXPERIMENTS}/get-by-name",
            params={"experiment_name": name},
            fine=frozenset({404}),
        )
        found = answer.found("experiment", "experiment_id")
        if found is None and answer.found("error_code") != "RESOURCE_DOES_NOT_EXIST":
            raise Refused(f"{self._spec.url} does not answer as MLflow does", status=answer.status)
        return None if found is None else str(found)

    async def _deliver(self, trial: TrialExport, run: RunHeader, place: str) -> Delivery:
        trace_id = self._attached_to(trial, run)
        left_out = []
        if trace_id is None:
            trace = _tagged(spans_of(trial, run), trial, run)
            trace_id = f"tr-{trace.trace_id}"
            rest = await otlp.post(
                self._wire, "/v1/traces", trace, headers={"x-mlflow-experiment-id": place}
            )
            left_out = [Refused(rest, status=200)] if rest else []
        known = await self._assessments(trace_id)
        sending = {
            score.name: self._assess(trace_id, score, known.get(score.id))
            for score in scores_of(trial, run)
        }
        url = (
            f"{self._spec.url}/#/experiments/{place}/traces?selectedEvaluationId={quote(trace_id)}"
        )
        return Delivery(url, tuple(left_out)).without(await self._all(sending))

    async def _assessments(self, trace_id: str) -> dict[str, str]:
        """The ids of the assessments that are there, by the ids of our scores."""
        answer = await self._wire.call("GET", f"{_TRACES}/{quote(trace_id)}")
        found = answer.found("trace", "trace_info", "assessments") or []
        return {
            one["metadata"][_ID]: one["assessment_id"]
            for one in found
            if _ID in (one.get("metadata") or {})
        }

    async def _assess(self, trace_id: str, score: SentScore, known: str | None) -> None:
        """Make an assessment, or bring the one that is there up to date."""
        assessment: dict[str, Any] = {
            "assessment_name": score.name,
            "trace_id": trace_id,
            "source": {
                "source_type": "LLM_JUDGE" if score.by_model else "CODE",
                "source_id": (score.model if score.by_model else None) or "weirbox",
            },
            "feedback": _feedback(score),
            "rationale": score.why,
            "metadata": {_ID: score.id} | dict(score.facts),
        }
        place = f"{_TRACES}/{quote(trace_id)}/assessments"
        if known is None:
            await self._wire.call("POST", place, body={"assessment": assessment})
            return
        body = {
            "assessment": assessment | {"assessment_id": known},
            "update_mask": "feedback,rationale,metadata",
        }
        await self._wire.call("PATCH", f"{place}/{quote(known)}", body=body)

    async def _ask(self) -> None:
        await self._find("Default")


def _tagged(trace: TraceSpans, trial: TrialExport, run: RunHeader) -> TraceSpans:
    """The spans with what MLflow makes tags of, which traces are found by."""
    root = trace.root
    tags = {
        f"mlflow.traceTag.weirbox.{name}": str(root.attributes[f"weirbox.{name}"])
        for name in facts(trial, run)
    }
    tagged = replace(root, attributes={**root.attributes, **tags})
    return replace(trace, spans=(tagged, *trace.spans[1:]))


def _feedback(score: SentScore) -> dict[str, Any]:
    """A value as it is typed; where there is none, an error that says why."""
    if score.measured:
        return {"value": score.value}
    state, _, reason = (score.label or "").partition(": ")
    return {
        "error": {
            "error_code": "_".join((state, reason)).strip("_").upper(),
            "error_message": score.why,
        }
    }
