"""The fakes of all platforms, in all generations, and sources that pull from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.core.trace_sample import SERVICE
from weirbox import traces
from weirbox.domain.seams import ReadSecret, TraceSource, Workshop
from weirbox.domain.tracing import TraceSpec
from weirbox.secrets import reader
from weirbox.testing import (
    FakeJaeger,
    FakeLangfuse,
    FakeLangsmith,
    FakeMlflow,
    FakePhoenix,
    FakePlatform,
)
from weirbox.testing.langfuse import PUBLIC_KEY, SECRET_KEY
from weirbox.testing.langsmith import API_KEY

SECRETS = {
    "LANGFUSE_PUBLIC_KEY": PUBLIC_KEY,
    "LANGFUSE_SECRET_KEY": SECRET_KEY,
    "LANGSMITH_API_KEY": API_KEY,
}


class Kind(NamedTuple):
    """A platform: how to make its fake, and what a suite says of it besides the address."""

    make: Callable[[], FakePlatform]
    source: dict[str, Any]


PLATFORMS = {
    "jaeger v1": Kind(lambda: FakeJaeger("v1"), {"kind": "otel", "service": SERVICE}),
    "jaeger both": Kind(lambda: FakeJaeger("both"), {"kind": "otel", "service": SERVICE}),
    "jaeger v3": Kind(lambda: FakeJaeger("v3"), {"kind": "otel", "service": SERVICE}),
    "mlflow": Kind(lambda: FakeMlflow("mine"), {"kind": "mlflow", "experiment": "mine"}),
    "phoenix": Kind(lambda: FakePhoenix("mine"), {"kind": "phoenix", "project": "mine"}),
    "langfuse v3": Kind(lambda: FakeLangfuse("v3"), {"kind": "langfuse"}),
    "langfuse v4": Kind(lambda: FakeLangfuse("v4"), {"kind": "langfuse"}),
    "langsmith v1": Kind(
        lambda: FakeLangsmith("v1", "mine"), {"kind": "langsmith", "project": "mine"}
    ),
    "langsmith v2": Kind(
        lambda: FakeLangsmith("v2", "mine"), {"kind": "langsmith", "project": "mine"}
    ),
}


def source_of(
    kind: Kind,
    url: str,
    *,
    correlate: str = "id",
    read_secret: ReadSecret | None = None,
    **more: Any,
) -> TraceSource:
    """A source that pulls from a platform at an address."""
    source = kind.source | {"url": url} | more
    spec = TraceSpec.model_validate({"source": source, "correlate": correlate})
    return traces.build(spec, workshop(read_secret or reader(SECRETS.get)))


def workshop(read_secret: ReadSecret) -> Workshop:
    """What sources are built with."""
    return Workshop(folder="/nowhere", read_file=_no_file, read_secret=read_secret)


def _no_file(path: str) -> bytes:
    raise FileNotFoundError(path)
