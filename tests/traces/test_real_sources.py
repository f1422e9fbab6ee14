"""Traces pulled from real MLflow and Phoenix servers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.core.test_trace_sources import EVENTS
from tests.core.trace_platforms import workshop
from tests.core.trace_sample import sample
from tests.platforms import Server, experiment, free_port, send
from weirbox import traces
from weirbox.domain.pulling import TraceSource
from weirbox.domain.tracing import TraceSpec, trace_id_of, traceparent_of
from weirbox.domain.words import EventKind, ProbeState, PullState
from weirbox.secrets import reader
from weirbox.testing import FakeSpan
from weirbox.traces.collecting import Outcome, collect

pytestmark = [pytest.mark.slow, pytest.mark.platforms]

AGENT = Path(__file__).parent / "agent.py"
LATE_S = 4.0


class Real(NamedTuple):
    """A real platform: its server, where spans go, and what a suite says of it."""

    server: Server
    headers: Mapping[str, str]
    source: dict[str, Any]

    def source_for(self, correlate: str, **more: Any) -> TraceSource:
        """A source that pulls from it."""
        spec = {"source": self.source | more, "correlate": correlate}
        return traces.build(TraceSpec.model_validate(spec), workshop(reader()))


@pytest.fixture(params=["mlflow", "phoenix"])
def real(request: pytest.FixtureRequest) -> Real:
    """Each platform, with an experiment or project of the test's own."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    name = f"of-{uuid.uuid4().hex[:8]}"
    source = {"kind": request.param, "url": server.url}
    if request.param == "mlflow":
        headers = {"x-mlflow-experiment-id": experiment(server, name)}
        return Real(server, headers, source | {"experiment": name})
    return Real(server, {"x-project-name": name}, source | {"project": name})


@pytest.fixture
def correlation() -> str:
    """A trial's own."""
    return f"run-{uuid.uuid4().hex[:8]}.0.1.1"


@contextmanager
def agent(real: Real, correlation: str, python: str, **more: str) -> Any:
    """The traced program, running; ended with the block."""
    env = {
        "WEIRBOX_RUN_ID": correlation,
        "OTEL_RESOURCE_ATTRIBUTES": f"weirbox.run_id={correlation}",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{real.server.url}/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": ",".join(
            f"{name}={value}" for name, value in real.headers.items()
        ),
        **more,
    }
    process = subprocess.Popen(
        [python, str(AGENT)], env=os.environ | env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "called\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("correlate", ["id", "tag"])
async def test_a_real_platform_gives_the_same_events_as_the_fakes(
    real: Real, correlation: str, otel_python: str, correlate: str
) -> None:
    await asyncio.to_thread(
        send, real.server, sample(correlation), real.headers, python=otel_python
    )

    source = real.source_for(correlate)
    collected = await collect(source, correlation, trace_id_of(correlation))
    await source.aclose()

    assert collected.outcome is Outcome.COMPLETE
    assert collected.events == EVENTS
    assert collected.trace is not None
    assert collected.trace.trace_id.removeprefix("tr-") == trace_id_of(correlation)


@pytest.mark.parametrize("correlate", ["id", "tag"])
async def test_a_program_that_ends_late_is_waited_for(
    real: Real, correlation: str, otel_python: str, correlate: str
) -> None:
    more = {"LATE_S": str(LATE_S), "TRACEPARENT": traceparent_of(correlation)}
    source = real.source_for(correlate)
    with agent(real, correlation, otel_python, **more):
        first = await _until(source, correlation, lambda spans: spans >= 1)
        collected = await collect(source, correlation, trace_id_of(correlation))
    await source.aclose()

    assert first is PullState.PARTIAL
    assert collected.outcome is Outcome.COMPLETE
    assert [(event.kind, event.name) for event in collected.events] == [
        (EventKind.LOG, "agent"),
        (EventKind.LLM_CALL, "chat"),
    ]
    assert collected.usage.input_tokens == 5


async def test_a_program_that_was_killed_leaves_what_it_had_sent(
    real: Real, correlation: str, otel_python: str
) -> None:
    source = real.source_for("id")
    more = {"LATE_S": "60", "TRACEPARENT": traceparent_of(correlation)}
    with agent(real, correlation, otel_python, **more) as process:
        await _until(source, correlation, lambda spans: spans >= 1)
        process.kill()
        collected = await collect(source, correlation, trace_id_of(correlation))
    await source.aclose()

    assert collected.outcome is Outcome.PARTIAL
    assert [event.kind for event in collected.events] == [EventKind.LLM_CALL, EventKind.ERROR]
    assert repr(correlation) in collected.events[-1].text


async def test_a_trace_of_many_spans_arrives_whole(
    real: Real, correlation: str, otel_python: str
) -> None:
    root, *_ = sample(correlation)
    common: dict[str, Any] = {
        "trace_id": root.trace_id,
        "parent_id": root.span_id,
        "resource": root.resource,
    }
    steps = [
        FakeSpan(
            **common,
            span_id=f"{root.trace_id[:12]}{number:04x}",
            name=f"step {number}",
            start=root.start + number,
            end=root.start + number + 1,
        )
        for number in range(0x100, 0x100 + 600)
    ]
    await asyncio.to_thread(send, real.server, [*steps, root], real.headers, python=otel_python)

    source = real.source_for("id")
    collected = await collect(source, correlation, root.trace_id)
    await source.aclose()

    assert collected.outcome is Outcome.COMPLETE
    assert len(collected.events) == 601


async def test_nothing_is_there_for_a_trial_that_sent_nothing(real: Real) -> None:
    for correlate in ("id", "tag"):
        source = real.source_for(correlate)
        pulled = await source.pull("run-none.0.1.1", trace_id_of("run-none.0.1.1"))
        await source.aclose()

        assert pulled.state is PullState.ABSENT


async def test_a_probe_tells_what_is_there(real: Real, correlation: str, otel_python: str) -> None:
    await asyncio.to_thread(
        send, real.server, sample(correlation), real.headers, python=otel_python
    )
    there = real.source_for("id")
    await collect(there, correlation, trace_id_of(correlation))
    nowhere = real.source_for("id", url=f"http://127.0.0.1:{free_port()}")
    scope = "experiment" if real.source["kind"] == "mlflow" else "project"
    other = real.source_for("id", **{scope: "no-such"})
    probes = [await source.probe() for source in (there, nowhere, other)]
    for source in (there, nowhere, other):
        await source.aclose()

    assert [probe.state for probe in probes] == [
        ProbeState.OK,
        ProbeState.UNREACHABLE,
        ProbeState.ERROR,
    ]
    assert "'no-such'" in probes[2].message


async def _until(source: TraceSource, correlation: str, enough: Callable[[int], bool]) -> PullState:
    """Look until so many spans are there; gives what was seen then."""
    for _ in range(200):
        pulled = await source.pull(correlation, trace_id_of(correlation))
        if enough(pulled.spans):
            return pulled.state
        await asyncio.sleep(0.1)
    raise AssertionError("nothing arrived")
