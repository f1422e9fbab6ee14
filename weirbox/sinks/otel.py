"""OTLP receivers: a trace with a span for each score, as OpenTelemetry has evaluations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weirbox.domain.exporting import TRACE_ID, OtelSink
from weirbox.domain.seams import RunHeader, TrialExport
from weirbox.sinks import otlp
from weirbox.sinks.identity import span_id
from weirbox.sinks.platform import Delivery, PlatformSink
from weirbox.sinks.scores import SentScore, scores_of
from weirbox.sinks.spans import ROOT, Span, TraceSpans, spans_of
from weirbox.sinks.wire import Refused

_PATH = "/v1/traces"


class Otel(PlatformSink[OtelSink, None]):
    """Sends to a receiver, which has no places."""

    async def _prepare(self, run: RunHeader) -> None:
        """Nothing is to be found or made."""

    async def _deliver(self, trial: TrialExport, run: RunHeader, place: None) -> Delivery:
        trace = spans_of(trial, run)
        judged = [_evaluation(trial, trace, score) for score in scores_of(trial, run)]
        rest = await otlp.post(self._wire, _PATH, replace(trace, spans=(*trace.spans, *judged)))
        link = self._spec.link
        return Delivery(
            url=None if link is None else link.replace(TRACE_ID, trace.trace_id),
            left_out=(Refused(rest, status=200),) if rest else (),
        )

    async def _ask(self) -> None:
        nothing = TraceSpans(trace_id="", spans=())
        await self._wire.call(
            "POST",
            _PATH,
            content=otlp.encode(nothing),
            headers={"content-type": "application/x-protobuf"},
        )


def _evaluation(trial: TrialExport, trace: TraceSpans, score: SentScore) -> Span:
    """A score as a child of the trial; what was not measured has a label, and no value."""
    said: dict[str, Any] = {
        "gen_ai.evaluation.name": score.name,
        "gen_ai.evaluation.score.value": score.number,
        "gen_ai.evaluation.score.label": score.label,
        "gen_ai.evaluation.explanation": score.why or None,
    }
    said = {key: value for key, value in said.items() if value is not None}
    place = f"evaluation {score.name}"
    return Span(
        place=place,
        span_id=span_id(trial, place),
        parent=ROOT,
        parent_id=trace.root.span_id,
        name=place,
        start=trace.root.end,
        end=trace.root.end,
        attributes={
            "openinference.span.kind": "EVALUATOR",
            **said,
            **{f"weirbox.score.{name}": value for name, value in score.facts.items()},
        },
        events={"gen_ai.evaluation.result": said},
    )
