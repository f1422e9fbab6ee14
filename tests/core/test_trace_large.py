"""A trace of 10,000 spans is pulled whole, within bounds of memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.core.trace_platforms import PLATFORMS, source_of
from tests.core.trace_sample import CORRELATION, MS, NOW, SERVICE
from weirbox.domain.trace import total_usage
from weirbox.domain.tracing import trace_id_of
from weirbox.domain.words import EventKind, PullState
from weirbox.testing import FakeSpan

TRACE = trace_id_of(CORRELATION)
SPANS = 10_000
TEXT = "What a model said, at some length. " * 60

MOST = 256 * 2**20
"""The most bytes of the whole test process's Python objects, the fake's included: about ten
times the JSON of the trace, which has 2.3 kB a span."""


def large() -> Iterator[FakeSpan]:
    """A root and calls of models below it."""
    common: dict[str, Any] = {"trace_id": TRACE, "resource": {"service.name": SERVICE}}
    yield FakeSpan(**common, span_id=f"{1:016x}", name="root", start=NOW, end=NOW + 2 * SPANS * MS)
    for number in range(2, SPANS + 1):
        yield FakeSpan(
            **common,
            span_id=f"{number:016x}",
            parent_id=f"{1:016x}",
            name="chat",
            start=NOW + number * MS,
            end=NOW + (number + 1) * MS,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "small",
                "gen_ai.usage.input_tokens": 5,
                "gen_ai.usage.output_tokens": 2,
                "gen_ai.output.messages": json.dumps(
                    [{"role": "assistant", "parts": [{"type": "text", "content": TEXT}]}]
                ),
            },
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", PLATFORMS)
async def test_ten_thousand_spans_are_pulled_within_bounds_of_memory(name: str) -> None:
    with PLATFORMS[name].make() as platform:
        platform.add(*large())
        source = source_of(PLATFORMS[name], platform.url)
        tracemalloc.start()
        try:
            pulled = await source.pull(CORRELATION, TRACE)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            await source.aclose()

    assert pulled.state is PullState.COMPLETE
    assert pulled.spans == SPANS
    assert [event.kind for event in pulled.events].count(EventKind.LLM_CALL) == SPANS - 1
    assert total_usage(pulled.events).input_tokens == 5 * (SPANS - 1)
    assert peak < MOST
    print(f"{name}: {peak / 2**20:.0f} MB")
