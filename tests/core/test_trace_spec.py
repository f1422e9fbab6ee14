"""What a suite may say about traces."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from pydantic import ValidationError

from tests.factories import suite
from weirbox.domain.tracing import (
    MlflowSource,
    TraceSpec,
    parent_span_of,
    trace_id_of,
    traceparent_of,
)
from weirbox.domain.words import Collect, Correlate

MLFLOW = {"kind": "mlflow", "url": "http://127.0.0.1:5000/", "experiment": "agent"}


def spec(**changes: Any) -> TraceSpec:
    """A trace as a suite gives it."""
    return TraceSpec.model_validate({"source": MLFLOW} | changes)


def test_a_suite_names_the_source_and_the_rest_is_ready_to_use() -> None:
    trace = suite(trace={"source": MLFLOW}).trace

    assert trace == TraceSpec(
        source=MlflowSource(kind="mlflow", url="http://127.0.0.1:5000", experiment="agent"),
        correlate=Correlate.TAG,
        attribute="weirbox.run_id",
        collect=Collect.JOB,
    )
    assert trace.source.scope == "agent"


def test_a_suite_without_a_trace_has_none() -> None:
    assert suite().trace is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no experiment": ({"source": {"kind": "mlflow", "url": "http://h"}}, "experiment"),
    "no project of phoenix": ({"source": {"kind": "phoenix", "url": "http://h"}}, "project"),
    "no project of langsmith": ({"source": {"kind": "langsmith"}}, "project"),
    "no service to search": ({"source": {"kind": "otel", "url": "http://h"}}, "'service'"),
    "no such platform": ({"source": {"kind": "paper"}}, "otel"),
    "an address without a scheme": ({"source": MLFLOW | {"url": "h:5000"}}, "write http://HOST"),
    "a password in the address": ({"source": MLFLOW | {"url": "http://u:p@h"}}, "name a secret"),
    "a key in the address": ({"source": MLFLOW | {"url": "http://h?key=1"}}, "no query"),
    "a broken port": ({"source": MLFLOW | {"url": "http://h:port"}}, "no address"),
    "a credential in the suite": (
        {"source": MLFLOW | {"headers": {"Authorization": "Bearer abc"}}},
        "secret:NAME",
    ),
    "a broken header": ({"source": MLFLOW | {"headers": {"a b": "c"}}}, "no name of a header"),
    "an attribute that breaks filters": (
        {"source": MLFLOW, "attribute": "a' OR '1"},
        "attribute",
    ),
    "an attribute without use": (
        {"source": MLFLOW, "correlate": "id", "attribute": "mine"},
        "correlate: tag",
    ),
    "no such way to collect": ({"source": MLFLOW, "collect": "later"}, "control-plane"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_named_with_the_way_out(case: str) -> None:
    given, expected = REFUSED[case]

    with pytest.raises(ValidationError) as caught:
        TraceSpec.model_validate(given)

    assert expected in str(caught.value)


def test_a_search_by_id_needs_no_service() -> None:
    assert spec(source={"kind": "otel", "url": "http://h"}, correlate="id").source.scope is None


def test_a_header_may_name_a_secret() -> None:
    headers = {"Authorization": "Bearer secret:TEAM_TOKEN", "x-tenant": "blue"}

    assert spec(source=MLFLOW | {"headers": headers}).source.headers == headers


def test_the_ids_of_a_trial_follow_from_its_correlation() -> None:
    digits = hashlib.sha256(b"run.1").hexdigest()

    assert trace_id_of("run.1") == digits[:32]
    assert parent_span_of("run.1") == digits[32:48]
    assert traceparent_of("run.1") == f"00-{digits[:32]}-{digits[32:48]}-01"
    assert trace_id_of("run.2") != trace_id_of("run.1")
