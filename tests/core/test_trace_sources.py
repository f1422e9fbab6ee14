"""Every platform gives the identical list of events for the same trace."""

from __future__ import annotations

import pytest

from tests.core.trace_platforms import PLATFORMS, source_of
from tests.core.trace_sample import CORRELATION, sample
from weirbox.domain.pulling import Pulled
from weirbox.domain.trace import TraceEvent, Usage, total_usage
from weirbox.domain.tracing import parent_span_of, trace_id_of
from weirbox.domain.words import EventKind, ProbeState, PullState
from weirbox.testing import FakePlatform, FakeSpan

TRACE = trace_id_of(CORRELATION)

EVENTS = (
    TraceEvent(kind=EventKind.LOG, name="invoke_agent oslo", at=0.0, duration=2.5),
    TraceEvent(kind=EventKind.MESSAGE, name="system", text="Answer in one word.", at=0.1, parent=0),
    TraceEvent(
        kind=EventKind.MESSAGE, name="user", text="How warm is it in Oslo?", at=0.1, parent=0
    ),
    TraceEvent(
        kind=EventKind.LLM_CALL,
        name="chat first",
        at=0.1,
        duration=0.8,
        usage=Usage(input_tokens=50, cached_tokens=20, output_tokens=10, cost_usd=0.25),
        model="small-2026",
        parent=0,
    ),
    TraceEvent(
        kind=EventKind.TOOL_CALL,
        name="weather",
        data={"city": "Oslo", "days": 2},
        at=1.0,
        duration=0.4,
        parent=0,
    ),
    TraceEvent(kind=EventKind.LOG, name="look up", at=1.1, duration=0.2, parent=4),
    TraceEvent(kind=EventKind.TOOL_RESULT, name="weather", text="14 °C", at=1.4, parent=4),
    TraceEvent(
        kind=EventKind.LLM_CALL,
        name="chat second",
        text="14 °C",
        at=1.5,
        duration=0.5,
        usage=Usage(input_tokens=80, output_tokens=2),
        model="small",
        parent=0,
    ),
    TraceEvent(
        kind=EventKind.TOOL_CALL,
        name="notify",
        data={"to": "ann"},
        at=2.1,
        duration=0.3,
        parent=0,
    ),
    TraceEvent(
        kind=EventKind.ERROR,
        name="notify",
        text="TimeoutError: no reply in 0.3 s",
        at=2.4,
        parent=8,
    ),
)
"""What the sample comes to, wherever it stands."""


async def pull(platform: FakePlatform, name: str, correlate: str) -> Pulled:
    """Look once for the sample's trace."""
    source = source_of(PLATFORMS[name], platform.url, correlate=correlate)
    try:
        return await source.pull(CORRELATION, TRACE)
    finally:
        await source.aclose()


@pytest.mark.parametrize("correlate", ["id", "tag"])
@pytest.mark.parametrize("name", PLATFORMS)
async def test_every_platform_gives_the_same_events(name: str, correlate: str) -> None:
    with PLATFORMS[name].make() as platform:
        platform.add(*sample("another.0.1.1"), *sample())
        pulled = await pull(platform, name, correlate)

    assert pulled.events == EVENTS
    assert pulled.state is PullState.COMPLETE
    assert pulled.spans == 6


@pytest.mark.parametrize("name", PLATFORMS)
async def test_a_trace_says_where_it_stands(name: str) -> None:
    with PLATFORMS[name].make() as platform:
        platform.add(*sample())
        pulled = await pull(platform, name, "id")
        trace = pulled.trace

        assert trace is not None
        assert trace.platform == PLATFORMS[name].source["kind"]
        assert trace.base_url == platform.url
        assert trace.trace_id.removeprefix("tr-").replace("-", "") == TRACE
        assert trace.url is not None
        assert trace.url.startswith(platform.url)
        assert trace.trace_id in trace.url


@pytest.mark.parametrize("correlate", ["id", "tag"])
@pytest.mark.parametrize("name", PLATFORMS)
async def test_an_empty_platform_has_nothing_yet(name: str, correlate: str) -> None:
    with PLATFORMS[name].make() as platform:
        pulled = await pull(platform, name, correlate)

    assert pulled == Pulled(state=PullState.ABSENT)


@pytest.mark.parametrize("correlate", ["id", "tag"])
@pytest.mark.parametrize("name", PLATFORMS)
async def test_the_trace_of_another_trial_is_not_taken(name: str, correlate: str) -> None:
    with PLATFORMS[name].make() as platform:
        platform.add(*sample(CORRELATION + "1"), *sample("x" + CORRELATION))
        pulled = await pull(platform, name, correlate)

    assert pulled == Pulled(state=PullState.ABSENT)


@pytest.mark.parametrize("name", PLATFORMS)
async def test_a_trace_without_its_root_is_not_complete(name: str) -> None:
    with PLATFORMS[name].make() as platform:
        platform.add(*sample()[1:])
        pulled = await pull(platform, name, "id")

    assert pulled.state is PullState.PARTIAL
    assert pulled.spans == 5
    assert [event.name for event in pulled.events if event.kind is EventKind.LLM_CALL] == [
        "chat first",
        "chat second",
    ]
    assert pulled.missing


OWN_SPAN_IDS = [name for name in PLATFORMS if not name.startswith("langsmith")]
"""LangSmith has no span whose parent is elsewhere: its runs are one tree."""


@pytest.mark.parametrize("name", OWN_SPAN_IDS)
async def test_a_root_below_the_parent_that_the_trial_was_given_is_a_root(name: str) -> None:
    root, *rest = sample()
    below = FakeSpan(**(vars(root) | {"parent_id": parent_span_of(CORRELATION)}))
    with PLATFORMS[name].make() as platform:
        platform.add(below, *rest)
        pulled = await pull(platform, name, "id")

    assert pulled.state is PullState.COMPLETE
    assert pulled.events == EVENTS


@pytest.mark.parametrize("name", PLATFORMS)
async def test_all_traces_of_a_trial_are_taken_together(name: str) -> None:
    with PLATFORMS[name].make() as platform:
        platform.add(*sample(), *sample(trace_id="c0ffee" * 5 + "c0"))
        pulled = await pull(platform, name, "tag")

    assert pulled.state is PullState.COMPLETE
    assert pulled.spans == 12
    assert total_usage(pulled.events).input_tokens == 260


@pytest.mark.parametrize("name", PLATFORMS)
async def test_a_trace_of_many_pages_is_taken_whole(name: str) -> None:
    many = [
        FakeSpan(
            **(
                vars(sample()[3])
                | {"span_id": f"{number:016x}", "name": f"step {number}"}
                | {"parent_id": sample()[0].span_id}
            )
        )
        for number in range(1, 1205)
    ]
    with PLATFORMS[name].make() as platform:
        platform.add(*sample(), *many)
        by_id = await pull(platform, name, "id")
        by_tag = await pull(platform, name, "tag")

    assert by_id.spans == by_tag.spans == 1210
    assert by_id.events == by_tag.events
    steps = {event.name for event in by_id.events if event.name.startswith("step ")}
    assert steps == {f"step {number}" for number in range(1, 1205)}


@pytest.mark.parametrize("name", PLATFORMS)
async def test_a_platform_that_can_be_used_says_so(name: str) -> None:
    with PLATFORMS[name].make() as platform:
        platform.add(*sample())
        source = source_of(PLATFORMS[name], platform.url, correlate="tag")

        assert (await source.probe()).state is ProbeState.OK
        await source.aclose()
