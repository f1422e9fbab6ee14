"""An MLflow server in memory."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime
from typing import Any

from weirbox.testing.platform import FakePlatform, FakeSpan, Reply, Request, route

_TAG = re.compile(r"tags?\.[`\"]?([\w.]+)[`\"]? = '([^']*)'")
_SPAN_ATTRIBUTE = re.compile(r"span\.attributes\.`([\w.]+)` LIKE '%([^']*)%'")


class FakeMlflow(FakePlatform):
    """MLflow 3.17, which makes tags of resource attributes and decodes JSON in attributes.

    Attributes:
        experiments: Ids by name; ``experiment`` is where spans go that are added.
        open: Traces that are still going on, by their OpenTelemetry id.
    """

    def __init__(self, experiment: str = "Default") -> None:
        super().__init__()
        self.experiments = {experiment: "1"}
        self.open: set[str] = set()

    @route("GET", "/api/2.0/mlflow/experiments/get-by-name")
    def experiment(self, request: Request) -> Reply:
        """An experiment's id."""
        name = request.one("experiment_name")
        if name not in self.experiments:
            return _missing(f"Could not find experiment with name '{name}'")
        return Reply(200, {"experiment": {"experiment_id": self.experiments[name], "name": name}})

    @route("GET", "/api/3.0/mlflow/traces/get")
    def trace(self, request: Request) -> Reply:
        """One trace with its spans."""
        trace_id = request.one("trace_id")
        spans = self.traces().get(trace_id.removeprefix("tr-"))
        if spans is None:
            return _missing(f"Trace with ID {trace_id} is not found.")
        body = {"trace_info": self._info(spans), "spans": [_span(span) for span in spans]}
        return Reply(200, {"trace": body})

    @route("POST", "/api/3.0/mlflow/traces/search")
    def search(self, request: Request) -> Reply:
        """Traces that fit a filter."""
        asked = request.json()
        if not asked.get("locations"):
            return _invalid("At least one location must be specified.")
        if asked.get("max_results", 100) > 500:
            return _invalid("max_results must be at most 500")
        tag = _TAG.fullmatch(asked.get("filter") or "")
        attribute = _SPAN_ATTRIBUTE.fullmatch(asked.get("filter") or "")
        if not tag and not attribute:
            return _invalid(f"Invalid clause(s) in filter string: {asked.get('filter')}")
        found = [
            self._info(spans)
            for spans in self.traces().values()
            if (tag and _tags(spans).get(tag[1]) == tag[2])
            or (attribute and any(attribute[2] in _at(span, attribute[1]) for span in spans))
        ]
        begin = json.loads(base64.b64decode(asked.get("page_token") or "e30=")).get("offset", 0)
        end = begin + asked.get("max_results", 100)
        page: dict[str, Any] = {"traces": found[begin:end]} if found[begin:end] else {}
        if end < len(found):
            token = base64.b64encode(json.dumps({"offset": end}).encode()).decode()
            page["next_page_token"] = token
        return Reply(200, page)

    def unknown(self, request: Request) -> Reply:
        """A page, as for all addresses that MLflow does not have."""
        return Reply(404, "<!doctype html><title>404 Not Found</title>")

    def unauthorized(self, request: Request) -> Reply:
        """A text, as MLflow's own accounts have it."""
        return Reply(401, "You are not authenticated.")

    def _info(self, spans: list[FakeSpan]) -> dict[str, Any]:
        trace_id = spans[0].trace_id
        begin, end = min(s.start for s in spans), max(s.end or s.start for s in spans)
        root = next((span for span in spans if span.parent_id is None), None)
        state = "OK" if root is None or root.error is None else "ERROR"
        if root is None or trace_id in self.open:
            state = "IN_PROGRESS"
        return {
            "trace_id": f"tr-{trace_id}",
            "trace_location": {
                "type": "MLFLOW_EXPERIMENT",
                "mlflow_experiment": {"experiment_id": next(iter(self.experiments.values()))},
            },
            "request_time": datetime.fromtimestamp(begin / 10**9, UTC).isoformat(),
            "execution_duration": f"{(end - begin) / 10**9:.3f}s",
            "state": state,
            "tags": _tags(spans),
        }


def _at(span: FakeSpan, name: str) -> str:
    return str(span.attributes.get(name, ""))


def _tags(spans: list[FakeSpan]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for span in spans:
        tags |= {
            name: str(value)
            for name, value in span.resource.items()
            if not name.startswith(("telemetry.sdk.", "mlflow."))
        }
    return tags


def _span(span: FakeSpan) -> dict[str, Any]:
    attributes = {"mlflow.traceRequestId": f"tr-{span.trace_id}", **span.attributes}
    shown: dict[str, Any] = {
        "trace_id": _base64(span.trace_id),
        "span_id": _base64(span.span_id),
        "name": span.name,
        "start_time_unix_nano": span.start,
        "attributes": _attributes(attributes),
        "status": {}
        if span.error is None
        else {"code": "STATUS_CODE_ERROR", "message": span.error},
    }
    if span.parent_id:
        shown["parent_span_id"] = _base64(span.parent_id)
    if span.end is not None:
        shown["end_time_unix_nano"] = span.end
    if span.events:
        shown["events"] = [
            {
                "time_unix_nano": event.at,
                "name": event.name,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ]
    return shown


def _attributes(values: Any) -> list[dict[str, Any]]:
    return [{"key": name, "value": _any_value(value)} for name, value in values.items()]


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, str) and value[:1] in ("{", "["):
        value = json.loads(value)
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, int):
        return {"int_value": value}
    if isinstance(value, float):
        return {"double_value": value}
    if isinstance(value, str):
        return {"string_value": value}
    if isinstance(value, dict):
        return {"kvlist_value": {"values": _attributes(value)}}
    return {"array_value": {"values": [_any_value(item) for item in value]}}


def _base64(digits: str) -> str:
    return base64.b64encode(bytes.fromhex(digits)).decode()


def _missing(message: str) -> Reply:
    return Reply(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": message})


def _invalid(message: str) -> Reply:
    return Reply(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": message})
