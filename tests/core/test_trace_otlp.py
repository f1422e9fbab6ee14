"""Back ends that give OTLP by a trace's id, in the forms that they wrap it in."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.core.test_trace_sources import EVENTS, TRACE
from tests.core.trace_platforms import Kind, source_of
from tests.core.trace_sample import CORRELATION, sample
from weirbox.domain.words import ProbeState, PullState
from weirbox.testing import FakePlatform
from weirbox.testing.otlp import from_otlp, to_otlp
from weirbox.testing.platform import Reply, Request, route

IDS = ("traceId", "spanId", "parentSpanId")


class FakeBackEnd(FakePlatform):
    """A store of traces that only knows them by id, and gives ids in base64."""

    def __init__(self, wrap: str) -> None:
        super().__init__()
        self.wrap = wrap

    @route("GET", "/api/traces/(?P<trace_id>[^/]+)")
    def trace(self, request: Request, trace_id: str) -> Reply:
        """One trace."""
        spans = self.traces().get(trace_id)
        if spans is None:
            return Reply(404, "trace not found")
        body = to_otlp(spans)
        for resource in body["resourceSpans"]:
            for span in resource["scopeSpans"][0]["spans"]:
                for name in IDS:
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
        if self.wrap == "batches":
            return Reply(200, {"batches": body["resourceSpans"]})
        return Reply(200, {"trace": body} if self.wrap == "trace" else body)


def kind(wrap: str) -> Kind:
    """Such a back end."""
    return Kind(lambda: FakeBackEnd(wrap), {"kind": "otel"})


@pytest.mark.parametrize("wrap", ["batches", "trace", "plain"])
async def test_a_back_end_gives_the_same_events_by_id(wrap: str) -> None:
    with FakeBackEnd(wrap) as platform:
        platform.add(*sample())
        source = source_of(kind(wrap), platform.url)
        pulled = await source.pull(CORRELATION, TRACE)
        nothing = await source.pull("other.1", "f" * 32)
        probe = await source.probe()
        await source.aclose()

    assert pulled.events == EVENTS
    assert nothing.state is PullState.ABSENT
    assert probe.state is ProbeState.OK


def test_spans_survive_the_protocol() -> None:
    spans = sample()
    given: dict[str, Any] = to_otlp(spans)

    assert list(from_otlp(given)) == spans
