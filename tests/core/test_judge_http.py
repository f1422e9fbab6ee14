"""Providers over HTTP: what they are sent, and what their answers mean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.core.judge_bench import (
    KEY,
    PASS,
    ask_for,
    workshop,
)
from weirbox.domain.base import canonical_json
from weirbox.domain.judging import (
    AnthropicProvider,
    OpenAIProvider,
    Price,
    Rubric,
)
from weirbox.domain.seams import Provider, Workshop
from weirbox.domain.trace import Usage
from weirbox.domain.words import Reason
from weirbox.errors import ProviderError
from weirbox.judges import reply_schema
from weirbox.judges.providers.anthropic import AnthropicAccount
from weirbox.judges.providers.openai import OpenAIAccount


class Server:
    """Answers in turn, and keeps what it was asked."""

    def __init__(self, *answers: tuple[int, Any] | tuple[int, Any, dict[str, str]]) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        status, body, *headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        content = body if isinstance(body, str) else json.dumps(body)
        return httpx.Response(status, text=content, headers=headers[0] if headers else {})

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self)


def message(text: str = PASS, stop: str = "end_turn", **usage: int) -> dict[str, Any]:
    counted = {"input_tokens": 10, "output_tokens": 20} | usage
    content = [{"type": "thinking", "thinking": "verdict: fail"}, {"type": "text", "text": text}]
    return {"model": "served", "content": content, "stop_reason": stop, "usage": counted}


def completion(text: str | None = PASS, stop: str = "stop", **extra: Any) -> dict[str, Any]:
    return {
        "model": "served",
        "choices": [{"message": {"content": text} | extra, "finish_reason": stop}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 5},
        },
    }


def anthropic(server: Server, shop: Workshop | None = None, **spec: Any) -> AnthropicAccount:
    return AnthropicAccount(
        "main",
        AnthropicProvider(kind="anthropic", **spec),
        shop or workshop(),
        transport=server.transport,
    )


def openai(server: Server, shop: Workshop | None = None, **spec: Any) -> OpenAIAccount:
    return OpenAIAccount(
        "main",
        OpenAIProvider(kind="openai", **spec),
        shop or workshop(),
        transport=server.transport,
    )


@pytest.mark.parametrize(
    ("version", "temperature"), [("2023-06-01", 0.5), ("2026-10-21", None), ("2027-01-01", None)]
)
async def test_anthropic_is_asked_for_a_schema_and_for_a_temperature_only_where_it_takes_one(
    version: str, temperature: float | None
) -> None:
    server = Server((200, message()))
    await anthropic(server, version=version).ask(ask_for(temperature=0.5))

    (request,) = server.requests
    expected = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "system": "Judge.",
        "messages": [{"role": "user", "content": "four"}],
        "output_config": {"format": {"type": "json_schema", "schema": reply_schema(Rubric())}},
    }
    if temperature is not None:
        expected["temperature"] = temperature
    assert server.bodies == [expected]
    assert str(request.url) == "https://api.anthropic.com/v1/messages"
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == version


async def test_openai_is_asked_for_a_schema() -> None:
    server = Server((200, completion()))
    provider = openai(server, base_url="http://127.0.0.1:1/v1/")
    await provider.ask(ask_for(model="m", temperature=0.0))

    (request,) = server.requests
    schema = {"name": "judgement", "schema": reply_schema(Rubric()), "strict": True}
    assert server.bodies == [
        {
            "model": "m",
            "max_completion_tokens": 100,
            "response_format": {"type": "json_schema", "json_schema": schema},
            "messages": [
                {"role": "system", "content": "Judge."},
                {"role": "user", "content": "four"},
            ],
            "temperature": 0.0,
        }
    ]
    assert str(request.url) == "http://127.0.0.1:1/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"


async def test_a_server_without_a_secret_gets_no_key() -> None:
    server = Server((200, completion()))
    await openai(server, secret=None).ask(ask_for())

    assert "authorization" not in server.requests[0].headers


ANTHROPIC_STOPS = {
    "end_turn": "end",
    "stop_sequence": "end",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "tool_use": "other",
    "pause_turn": "other",
}


@pytest.mark.parametrize(("stop", "means"), ANTHROPIC_STOPS.items())
async def test_anthropics_stop_reasons_are_told_apart(stop: str, means: str) -> None:
    reply = await anthropic(Server((200, message(stop=stop)))).ask(ask_for())

    assert (reply.stop, reply.text, reply.model) == (means, PASS, "served")


async def test_anthropics_refusal_is_kept_with_its_explanation() -> None:
    body = message(text="", stop="refusal") | {"stop_details": {"explanation": "policy"}}
    reply = await anthropic(Server((200, body))).ask(ask_for())

    assert (reply.stop, reply.text) == ("refusal", "policy")


@pytest.mark.parametrize(
    ("body", "stop", "text"),
    [
        (completion(), "end", PASS),
        (completion(stop="length"), "length", PASS),
        (completion(stop="tool_calls"), "other", PASS),
        (completion(stop="content_filter"), "refusal", PASS),
        (completion(None, refusal="I will not."), "refusal", "I will not."),
        (completion(None), "end", ""),
    ],
    ids=["stop", "length", "tool_calls", "content_filter", "refusal", "empty"],
)
async def test_openais_finish_reasons_are_told_apart(
    body: dict[str, Any], stop: str, text: str
) -> None:
    reply = await openai(Server((200, body))).ask(ask_for())

    assert (reply.stop, reply.text) == (stop, text)


async def test_usage_counts_cached_tokens_as_a_part_of_the_input() -> None:
    body = message(cache_creation_input_tokens=3, cache_read_input_tokens=7)
    theirs = (await anthropic(Server((200, body))).ask(ask_for())).usage
    ours = (await openai(Server((200, completion()))).ask(ask_for(model="gpt-4o-mini"))).usage

    assert (theirs.input_tokens, theirs.cached_tokens, theirs.cache_write_tokens) == (20, 7, 3)
    assert (ours.input_tokens, ours.cached_tokens, ours.total_tokens) == (10, 5, 30)
    # $3 plain, $0.30 read, $3.75 written, $15 output; $0.15 plain, $0.075 cached, $0.60 output
    assert theirs.cost_usd == pytest.approx((10 * 3 + 7 * 0.3 + 3 * 3.75 + 20 * 15) / 1e6)
    assert ours.cost_usd == pytest.approx((5 * 0.15 + 5 * 0.075 + 20 * 0.6) / 1e6)


async def test_a_provider_that_reports_no_usage_has_unknown_usage_and_cost() -> None:
    bodies = (message() | {"usage": None}, completion() | {"usage": None})
    theirs = await anthropic(Server((200, bodies[0]))).ask(ask_for())
    ours = await openai(Server((200, bodies[1]))).ask(ask_for(model="gpt-4o-mini"))

    assert (theirs.usage, ours.usage) == (Usage(), Usage())


@pytest.mark.parametrize(
    ("body", "spec", "cost"),
    [
        (completion(), {}, None),
        (completion(), {"prices": {"m": {"input": 1, "output": 2}}}, 50e-6),
        (
            completion(),
            {"prices": {"m": {"input": 1, "output": 2, "cached_input": 0.5}}},
            47.5e-6,
        ),
    ],
    ids=["unknown", "override", "override-cached"],
)
async def test_an_unknown_price_is_unknown_and_the_suites_price_goes_first(
    body: dict[str, Any], spec: dict[str, Any], cost: float | None
) -> None:
    provider = openai(Server((200, body)), base_url="http://127.0.0.1:1/v1", **spec)
    request = ask_for(model="m")
    reply = await provider.ask(request)

    assert reply.usage.cost_usd == (None if cost is None else pytest.approx(cost))
    assert (provider.bound_usd(request) is None) == (cost is None)


def test_a_local_server_does_not_take_a_known_models_price() -> None:
    provider = openai(Server(), base_url="http://127.0.0.1:1/v1")
    assert provider.bound_usd(ask_for(model="gpt-4o-mini")) is None
    assert openai(Server()).bound_usd(ask_for(model="gpt-4o-mini")) is not None


def test_the_bound_holds_for_a_token_per_byte_and_a_full_reply() -> None:
    provider = openai(Server(), prices={"m": Price(input=1e6, output=1e6)})
    text = "é" * 1000
    bound = provider.bound_usd(ask_for(model="m", user=text))

    assert bound is not None
    assert bound >= len(text.encode()) + 100


FAILURES: list[tuple[str, int, Any, Reason, bool, bool]] = [
    ("400", 400, "bad field", Reason.PROVIDER_ERROR, False, False),
    ("401", 401, "bad key", Reason.PROVIDER_ERROR, False, False),
    ("402", 402, "pay first", Reason.QUOTA, False, False),
    ("403", 403, "no", Reason.PROVIDER_ERROR, False, False),
    ("404", 404, "no such model", Reason.PROVIDER_ERROR, False, False),
    ("413", 413, "too large", Reason.PROVIDER_ERROR, False, False),
    ("429", 429, "Rate limit reached on tokens per min", Reason.PROVIDER_ERROR, True, True),
    ("429-quota", 429, "You exceeded your current quota, see billing", Reason.QUOTA, False, False),
    ("429-credit", 429, "your credit balance is too low", Reason.QUOTA, False, False),
    (
        "429-per-minute",
        429,
        "Quota exceeded for requests per minute",
        Reason.PROVIDER_ERROR,
        True,
        True,
    ),
    (
        "429-links",
        429,
        "Rate limit; see https://x/quota-exceeded/billing/credits",
        Reason.PROVIDER_ERROR,
        True,
        True,
    ),
    ("400-credit", 400, "Your credit balance is too low", Reason.QUOTA, False, False),
    ("500", 500, "oops", Reason.PROVIDER_ERROR, True, False),
    ("503", 503, "busy", Reason.PROVIDER_ERROR, True, False),
    ("504", 504, "late", Reason.PROVIDER_ERROR, True, False),
    ("529", 529, "overloaded", Reason.PROVIDER_ERROR, True, True),
    ("302", 302, "elsewhere", Reason.PROVIDER_ERROR, False, False),
]


@pytest.mark.parametrize(
    ("status", "text", "reason", "retryable", "throttled"),
    [row[1:] for row in FAILURES],
    ids=[row[0] for row in FAILURES],
)
@pytest.mark.parametrize("make", [anthropic, openai])
async def test_a_failure_says_whether_to_retry_and_never_shows_the_key(
    make: Callable[..., Provider],
    status: int,
    text: str,
    reason: Reason,
    retryable: bool,
    throttled: bool,
) -> None:
    body = {"error": {"type": "some_error", "message": f"{text} (key {KEY})"}}
    server = Server((status, body, {"retry-after": "7"}))
    with pytest.raises(ProviderError) as caught:
        await make(server).ask(ask_for())

    error = caught.value
    assert (error.reason, error.retryable, error.throttled) == (reason, retryable, throttled)
    assert "provider 'main' (claude-sonnet-4-5)" in str(error)
    assert text in str(error)
    assert KEY not in str(error)
    if retryable:
        assert error.retry_after == 7
    assert len(server.requests) == 1


async def test_a_quota_code_is_terminal_whatever_the_message() -> None:
    body = {"error": {"code": "insufficient_quota", "message": "see billing"}}
    with pytest.raises(ProviderError) as caught:
        await openai(Server((429, body))).ask(ask_for())
    assert (caught.value.reason, caught.value.retryable) == (Reason.QUOTA, False)


@pytest.mark.parametrize("make", [anthropic, openai])
@pytest.mark.parametrize("body", ["<html>", "[]", "{}", '{"choices": [], "content": 1}'])
async def test_a_response_that_is_none_is_a_failure_to_retry(
    make: Callable[..., Provider], body: str
) -> None:
    with pytest.raises(ProviderError) as caught:
        await make(Server((200, body))).ask(ask_for())
    assert caught.value.retryable


async def test_tokens_of_an_unusable_response_are_reported_for_booking() -> None:
    body = {"usage": {"prompt_tokens": 700, "completion_tokens": 100}}
    with pytest.raises(ProviderError) as caught:
        await openai(Server((200, body))).ask(ask_for(model="gpt-4o-mini"))
    assert caught.value.usage.total_tokens == 800
    assert caught.value.usage.cost_usd == pytest.approx((700 * 0.15 + 100 * 0.6) / 1e6)


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError])
async def test_a_broken_connection_is_retryable(error: type[httpx.TransportError]) -> None:
    def break_off(request: httpx.Request) -> httpx.Response:
        raise error(f"broken ({KEY})")

    spec = AnthropicProvider(kind="anthropic")
    provider = AnthropicAccount("main", spec, workshop(), transport=httpx.MockTransport(break_off))
    with pytest.raises(ProviderError) as caught:
        await provider.ask(ask_for())
    assert (caught.value.retryable, caught.value.reason) == (True, Reason.PROVIDER_ERROR)
    assert KEY not in str(caught.value)


async def test_a_server_that_knows_no_schema_is_asked_in_the_prompt_from_then_on() -> None:
    refusal = {"error": {"message": "'response_format' of type 'json_schema' is not supported"}}
    server = Server((400, refusal), (200, completion()))
    provider = openai(server)
    await provider.ask(ask_for())
    await provider.ask(ask_for())

    assert ["response_format" in body for body in server.bodies] == [True, False, False]
    system = server.bodies[1]["messages"][0]["content"]
    assert canonical_json(reply_schema(Rubric())) in system


async def test_an_older_server_gets_max_tokens_from_then_on() -> None:
    refusal = {"error": {"message": "Unrecognized request argument: max_completion_tokens"}}
    server = Server((400, refusal), (200, completion()))
    provider = openai(server)
    await provider.ask(ask_for())
    await provider.ask(ask_for())

    keys = [sorted(key for key in body if key.startswith("max")) for body in server.bodies]
    assert keys == [["max_completion_tokens"], ["max_tokens"], ["max_tokens"]]


async def test_a_limit_that_is_too_high_is_an_error_and_no_reason_to_rename_it() -> None:
    refusal = {"error": {"message": "max_completion_tokens is too large: 99999"}}
    server = Server((400, refusal))
    with pytest.raises(ProviderError, match="too large"):
        await openai(server).ask(ask_for())
    assert len(server.requests) == 1


@pytest.mark.parametrize("secrets", [{}, {"ANTHROPIC_API_KEY": "a\nb"}, {"ANTHROPIC_API_KEY": "é"}])
async def test_a_missing_or_impossible_secret_is_named_and_not_shown(
    secrets: dict[str, str],
) -> None:
    server = Server((200, message()))
    provider = anthropic(server, workshop(secrets=secrets))
    with pytest.raises(ProviderError) as caught:
        await provider.ask(ask_for())

    assert caught.value.reason is Reason.MISSING_SECRET
    assert provider.preflight("m") == str(caught.value)
    assert "'ANTHROPIC_API_KEY'" in str(caught.value)
    assert not any(repr(value)[1:-1] in str(caught.value) for value in secrets.values())
    assert server.requests == []


async def test_the_key_is_in_no_attribute_and_no_address() -> None:
    server = Server((200, message()))
    provider = anthropic(server)
    await provider.ask(ask_for())
    attributes = {name: value for name, value in vars(provider).items() if name != "_transport"}

    assert KEY not in repr(provider) + repr(attributes)
    assert KEY not in str(server.requests[0].url)
    assert provider.preflight("m") is None
    await provider.aclose()
    await provider.aclose()


async def test_a_real_server_is_given_as_many_connections_as_the_concurrency_asks() -> None:
    everyone = asyncio.Event()
    body = json.dumps(completion()).encode()
    inside = 0

    async def serve(reader_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal inside
        await reader_.readuntil(b"\r\n\r\n")
        inside += 1
        if inside == 30:
            everyone.set()
        await everyone.wait()
        head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    spec = OpenAIProvider(
        kind="openai", base_url=f"http://127.0.0.1:{port}/v1", concurrency=30, timeout_s=10
    )
    provider = OpenAIAccount("local", spec, workshop())
    replies = await asyncio.gather(*(provider.ask(ask_for()) for _ in range(30)))
    await provider.aclose()
    server.close()

    assert [reply.text for reply in replies] == [PASS] * 30


async def test_a_server_that_trickles_is_timed_out_as_a_whole() -> None:
    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.01)

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    spec = AnthropicProvider(kind="anthropic", base_url=f"http://127.0.0.1:{port}", timeout_s=0.15)
    provider = AnthropicAccount("slow", spec, workshop())
    with pytest.raises(ProviderError) as caught:
        await provider.ask(ask_for())
    await provider.aclose()
    server.close()

    assert (caught.value.reason, caught.value.retryable) == (Reason.TIMEOUT, True)
