"""What goes wrong between a source and its platform, and that no secret is given away."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.core.trace_platforms import PLATFORMS, source_of
from tests.core.trace_sample import CORRELATION, sample
from weirbox.domain.pulling import Pulled
from weirbox.domain.tracing import trace_id_of
from weirbox.domain.words import ErrorKind, ProbeState, PullState
from weirbox.errors import TraceError
from weirbox.secrets import reader
from weirbox.testing import FakePlatform
from weirbox.testing.platform import Reply
from weirbox.traces import http

TRACE = trace_id_of(CORRELATION)
CANARY = "canary-7f3a9"

OPEN: dict[str, dict[str, Any]] = {
    "jaeger v3": {"headers": {"authorization": "Bearer secret:KEY"}},
    "mlflow": {"headers": {"authorization": "Bearer secret:KEY"}},
    "phoenix": {"secret": "KEY"},
    "langfuse v4": {"public_key": "KEY", "secret_key": "KEY"},
    "langsmith v2": {"secret": "KEY"},
}
"""How each platform is told a secret of the name KEY."""

HEADER = {
    "jaeger v3": ("authorization", f"Bearer {CANARY}"),
    "mlflow": ("authorization", f"Bearer {CANARY}"),
    "phoenix": ("authorization", f"Bearer {CANARY}"),
    "langfuse v4": ("authorization", "Basic Y2FuYXJ5LTdmM2E5OmNhbmFyeS03ZjNhOQ=="),
    "langsmith v2": ("x-api-key", CANARY),
}


async def failure(platform: FakePlatform, name: str, **more: Any) -> TraceError:
    """The error of one look."""
    source = source_of(PLATFORMS[name], platform.url, **more)
    try:
        with pytest.raises(TraceError) as caught:
            await source.pull(CORRELATION, TRACE)
    finally:
        await source.aclose()
    return caught.value


@pytest.mark.parametrize("name", OPEN)
async def test_the_secret_goes_where_the_platform_looks_for_it(name: str) -> None:
    with PLATFORMS[name].make() as platform:
        platform.required = dict([HEADER[name]])
        platform.add(*sample())
        source = source_of(
            PLATFORMS[name], platform.url, read_secret=reader({"KEY": CANARY}.get), **OPEN[name]
        )
        pulled = await source.pull(CORRELATION, TRACE)
        await source.aclose()

    assert pulled.state is PullState.COMPLETE
    assert CANARY not in repr(source) + repr(pulled)


@pytest.mark.parametrize("name", OPEN)
async def test_without_its_secret_nothing_is_asked(name: str) -> None:
    with PLATFORMS[name].make() as platform:
        error = await failure(platform, name, read_secret=reader(), **OPEN[name])
        source = source_of(PLATFORMS[name], platform.url, read_secret=reader(), **OPEN[name])
        probe = await source.probe()
        await source.aclose()

        assert platform.requests == []
    assert error.kind is ErrorKind.MISSING_SECRET
    assert "'KEY'" in str(error)
    assert not error.transient
    assert probe.state is ProbeState.AUTH


@pytest.mark.parametrize("name", OPEN)
async def test_a_secret_that_is_refused_is_not_shown(name: str) -> None:
    with PLATFORMS[name].make() as platform:
        echo = f"who are you? you sent {HEADER[name][1]}"
        platform.troubles += [Reply(401, echo), Reply(403, {"message": echo})]
        read = reader({"KEY": CANARY}.get)
        error = await failure(platform, name, read_secret=read, **OPEN[name])
        source = source_of(PLATFORMS[name], platform.url, read_secret=read, **OPEN[name])
        probe = await source.probe()
        await source.aclose()

    assert (error.status, error.transient) == (401, False)
    assert probe.state is ProbeState.AUTH
    for text in (str(error), repr(error), probe.message):
        assert CANARY not in text
        assert HEADER[name][1] not in text
    assert "check the secrets" in str(error)


async def test_a_secret_that_no_header_can_carry_is_not_sent() -> None:
    with PLATFORMS["phoenix"].make() as platform:
        error = await failure(
            platform, "phoenix", secret="KEY", read_secret=reader({"KEY": "a\nb: c"}.get)
        )
        assert platform.requests == []

    assert error.kind is ErrorKind.MISSING_SECRET


@pytest.mark.parametrize("name", PLATFORMS)
async def test_a_redirect_is_not_followed_with_the_secret(name: str) -> None:
    with PLATFORMS[name].make() as platform, FakePlatform() as elsewhere:
        platform.troubles.append(Reply(307, b"", {"location": elsewhere.url}))
        error = await failure(platform, name)

        assert elsewhere.requests == []
    assert "redirects" in str(error)
    assert not error.transient


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
@pytest.mark.parametrize("name", PLATFORMS)
async def test_a_busy_platform_may_be_asked_again(name: str, status: int) -> None:
    with PLATFORMS[name].make() as platform:
        platform.troubles.append(Reply(status, "later", {"retry-after": "7"}))
        error = await failure(platform, name)

    assert error.transient
    assert error.retry_after == 7.0
    assert error.status == status


@pytest.mark.parametrize("status", [400, 415, 422])
@pytest.mark.parametrize("name", PLATFORMS)
async def test_an_answer_that_says_no_is_final(name: str, status: int) -> None:
    with PLATFORMS[name].make() as platform:
        platform.troubles.append(Reply(status, {"message": "no such thing"}))
        error = await failure(platform, name)

    assert not error.transient
    assert "no such thing" in str(error)
    assert platform.requests


@pytest.mark.parametrize("name", PLATFORMS)
async def test_an_address_where_nobody_listens_is_named(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    source = source_of(PLATFORMS[name], url)

    with pytest.raises(TraceError) as caught:
        await source.pull(CORRELATION, TRACE)
    probe = await source.probe()
    await source.aclose()

    assert caught.value.transient
    assert url in str(caught.value)
    assert probe.state is ProbeState.UNREACHABLE


@pytest.mark.parametrize("name", PLATFORMS)
async def test_a_page_instead_of_an_answer_is_an_error(name: str) -> None:
    with PLATFORMS[name].make() as platform:
        platform.troubles += [Reply(200, "<html>Sign in</html>")] * 3
        source = source_of(PLATFORMS[name], platform.url, correlate="tag")
        probe = await source.probe()
        await source.aclose()

    assert probe.state is ProbeState.ERROR
    assert "Sign in" in probe.message


async def test_a_platform_that_says_nothing_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "PROBE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        source = source_of(PLATFORMS["mlflow"], url)
        probe = await source.probe()
        await source.aclose()

    assert probe.state is ProbeState.UNREACHABLE


async def test_a_platform_that_is_too_slow_may_be_asked_again() -> None:
    with PLATFORMS["mlflow"].make() as platform:
        platform.delay_s = 1.0
        error = await failure(platform, "mlflow", timeout_s=0.1)

    assert error.transient
    assert "within 0.1 s" in str(error)


async def test_an_answer_beyond_all_bounds_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_LIMIT", 1000)
    with PLATFORMS["jaeger v3"].make() as platform:
        platform.add(*sample())
        error = await failure(platform, "jaeger v3")

    assert "more than 1000 bytes" in str(error)
    assert not error.transient


# --- one platform's own ways ----------------------------------------------------------


async def look(platform: FakePlatform, name: str, correlate: str = "id") -> Pulled:
    """Look once."""
    source = source_of(PLATFORMS[name], platform.url, correlate=correlate)
    try:
        return await source.pull(CORRELATION, TRACE)
    finally:
        await source.aclose()


async def test_mlflow_between_the_two_requests_of_its_client_has_nothing_yet() -> None:
    with PLATFORMS["mlflow"].make() as platform:
        platform.add(*sample())
        body = {
            "error_code": "INTERNAL_ERROR",
            "message": "Trace data not stored in tracking store",
        }
        platform.troubles.append(Reply(500, body))

        assert (await look(platform, "mlflow")).state is PullState.ABSENT


async def test_another_failure_of_mlflow_may_be_asked_again() -> None:
    with PLATFORMS["mlflow"].make() as platform:
        platform.troubles.append(Reply(500, {"error_code": "INTERNAL_ERROR", "message": "oh"}))

        assert (await failure(platform, "mlflow")).transient


async def test_an_mlflow_without_the_address_is_too_old() -> None:
    with PLATFORMS["mlflow"].make() as platform:
        platform.troubles.append(platform.unknown(None))  # type: ignore[arg-type]

        assert "3.10 or newer" in str(await failure(platform, "mlflow"))


async def test_mlflow_says_itself_that_a_trace_goes_on() -> None:
    with PLATFORMS["mlflow"].make() as platform:
        platform.add(*sample())
        platform.open.add(TRACE)  # type: ignore[attr-defined]
        pulled = await look(platform, "mlflow")

    assert pulled.state is PullState.PARTIAL
    assert pulled.missing == "its end"


async def test_an_attribute_of_a_span_is_found_where_mlflow_makes_no_tags() -> None:
    with PLATFORMS["mlflow"].make() as platform:
        for correlation in (CORRELATION, CORRELATION + "1"):
            for span in sample(correlation):
                bare = {k: v for k, v in vars(span).items() if k != "resource"}
                platform.add(type(span)(**bare))
        pulled = await look(platform, "mlflow", "tag")

    assert pulled.spans == 6
    assert pulled.trace is not None
    assert pulled.trace.trace_id == f"tr-{TRACE}"


async def test_too_many_traces_with_one_attribute_are_refused() -> None:
    with PLATFORMS["phoenix"].make() as platform:
        for number in range(101):
            platform.add(*sample(trace_id=f"{number + 1:012x}" + "0" * 20))
        source = source_of(PLATFORMS["phoenix"], platform.url, correlate="tag")
        with pytest.raises(TraceError, match="more than 100 traces"):
            await source.pull(CORRELATION, TRACE)
        await source.aclose()


async def test_jaegers_search_is_missed_at_an_address_that_is_not_jaegers() -> None:
    with FakePlatform() as other:
        source = source_of(PLATFORMS["jaeger v3"], other.url, correlate="tag")
        with pytest.raises(TraceError, match="neither v3 nor v1"):
            await source.pull(CORRELATION, TRACE)
        await source.aclose()


async def test_a_correlation_that_would_leave_its_quotes_is_not_searched_for() -> None:
    source = source_of(PLATFORMS["mlflow"], "http://127.0.0.1:1", correlate="tag")

    with pytest.raises(TraceError, match="cannot be searched for"):
        await source.pull("a' OR '1' = '1", TRACE)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("jaeger v1", {"data": [{"spans": [{"traceID": "1"}]}]}),
        ("jaeger v3", {"result": {"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]}}),
        ("mlflow", {"trace": {"spans": [{"start_time_unix_nano": "soon"}]}}),
        ("phoenix", {"data": [{"name": "a"}]}),
        ("langfuse v4", {"data": [{"id": "1"}], "meta": {}}),
        ("langsmith v2", [{"name": "mine"}]),
    ],
)
async def test_an_answer_in_another_form_is_an_error_with_a_name(name: str, body: Any) -> None:
    with PLATFORMS[name].make() as platform:
        platform.troubles += [Reply(200, body)] * 2
        error = await failure(platform, name)

    assert not error.transient
    assert f"trace source {PLATFORMS[name].source['kind']!r}" in str(error)
