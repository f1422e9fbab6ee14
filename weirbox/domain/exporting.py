"""What a suite says about sinks: folders, and platforms for traces and scores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from weirbox.domain.base import Frozen, Seconds
from weirbox.domain.platforms import Name
from weirbox.domain.tracing import BaseUrl, Headers, SecretName, Text

TRACE_ID = "{trace_id}"
"""What stands for a trace's id in the link of an otel sink."""


class JsonlSink(Frozen):
    """A folder with one JSON line per judged trial."""

    kind: Literal["jsonl"]
    name: Name = "jsonl"
    path: str


class ParquetSink(Frozen):
    """A folder of Parquet files with one row per judged trial."""

    kind: Literal["parquet"]
    name: Name = "parquet"
    path: str


class PlatformSink(Frozen):
    """A platform that gets each judged trial as a trace with scores.

    Attributes:
        headers: More headers; values may name a secret as ``secret:NAME``.
        timeout_s: The most that one trial may take, attempts and pauses included.
    """

    kind: str
    name: Name
    url: BaseUrl
    headers: Headers = Field(default_factory=dict)
    timeout_s: Seconds = Field(default=15.0, gt=0, le=30)


class MlflowSink(PlatformSink):
    """An MLflow server, 3.10 or newer.

    Attributes:
        experiment: Its name; made if need be. Default: the suite's name.
        headers: ``authorization`` (Basic for MLflow's own accounts, Bearer for proxies) and
            ``x-mlflow-workspace``, where it asks for them.
    """

    kind: Literal["mlflow"]
    name: Name = "mlflow"
    url: BaseUrl
    experiment: Text | None = None


class PhoenixSink(PlatformSink):
    """A Phoenix server.

    Attributes:
        project: Its name; made if need be. Default: the suite's name.
        secret: The name of the secret that holds the API key.
    """

    kind: Literal["phoenix"]
    name: Name = "phoenix"
    url: BaseUrl
    project: Text | None = None
    secret: SecretName | None = None


class LangfuseSink(PlatformSink):
    """A Langfuse project, which the keys name.

    Attributes:
        public_key, secret_key: The names of the secrets that hold the keys.
        environment: Langfuse's environment of the traces.
    """

    kind: Literal["langfuse"]
    name: Name = "langfuse"
    url: BaseUrl = "https://cloud.langfuse.com"
    public_key: SecretName = "LANGFUSE_PUBLIC_KEY"
    secret_key: SecretName = "LANGFUSE_SECRET_KEY"
    environment: Text | None = Field(default=None, pattern=r"^[a-z0-9_-]{1,40}$")


class LangsmithSink(PlatformSink):
    """A LangSmith project.

    Attributes:
        url: The API's address.
        project: Its name; made if need be. Default: the suite's name.
        secret: The name of the secret that holds the API key.
        tenant: The workspace's id, which keys of an organization need.
    """

    kind: Literal["langsmith"]
    name: Name = "langsmith"
    url: BaseUrl = "https://api.smith.langchain.com"
    project: Text | None = None
    secret: SecretName = "LANGSMITH_API_KEY"
    tenant: Text | None = None


class OtelSink(PlatformSink):
    """Whatever takes OTLP over HTTP: a collector, Jaeger, Tempo and others.

    Attributes:
        url: Where OTLP is taken, such as ``http://127.0.0.1:4318``.
        headers: ``authorization`` and the tenant's header, where it asks for them.
        link: Where people look at a trace, with ``{trace_id}`` in it.
    """

    kind: Literal["otel"]
    name: Name = "otel"
    url: BaseUrl
    link: str | None = None

    @field_validator("link")
    @classmethod
    def _names_the_trace(cls, link: str | None) -> str | None:
        if link is not None and TRACE_ID not in link:
            raise ValueError(f"'link' needs {TRACE_ID} in it, as each trial has a trace")
        return link


SinkSpec = Annotated[
    JsonlSink | ParquetSink | MlflowSink | PhoenixSink | LangfuseSink | LangsmithSink | OtelSink,
    Field(discriminator="kind"),
]
