"""Phoenix: an OTLP trace in a project, and a trace annotation for each score."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weirbox.domain.exporting import PhoenixSink
from weirbox.domain.seams import ReadSecret, RunHeader, TrialExport
from weirbox.sinks import otlp
from weirbox.sinks.platform import Delivery, PlatformSink
from weirbox.sinks.scores import SentScore, scores_of
from weirbox.sinks.spans import spans_of
from weirbox.sinks.wire import Refused

LOOKS = 5
"""How often to look whether a trace has been inserted, which takes up to half a second."""

LOOK_S = 0.1
"""Before the first look again; doubled each time."""


class Phoenix(PlatformSink[PhoenixSink, str]):
    """Sends to a project, whose name is the place; Phoenix makes it with its first span."""

    def _scope(self, run: RunHeader) -> str:
        return self._spec.project or run.suite

    def _credentials(self, read_secret: ReadSecret) -> Mapping[str, str]:
        if self._spec.secret is None:
            return {}
        return {"authorization": f"Bearer {read_secret(self._spec.secret)}"}

    async def _prepare(self, run: RunHeader) -> str:
        return self._scope(run)

    async def _deliver(self, trial: TrialExport, run: RunHeader, place: str) -> Delivery:
        trace_id = self._attached_to(trial, run)
        left_out = []
        if trace_id is None:
            trace = spans_of(trial, run)
            trace_id = trace.trace_id
            of_project = {**trace.resource, "openinference.project.name": place}
            rest = await otlp.post(self._wire, "/v1/traces", replace(trace, resource=of_project))
            left_out = [Refused(rest, status=200)] if rest else []
        delivery = Delivery(f"{self._spec.url}/redirects/traces/{trace_id}", tuple(left_out))
        annotations = [_annotation(trace_id, score) for score in scores_of(trial, run)]
        if not annotations:
            return delivery
        try:
            await self._annotate(annotations)
        except Refused as error:
            return delivery.without([error.about(f"{len(annotations)} scores")])
        return delivery

    async def _annotate(self, annotations: list[dict[str, Any]]) -> None:
        """Annotate once the trace is there; one that takes longer is annotated when it comes,
        which is what Phoenix does without being asked to wait."""
        for look in range(LOOKS):
            answer = await self._wire.call(
                "POST",
                "/v1/trace_annotations",
                body={"data": annotations},
                params={"sync": "true"},
                fine=frozenset({404}),
            )
            if answer.status != 404:
                return
            await asyncio.sleep(LOOK_S * 2**look)
        await self._wire.call("POST", "/v1/trace_annotations", body={"data": annotations})

    async def _ask(self) -> None:
        await self._wire.call("GET", "/v1/projects", params={"limit": "1"})


def _annotation(trace_id: str, score: SentScore) -> dict[str, Any]:
    """One score; the identifier makes another one of it take its place."""
    result = {"score": score.number, "label": score.label, "explanation": score.why or None}
    return {
        "trace_id": trace_id,
        "name": score.name,
        "annotator_kind": "LLM" if score.by_model else "CODE",
        "result": {key: value for key, value in result.items() if value is not None},
        "metadata": dict(score.facts),
        "identifier": score.id,
    }
