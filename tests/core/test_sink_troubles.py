"""Platform sinks whose platform is down, slow, throttled or closed; and their secrets."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.core.sink_cases import (
    CANARY,
    HEADER,
    PLATFORMS,
    SECRETS,
    Platform,
    a_sink,
    held,
    judged,
    reading,
)
from weirbox.domain.exporting import MlflowSink, OtelSink
from weirbox.domain.seams import ExportOutcome, Sink
from weirbox.domain.words import ExportStatus, ProbeState
from weirbox.sinks import build, circuit, wire
from weirbox.sinks.circuit import Circuit
from weirbox.testing import Clock
from weirbox.testing.platform import Reply, Request
from weirbox.testing.receivers import OtlpReceiver, Receiver

ALL = pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS)
SUCCEEDED, PARTIAL, FAILED = ExportStatus
OTEL = PLATFORMS["otel"]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nothing answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


async def sent(platform: Platform, receiver: Receiver, **changes: Any) -> ExportOutcome:
    async with a_sink(platform.at(receiver, **changes)) as sink:
        return await sink.send(judged())


def circuit_of(sink: Sink, clock: Clock) -> Circuit:
    """Give a sink a circuit that goes by a clock of the test's."""
    sink._circuit = Circuit(clock)  # type: ignore[attr-defined]
    return sink._circuit  # type: ignore[attr-defined,no-any-return]


# --- answers that may pass -------------------------------------------------------------


@ALL
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_what_may_pass_is_tried_again(platform: Platform, status: int) -> None:
    with platform.receiver() as receiver:
        receiver.troubles += [Reply(status, "busy", {"retry-after": "0"})] * 2
        outcome = await sent(platform, receiver)
        assert outcome.status is SUCCEEDED, outcome.message


@ALL
async def test_what_does_not_pass_fails_with_the_platforms_own_words(platform: Platform) -> None:
    with platform.receiver() as receiver:
        receiver.troubles += [Reply(500, "disk is full")] * 3
        outcome = await sent(platform, receiver)
        assert outcome.status is FAILED
        assert "HTTP 500: disk is full" in outcome.message
        assert len(receiver.requests) == 3


async def test_a_pause_that_is_asked_for_is_made() -> None:
    with OtlpReceiver() as receiver:
        receiver.troubles.append(Reply(429, "slow down", {"retry-after": "1"}))
        begun = asyncio.get_running_loop().time()
        assert (await sent(OTEL, receiver)).status is SUCCEEDED
        assert asyncio.get_running_loop().time() - begun >= 1.0


async def test_a_pause_that_is_too_long_is_not_waited_for() -> None:
    with OtlpReceiver() as receiver:
        receiver.troubles.append(Reply(429, "come back", {"retry-after": "3600"}))
        outcome = await sent(OTEL, receiver)
        assert (outcome.status, len(receiver.requests)) == (FAILED, 1)


async def test_a_refusal_is_not_repeated() -> None:
    with OtlpReceiver() as receiver:
        receiver.troubles.append(Reply(400, "no such span"))
        outcome = await sent(OTEL, receiver)
        assert (outcome.status, len(receiver.requests)) == (FAILED, 1)
        assert "HTTP 400: no such span" in outcome.message


async def test_an_answer_that_never_comes_costs_the_time_limit_and_no_more() -> None:
    with OtlpReceiver() as receiver:
        receiver.delay_s = 1.0
        begun = asyncio.get_running_loop().time()
        outcome = await sent(OTEL, receiver, timeout_s=0.2)
        assert asyncio.get_running_loop().time() - begun < 0.9
        assert "no answer within 0.2 s" in outcome.message


async def test_redirects_are_not_followed_since_they_would_be_sent_the_secret() -> None:
    with OtlpReceiver() as elsewhere, OtlpReceiver() as receiver:
        receiver.troubles.append(Reply(307, "", {"location": f"{elsewhere.url}/v1/traces"}))
        outcome = await sent(OTEL, receiver)
        assert outcome.status is FAILED
        assert "redirects" in outcome.message
        assert elsewhere.requests == []


# --- the circuit -----------------------------------------------------------------------


