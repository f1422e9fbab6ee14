"""Where the traces of a system under test are pulled from, and the ids that tie them to trials."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from weirbox.domain.base import Frozen, Seconds
from weirbox.domain.words import Collect, Correlate

ATTRIBUTE = "weirbox.run_id"
"""The attribute that carries a trial's correlation id, unless a suite names another."""

SECRET_IN_HEADER = re.compile(r"secret:([A-Za-z0-9_][A-Za-z0-9_.\-]*)")
"""What stands for a secret in the value of a header."""

_CREDENTIALS = re.compile(r"authorization|cookie|token|secret|api-?key", re.IGNORECASE)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _base_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - raises for a port that is none
    except ValueError as error:
        raise ValueError(f"{value!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is no address: write http://HOST[:PORT][/PATH]")
    if "@" in parts.netloc:
        raise ValueError("an address with a user or password is kept with the run: name a secret")
    if parts.query or parts.fragment or not value.isascii() or not value.isprintable():
        raise ValueError(
            "an address has no query, no fragment and plain characters only: "
            "write http://HOST[:PORT][/PATH]"
        )
    return value.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_base_url)]
"""The address of a platform, without user, query, fragment and final slash."""


def _headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a header")
        if _CREDENTIALS.search(name) and not SECRET_IN_HEADER.search(value):
            raise ValueError(
                f"the header {name!r} would keep its secret with every run: "
                "write 'secret:NAME', with the name of a secret"
            )
    return headers


Headers = Annotated[dict[str, str], AfterValidator(_headers)]
"""Headers of each request; a value may name a secret as ``secret:NAME``."""

SecretName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}$")]
"""The name of a secret, never its value."""

Text = Annotated[str, Field(min_length=1, max_length=500)]
"""What a platform calls a thing: an experiment, a project, a service."""


class PlatformSource(Frozen):
    """A platform that traces are pulled from.

    Attributes:
        headers: More headers; values may name a secret as ``secret:NAME``.
        timeout_s: The most that one request may take.
    """

    headers: Headers = Field(default_factory=dict)
    timeout_s: Seconds = Field(default=30.0, gt=0)

    @property
    def scope(self) -> str | None:
        """The experiment or project that traces stand in, where the platform has such."""
        return None


class OtelSource(PlatformSource):
    """Jaeger (query API v3, or v1 before it), or a back end that gives OTLP by trace id.

    Attributes:
        url: Where traces are queried, such as ``http://127.0.0.1:16686``.
        service: The ``service.name`` that is searched; ``correlate: tag`` needs it.
        headers: ``authorization`` and the tenant's header, where it asks for them.
    """

    kind: Literal["otel"]
    url: BaseUrl
    service: Text | None = None


class MlflowSource(PlatformSource):
    """An MLflow server, 3.10 or newer.

    Attributes:
        experiment: The name of the experiment that traces stand in.
        headers: ``authorization`` (Basic for MLflow's own accounts, Bearer for proxies) and
            ``x-mlflow-workspace``, where it asks for them.
    """

    kind: Literal["mlflow"]
    url: BaseUrl
    experiment: Text

    @property
    def scope(self) -> str | None:
        """The experiment."""
        return self.experiment


class PhoenixSource(PlatformSource):
    """A Phoenix server.

    Attributes:
        project: The name of the project that traces stand in.
        secret: The name of the secret that holds the API key.
    """

    kind: Literal["phoenix"]
    url: BaseUrl
    project: Text
    secret: SecretName | None = None

    @property
    def scope(self) -> str | None:
        """The project."""
        return self.project


class LangfuseSource(PlatformSource):
    """A Langfuse project, which the keys name.

    Attributes:
        public_key, secret_key: The names of the secrets that hold the keys.
    """

    kind: Literal["langfuse"]
    url: BaseUrl = "https://cloud.langfuse.com"
    public_key: SecretName = "LANGFUSE_PUBLIC_KEY"
    secret_key: SecretName = "LANGFUSE_SECRET_KEY"


class LangsmithSource(PlatformSource):
    """A LangSmith project.

    Attributes:
        url: The API's address.
        project: Its name.
        secret: The name of the secret that holds the API key.
        tenant: The workspace's id, which keys of an organization need.
    """

    kind: Literal["langsmith"]
    url: BaseUrl = "https://api.smith.langchain.com"
    project: Text
    secret: SecretName = "LANGSMITH_API_KEY"
    tenant: Text | None = None

    @property
    def scope(self) -> str | None:
        """The project."""
        return self.project


TraceSourceSpec = Annotated[
    OtelSource | MlflowSource | PhoenixSource | LangfuseSource | LangsmithSource,
    Field(discriminator="kind"),
]


class TraceSpec(Frozen):
    """That the system under test sends traces to a platform, and how they are found there.

    Attributes:
        correlate: By the trace id that the harness is given, or by an attribute.
        attribute: The attribute that carries the trial's correlation id, for ``tag``.
        collect: In the execute stage once compute is released, or in the judge stage.
    """

    source: TraceSourceSpec
    correlate: Correlate = Correlate.TAG
    attribute: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,99}$")] = ATTRIBUTE
    collect: Collect = Collect.JOB

    @model_validator(mode="after")
    def _platform_can(self) -> Self:
        if (
            self.correlate is Correlate.TAG
            and isinstance(self.source, OtelSource)
            and self.source.service is None
        ):
            raise ValueError(
                "'correlate: tag' searches the traces of one service: give the source the "
                "'service' (its service.name), or take 'correlate: id'"
            )
        if self.correlate is Correlate.ID and self.attribute != ATTRIBUTE:
            raise ValueError("'attribute' goes with 'correlate: tag' only")
        return self


def trace_id_of(correlation: str) -> str:
    """The W3C trace id of a trial, 32 hex digits: the same whenever it is asked for."""
    return _ids(correlation)[:32]


def parent_span_of(correlation: str) -> str:
    """The span id that a trial is given as its parent; no platform ever sees that span."""
    return _ids(correlation)[32:48]


def traceparent_of(correlation: str) -> str:
    """The W3C ``traceparent`` of a trial."""
    return f"00-{trace_id_of(correlation)}-{parent_span_of(correlation)}-01"


def _ids(correlation: str) -> str:
    return hashlib.sha256(correlation.encode("utf-8", "surrogatepass")).hexdigest()
