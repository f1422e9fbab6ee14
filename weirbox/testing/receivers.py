"""The receiving half of trace platforms, in memory: what sinks send is held and can be read.

Each takes spans and scores as the platform does: what is sent again changes no count where
the platform has it so, and does where it has not. `spans` holds the spans, `scores` the
scores by the id they have there.
"""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from weirbox.testing.otlp import from_otlp
from weirbox.testing.platform import FakePlatform, FakeSpan, Reply, Request, route

PROTOBUF = "application/x-protobuf"


def spans_in(request: Request) -> list[FakeSpan]:
    """The spans of an OTLP request, in protobuf or JSON.

    Raises:
        ValueError: When it is neither.
    """
    if "json" in request.headers.get("content-type", ""):
        return list(from_otlp(request.json()))
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        message = ExportTraceServiceRequest.FromString(request.body)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return list(from_otlp(_with_hex_ids(MessageToDict(message))))


def _with_hex_ids(value: Any) -> Any:
    """OTLP's JSON has ids in hex, where protobuf's has base64."""
    if isinstance(value, list):
        return [_with_hex_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {k: b64decode(v).hex() if k in ids else _with_hex_ids(v) for k, v in value.items()}


class Receiver(FakePlatform):
    """What receivers have in common.

    Attributes:
        scores: By the id they have here.
        rejects: How many spans of each request it says that it did not take.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scores: dict[str, dict[str, Any]] = {}
        self.rejects = 0
        self._places: dict[tuple[str, str], int] = {}
        self._one_at_a_time = threading.Lock()

    def answer(self, request: Request) -> Reply:
        """The answer to a request; they are taken one after another."""
        with self._one_at_a_time:
            return super().answer(request)

    def roots(self) -> list[FakeSpan]:
        """The spans without a parent."""
        return [span for span in self.spans if span.parent_id is None]

    def take(self, request: Request) -> Reply:
        """Hold the spans of an OTLP request; one that is there already is replaced."""
        try:
            spans = spans_in(request)
        except ValueError as error:
            return Reply(400, {"detail": str(error)})
        for span in spans:
            place = self._places.setdefault((span.trace_id, span.span_id), len(self.spans))
            self.spans[place : place + 1] = [span]
        return self.taken()

    def taken(self) -> Reply:
        """OTLP's answer, with what was rejected."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceResponse,
        )

        answer = ExportTraceServiceResponse()
        if self.rejects:
            answer.partial_success.rejected_spans = self.rejects
            answer.partial_success.error_message = "too old"
        return Reply(200, answer.SerializeToString(), {"content-type": PROTOBUF})


class OtlpReceiver(Receiver):
    """A collector, or a back end that takes OTLP over HTTP."""

    @route("POST", "/v1/traces")
    def traces_in(self, request: Request) -> Reply:
        """Take spans."""
        return self.take(request)