async def test_a_platform_that_is_down_is_left_alone_and_tried_again_later(nobody: str) -> None:
    clock = Clock()
    async with a_sink(OTEL.spec(url=nobody)) as sink:
        broken = circuit_of(sink, clock)
        first = [await sink.send(judged(f"c{n}")) for n in range(circuit.FAILURES)]
        assert all("no answer" in outcome.message for outcome in first)
        assert broken.is_open
        alone = await sink.send(judged("c3"))
        assert "it is left alone for 5 s" in alone.message
        assert "no answer" in alone.message
        assert "weirbox export-retry" in alone.message
        clock.advance(circuit.FIRST_PAUSE_S)
        assert "left alone" not in (await sink.send(judged("c4"))).message
        assert broken.seconds_left == 2 * circuit.FIRST_PAUSE_S


async def test_a_platform_that_is_back_gets_every_trial_again() -> None:
    clock = Clock()
    with OtlpReceiver() as receiver:
        async with a_sink(OTEL.at(receiver)) as sink:
            broken = circuit_of(sink, clock)
            receiver.troubles += [Reply(503, "away")] * 3 * circuit.FAILURES
            for n in range(circuit.FAILURES):
                assert (await sink.send(judged(f"c{n}"))).status is FAILED
            assert (await sink.send(judged("x"))).status is FAILED
            clock.advance(circuit.FIRST_PAUSE_S)
            both = await asyncio.gather(sink.send(judged("y")), sink.send(judged("z")))
            assert {outcome.status for outcome in both} == {SUCCEEDED, FAILED}
            assert not broken.is_open
            assert (await sink.send(judged("z"))).status is SUCCEEDED


async def test_refusals_of_single_trials_do_not_open_the_circuit() -> None:
    with OtlpReceiver() as receiver:
        async with a_sink(OTEL.at(receiver)) as sink:
            receiver.troubles += [Reply(400, "no")] * 5
            outcomes = [await sink.send(judged(f"c{n}")) for n in range(6)]
    assert [outcome.status for outcome in outcomes] == [FAILED] * 5 + [SUCCEEDED]


async def test_a_platform_that_is_slow_once_it_is_warm_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from weirbox.sinks import platform

    monkeypatch.setattr(platform, "SLOW_S", 0.05)
    clock = Clock()
    with OtlpReceiver() as receiver:
        async with a_sink(OTEL.at(receiver)) as sink:
            broken = circuit_of(sink, clock)
            receiver.delay_s = 0.15
            assert (await sink.send(judged("first"))).status is SUCCEEDED
            for n in range(circuit.FAILURES):
                assert (await sink.send(judged(f"c{n}"))).status is SUCCEEDED
            assert "it took" in (await sink.send(judged("next"))).message
            clock.advance(circuit.FIRST_PAUSE_S)
            assert "no answer within 0.05 s" in (await sink.send(judged("tried"))).message
            assert broken.seconds_left == 2 * circuit.FIRST_PAUSE_S


def test_the_circuit_opens_after_failures_in_a_row_and_pauses_longer_each_time() -> None:
    clock = Clock()
    breaker = Circuit(clock)
    breaker.went_badly("one")
    breaker.went_well()
    breaker.went_badly("two")
    assert breaker.admits()
    breaker.went_badly("three")
    pauses = []
    for _ in range(6):
        assert not breaker.admits()
        pauses.append(breaker.seconds_left)
        clock.advance(breaker.seconds_left)
        assert breaker.admits()
        assert not breaker.admits()
        breaker.went_badly("again")
    assert pauses == [5, 10, 20, 20, 20, 20]
    clock.advance(20)
    assert breaker.admits()
    breaker.came_to_nothing()
    assert breaker.admits()
    breaker.went_well()
    assert breaker.admits()
    assert breaker.admits()


async def test_a_send_that_is_cut_off_says_nothing_of_the_platform() -> None:
    clock = Clock()
    with OtlpReceiver() as receiver:
        receiver.delay_s = 5.0
        async with a_sink(OTEL.at(receiver)) as sink:
            broken = circuit_of(sink, clock)
            for n in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(sink.send(judged(f"c{n}")), 0.05)
            assert not broken.is_open
        receiver.delay_s = 0.0


# --- secrets ---------------------------------------------------------------------------


