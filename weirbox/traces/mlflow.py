"""MLflow, by its REST interface."""

from __future__ import annotations

import asyncio
from typing import Any

from weirbox.domain.seams import Workshop
from weirbox.domain.tracing import MlflowSource, TraceSpec
from weirbox.errors import TraceError
from weirbox.traces.http import Answer, Api
from weirbox.traces.otlp import attributes_in, span_in
from weirbox.traces.pulling import MOST_TRACES, Found, Source
from weirbox.traces.spans import Span

_GET_EXPERIMENT = "/api/2.0/mlflow/experiments/get-by-name"
_GET_TRACE = "/api/3.0/mlflow/traces/get"
_SEARCH = "/api/3.0/mlflow/traces/search"
_NOT_STORED = "not stored"
"""What a server says between the two requests in which MLflow's own client sends a trace."""


class Mlflow(Source):
    """See `MlflowSource`."""

    def __init__(self, spec: TraceSpec, source: MlflowSource, workshop: Workshop) -> None:
        self._spec = source
        api = Api(
            f"trace source 'mlflow' at {source.url}",
            source.url,
            workshop.read_secret,
            lambda secrets: secrets.fill(source.headers),
            timeout_s=source.timeout_s,
        )
        super().__init__(spec, source, api)

    async def _find_by_id(self, trace_id: str) -> Found:
        return await self._found([f"tr-{trace_id}"])

    async def _find_by_tag(self, correlation: str) -> Found:
        experiment = await self._experiment()
        if experiment is None:
            return Found()
        # Resource attributes are tags of the trace since 3.14; others stand on a span, where
        # the server only finds what has the id within it.
        found = await self._search(experiment, f"tags.`{self._attribute}` = '{correlation}'")
        if found:
            return await self._found(self._checked(found))
        found = await self._search(
            experiment, f"span.attributes.`{self._attribute}` LIKE '%{correlation}%'"
        )
        return await self._found(self._checked(found), carrying=correlation)

    async def _knock(self) -> None:
        if await self._experiment() is None:
            raise TraceError(
                f"{self._api.who}: there is no experiment {self._spec.experiment!r} yet",
                status=404,
            )

    async def _experiment(self) -> str | None:
        """The experiment's id; None while it does not exist."""
        answer = await self._api.get(_GET_EXPERIMENT, [("experiment_name", self._spec.experiment)])
        if _unknown(answer):
            return None
        found = self._api.check(answer, f"experiment {self._spec.experiment!r}")
        return str(found["experiment"]["experiment_id"])

    async def _search(self, experiment: str, wanted: str) -> list[str]:
        place = {
            "type": "MLFLOW_EXPERIMENT",
            "mlflow_experiment": {"experiment_id": experiment},
        }
        traces: list[str] = []
        token: str | None = None
        while True:
            body: dict[str, Any] = {
                "locations": [place],
                "filter": wanted,
                "max_results": MOST_TRACES,
                "order_by": ["timestamp_ms ASC"],
            }
            answer = await self._api.post(_SEARCH, body | ({"page_token": token} if token else {}))
            found = self._api.check(answer, "search")
            traces += [str(info["trace_id"]) for info in found.get("traces") or ()]
            token = found.get("next_page_token")
            if not token or len(traces) > MOST_TRACES:
                return traces

    async def _found(self, traces: list[str], *, carrying: str | None = None) -> Found:
        spans: list[Span] = []
        first: str | None = None
        url: str | None = None
        going_on = False
        for trace_id in traces:
            trace = await self._trace(trace_id)
            if trace is None or (carrying and not self._carries(trace, carrying)):
                continue
            spans += await asyncio.to_thread(_spans_in, trace)
            self._room(spans)
            info = trace.get("trace_info") or {}
            going_on |= info.get("state") == "IN_PROGRESS"
            first, url = first or trace_id, url or self._link(info, trace_id)
        if not spans:
            return Found()
        return Found(spans=spans, trace_id=first, url=url, open=going_on)

    def _carries(self, trace: dict[str, Any], correlation: str) -> bool:
        return any(
            attributes_in(span.get("attributes")).get(self._attribute) == correlation
            for span in trace.get("spans") or ()
        )

    async def _trace(self, trace_id: str) -> dict[str, Any] | None:
        answer = await self._api.get(_GET_TRACE, [("trace_id", trace_id)])
        if _unknown(answer) or (answer.status == 500 and _NOT_STORED in answer.said):
            return None
        if answer.status == 404:
            raise self._api.refusal(answer, "trace", "MLflow 3.10 or newer is needed")
        trace: dict[str, Any] = self._api.check(answer, f"trace {trace_id}").get("trace") or {}
        return trace

    def _link(self, info: dict[str, Any], trace_id: str) -> str | None:
        place = (info.get("trace_location") or {}).get("mlflow_experiment") or {}
        experiment = place.get("experiment_id")
        if experiment is None:
            return None
        return f"{self._spec.url}/#/experiments/{experiment}/traces?selectedEvaluationId={trace_id}"


def _unknown(answer: Answer) -> bool:
    """Whether the server knows no such thing: it may come yet."""
    return answer.status == 404 and answer.object.get("error_code") == "RESOURCE_DOES_NOT_EXIST"


def _spans_in(trace: dict[str, Any]) -> list[Span]:
    return [span_in(span) for span in trace.get("spans") or ()]