class MlflowReceiver(Receiver):
    """An MLflow server; `experiments` holds ids by name.

    Assessments that are posted again are there twice, as in MLflow.
    """

    def __init__(self) -> None:
        super().__init__()
        self.experiments: dict[str, str] = {"Default": "0"}

    @route("GET", "/api/2.0/mlflow/experiments/get-by-name")
    def experiment(self, request: Request) -> Reply:
        """An experiment by its name."""
        found = self.experiments.get(request.one("experiment_name"))
        if found is None:
            return Reply(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such"})
        return Reply(200, {"experiment": {"experiment_id": found}})

    @route("POST", "/api/2.0/mlflow/experiments/create")
    def create(self, request: Request) -> Reply:
        """Make an experiment, once."""
        name = request.json()["name"]
        if name in self.experiments:
            return Reply(400, {"error_code": "RESOURCE_ALREADY_EXISTS", "message": name})
        self.experiments[name] = str(len(self.experiments))
        return Reply(200, {"experiment_id": self.experiments[name]})

    @route("POST", "/v1/traces")
    def traces_in(self, request: Request) -> Reply:
        """Take spans for an experiment."""
        experiment = request.headers.get("x-mlflow-experiment-id")
        if experiment is None:
            return Reply(422, {"detail": "x-mlflow-experiment-id is required"})
        if experiment not in self.experiments.values():
            return Reply(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": experiment})
        return self.take(request)

    @route("GET", "/api/3.0/mlflow/traces/(?P<trace>tr-[0-9a-f]{32})")
    def trace_info(self, request: Request, trace: str) -> Reply:
        """A trace with its assessments."""
        if trace.removeprefix("tr-") not in self.traces():
            return Reply(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": trace})
        of_trace = [one for one in self.scores.values() if one["trace_id"] == trace]
        return Reply(200, {"trace": {"trace_info": {"trace_id": trace, "assessments": of_trace}}})

    @route("POST", "/api/3.0/mlflow/traces/(?P<trace>tr-[0-9a-f]{32})/assessments")
    def assess(self, request: Request, trace: str) -> Reply:
        """Add an assessment."""
        assessment = request.json()["assessment"]
        if not {"feedback", "expectation"} & assessment.keys():
            return Reply(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "no feedback"})
        known = f"a-{len(self.scores)}"
        self.scores[known] = assessment | {"assessment_id": known}
        return Reply(200, {"assessment": self.scores[known]})

    @route("PATCH", "/api/3.0/mlflow/traces/(?P<trace>[^/]+)/assessments/(?P<known>[^/]+)")
    def update(self, request: Request, trace: str, known: str) -> Reply:
        """Change what the mask names of an assessment."""
        if known not in self.scores:
            return Reply(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": known})
        body = request.json()
        fields = body["update_mask"].split(",")
        self.scores[known] |= {name: body["assessment"][name] for name in fields}
        return Reply(200, {"assessment": self.scores[known]})


class PhoenixReceiver(Receiver):
    """A Phoenix server.

    Attributes:
        lag: How often a trace is not there yet when it is looked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lag = 0
        self._looks = 0

    def unauthorized(self, request: Request) -> Reply:
        """As Phoenix says it."""
        return Reply(401, "Invalid token")

    @route("GET", "/v1/projects")
    def projects(self, request: Request) -> Reply:
        """The projects that spans were sent to."""
        names = {span.resource.get("openinference.project.name") for span in self.spans}
        return Reply(200, {"data": [{"name": name} for name in names]})

    @route("POST", "/v1/traces")
    def traces_in(self, request: Request) -> Reply:
        """Take spans in protobuf; the id of one that is there already is ignored."""
        if request.headers.get("content-type") != PROTOBUF:
            return Reply(415, "Unsupported content type")
        known = {span.span_id for span in self.spans}
        self.spans += [span for span in spans_in(request) if span.span_id not in known]
        self._looks = 0
        return self.taken()

    @route("POST", "/v1/trace_annotations")
    def annotate(self, request: Request) -> Reply:
        """Take annotations; one of the same trace, name and identifier is replaced."""
        data = request.json()["data"]
        sync = request.one("sync") == "true"
        missing = {one["trace_id"] for one in data} - self.traces().keys()
        self._looks += 1
        if sync and (missing or self._looks <= self.lag):
            return Reply(404, f"Traces with IDs {', '.join(missing)} do not exist.")
        for one in data:
            key = "/".join((one["trace_id"], one["name"], one.get("identifier", "")))
            self.scores[key] = one
        return Reply(200, {"data": [{"id": one["name"]} for one in data] if sync else []})


class LangfuseReceiver(Receiver):
    """Langfuse with one project; scores of the same id replace one another."""

    project = "project-1"

    def unauthorized(self, request: Request) -> Reply:
        """As Langfuse says it."""
        return Reply(401, {"message": "Invalid credentials. Confirm that you've configured ..."})

    @route("GET", "/api/public/projects")
    def projects(self, request: Request) -> Reply:
        """The project of the keys."""
        return Reply(200, {"data": [{"id": self.project, "name": "tests"}]})

    @route("POST", "/api/public/otel/v1/traces")
    def traces_in(self, request: Request) -> Reply:
        """Take spans; no other version of the header than 4."""
        version = request.headers.get("x-langfuse-ingestion-version", "4")
        if version != "4":
            return Reply(400, {"error": f"unknown ingestion version {version}"})
        return self.take(request)

    @route("POST", "/api/public/scores")
    def score(self, request: Request) -> Reply:
        """Take one score, if its value is of its type."""
        body = request.json()
        number = isinstance(body["value"], int | float)
        if number != (body["dataType"] in ("NUMERIC", "BOOLEAN")):
            return Reply(400, {"message": "Invalid request data", "error": ["value"]})
        self.scores[body["id"]] = body
        return Reply(200, {"id": body["id"]})


class LangsmithReceiver(Receiver):
    """LangSmith.

    Attributes:
        projects: Sessions by name.
        runs: By id.
        refused: Names of runs that a batch leaves out, saying so with status 207.
    """

    tenant = "tenant-1"

    def __init__(self) -> None:
        super().__init__()
        self.projects: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.refused: set[str] = set()

    def unauthorized(self, request: Request) -> Reply:
        """As LangSmith says it."""
        return Reply(403, {"detail": "Forbidden"})

    @route("GET", "/sessions")
    def sessions(self, request: Request) -> Reply:
        """Projects, all or by name."""
        name = request.one("name")
        found = [one for one in self.projects.values() if name in ("", one["name"])]
        return Reply(200, found[: int(request.one("limit", "100"))])

    @route("POST", "/sessions")
    def new_session(self, request: Request) -> Reply:
        """Make a project."""
        body = request.json()
        if body["name"] in self.projects and request.one("upsert") != "true":
            return Reply(409, {"detail": "Session already exists"})
        made = self.projects.setdefault(body["name"], body | {"tenant_id": self.tenant})
        return Reply(200, made)

    @route("POST", "/runs/batch")
    def batch(self, request: Request) -> Reply:
        """Take runs; a batch with one that is there already is refused as a whole."""
        runs = request.json()["post"]
        problem = next((p for run in runs for p in _problems(run)), None)
        if problem is not None:
            return Reply(422, {"detail": [problem]})
        if any(run["id"] in self.runs for run in runs):
            return Reply(409, {"detail": "Run already exists"})
        self.runs |= {run["id"]: run for run in runs if run["name"] not in self.refused}
        errors = [run["name"] for run in runs if run["name"] in self.refused]
        return Reply(207, {"errors": errors}) if errors else Reply(202, {})

    @route("POST", "/feedback")
    def feedback(self, request: Request) -> Reply:
        """Take feedback, once."""
        body = request.json()
        if body["id"] in self.scores:
            return Reply(409, {"detail": "Feedback already exists"})
        self.scores[body["id"]] = body
        return Reply(200, body)


def _problems(run: dict[str, Any]) -> Iterator[str]:
    UUID(run["id"])
    for name in ("trace_id", "dotted_order"):
        if name not in run:
            yield f"{name} is required"
    if not run.get("dotted_order", "").endswith(run["id"]):
        yield "dotted_order must end with the id"
    if not run.get("dotted_order", "").split("Z", 1)[-1].startswith(run.get("trace_id", "")):
        yield "dotted_order must start with the trace_id"