@ALL
async def test_without_its_secret_a_sink_fails_softly_and_calls_nobody(
    platform: Platform,
) -> None:
    with platform.receiver() as receiver:
        async with a_sink(platform.at(receiver), secrets={}) as sink:
            outcome = await sink.send(judged())
            probe = await sink.probe()
        assert receiver.requests == []
    assert outcome.status is FAILED
    name = "LANGFUSE_PUBLIC_KEY" if platform is PLATFORMS["langfuse"] else "KEY"
    assert f"secret '{name}' is missing" in outcome.message
    assert probe.state is ProbeState.AUTH
    assert f"secret '{name}' is missing" in probe.message


@ALL
async def test_a_secret_that_no_header_can_carry_is_not_sent(platform: Platform) -> None:
    broken = dict.fromkeys(SECRETS, "line\nfeed")
    with platform.receiver() as receiver:
        async with a_sink(platform.at(receiver), secrets=broken) as sink:
            outcome = await sink.send(judged())
        assert receiver.requests == []
    assert "has characters that no HTTP header can carry" in outcome.message
    assert "line" not in outcome.message


@ALL
async def test_secrets_reach_the_platform_and_nothing_else(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    class Echoing(platform.receiver):  # type: ignore[name-defined,misc]
        """Says everything that it was sent, as some proxies do."""

        def answer(self, request: Request) -> Reply:
            self.requests.append(request)
            return Reply(400, f"bad: {request.headers}")

    caplog.set_level(logging.DEBUG)
    with Echoing() as receiver:
        spec = platform.at(receiver)
        async with a_sink(spec) as sink:
            outcome = await sink.send(judged())
            probe = await sink.probe()
        carried = [value for name, value in receiver.requests[0].headers.items()]
    assert outcome.status is FAILED
    basic = next((v.partition(" ")[2] for v in carried if v.startswith("Basic ")), CANARY)
    assert any(CANARY in value or basic in value for value in carried)
    shown = (outcome.message, probe.message, repr(sink), repr(spec), repr(vars(sink)), caplog.text)
    assert not any(CANARY in text or basic in text for text in shown)
    assert "[secret " in outcome.message


async def test_a_secret_is_read_anew_for_each_request() -> None:
    secrets = {"KEY": "old"}
    with OtlpReceiver() as receiver:
        sink = build(OTEL.at(receiver), reading(secrets))
        await sink.set_up(HEADER)
        await sink.send(judged("one"))
        secrets["KEY"] = "new"
        await sink.send(judged("two"))
        await sink.aclose()
        assert [r.headers["authorization"] for r in receiver.requests] == [
            "Bearer old",
            "Bearer new",
        ]


def test_a_credential_that_is_written_out_in_a_suite_is_refused() -> None:
    with pytest.raises(ValueError, match="secret"):
        OtelSink(kind="otel", url="http://x", headers={"Authorization": "Bearer abc"})
    with pytest.raises(ValueError, match="secret"):
        MlflowSink(kind="mlflow", url="http://user:pass@x")


def test_the_link_of_an_otel_sink_names_the_trace() -> None:
    with pytest.raises(ValueError, match="'link' needs"):
        OtelSink(kind="otel", url="http://x", link="http://jaeger/trace")


# --- probes ----------------------------------------------------------------------------


@ALL
async def test_a_probe_says_what_is_wrong(platform: Platform, nobody: str) -> None:
    states = {}
    with platform.receiver() as receiver:
        async with a_sink(platform.at(receiver)) as sink:
            states["well"] = (await sink.probe()).state
            assert held(receiver) == (0, 0, 0)
            receiver.required = {"authorization": "another", "x-api-key": "another"}
            states["closed"] = (await sink.probe()).state
            receiver.required = {}
            receiver.troubles += [Reply(404, "what?")]
            states["another server"] = (await sink.probe()).state
    async with a_sink(platform.spec(url=nobody)) as sink:
        states["down"] = (await sink.probe()).state
    assert states == {
        "well": ProbeState.OK,
        "closed": ProbeState.AUTH,
        "another server": ProbeState.ERROR,
        "down": ProbeState.UNREACHABLE,
    }


async def test_a_sink_that_is_not_set_up_for_the_run_says_so() -> None:
    with OtlpReceiver() as receiver:
        sink = build(OTEL.at(receiver), reading(SECRETS))
        assert "not set up for run 'run-1'" in (await sink.send(judged())).message
        await sink.set_up(HEADER.model_copy(update={"run_id": "another"}))
        assert (await sink.send(judged())).status is FAILED
        assert receiver.requests == []
        await sink.complete()
        await sink.aclose()
