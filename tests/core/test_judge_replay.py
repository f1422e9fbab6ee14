"""Judges that are functions or recordings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.judge_bench import (
    ask_for,
    line,
    python,
    replay,
    workshop,
)
from weirbox.domain.judging import (
    ReplayProvider,
)
from weirbox.domain.words import Reason, Tier
from weirbox.errors import ProviderError
from weirbox.judges import build


@pytest.mark.parametrize(
    ("function", "text", "stop"),
    [
        ("text", '{"verdict": "pass"}', "end"),
        ("as_dict", '{"verdict":"c1"}', "end"),
        ("later", "verdict: fail", "length"),
    ],
)
async def test_a_function_may_answer_with_a_text_a_dict_or_a_reply(
    function: str, text: str, stop: str
) -> None:
    provider = python(function)
    reply = await provider.ask(ask_for())

    assert (reply.text, reply.stop, reply.usage.cost_usd) == (text, stop, 0.02)
    assert (provider.bound_usd(ask_for()), provider.preflight("m")) == (0.02, None)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("breaks", "raised KeyError: 'no such thing'"),
        ("stops", "StopIteration"),
        ("leaves", "SystemExit: 3"),
        ("number", "returned int: return a text"),
        ("not_json", "no JSON"),
    ],
)
async def test_a_function_that_breaks_is_a_failure_that_is_paid_for(
    function: str, words: str
) -> None:
    with pytest.raises(ProviderError) as caught:
        await python(function).ask(ask_for())

    assert words in str(caught.value)
    assert (caught.value.reason, caught.value.retryable) == (Reason.GRADER_ERROR, False)
    assert caught.value.usage.cost_usd == 0.02


async def test_a_function_that_hangs_is_timed_out() -> None:
    with pytest.raises(ProviderError) as caught:
        await python("hangs", timeout_s=0.05).ask(ask_for())
    assert caught.value.reason is Reason.TIMEOUT


def test_a_function_that_is_not_there_is_found_at_preflight() -> None:
    assert "no function 'nothing'" in str(python("nothing").preflight("m"))


async def test_a_recorded_reply_is_free_and_marked_as_cached() -> None:
    usage = {"input_tokens": 5, "output_tokens": 2, "cost_usd": 1.0}
    provider = replay(line(reply={"verdict": "pass"}, usage=usage, stop="length"))
    reply = await provider.ask(ask_for())

    assert (reply.text, reply.stop, reply.cached) == ('{"verdict":"pass"}', "length", True)
    assert (reply.usage.cost_usd, reply.usage.total_tokens) == (0.0, 7)
    assert (provider.bound_usd(ask_for()), provider.preflight("m")) == (0.0, None)


async def test_replies_are_kept_apart_by_check_case_tier_and_trial() -> None:
    provider = replay(
        line(reply="any"),
        line(reply="third", trial=3),
        line(reply="escalated", tier="escalation"),
        line(reply="other", case=7),
    )
    asked = [
        ask_for(),
        ask_for(trial=3),
        ask_for(tier=Tier.ESCALATION),
        ask_for(case_id="7"),
    ]
    replies = [(await provider.ask(request)).text for request in asked]

    assert replies == ["any", "third", "escalated", "other"]


async def test_several_replies_are_served_in_order_for_each_trial() -> None:
    provider = replay(line(reply="one"), line(reply="two"))
    trials = [1, 1, 2, 1, 2]
    replies = [(await provider.ask(ask_for(trial=trial))).text for trial in trials]

    assert replies == ["one", "two", "one", "two", "two"]


async def test_a_missing_recording_is_named() -> None:
    with pytest.raises(ProviderError, match="check 'style', case 'c1', tier 'escalation'"):
        await replay(line()).ask(ask_for(check="style", tier=Tier.ESCALATION))


@pytest.mark.parametrize(
    ("error", "reason", "retryable", "throttled", "retry_after"),
    [
        ({"status": 429, "retry_after": 2}, Reason.PROVIDER_ERROR, True, True, 2),
        ({"status": 500}, Reason.PROVIDER_ERROR, True, False, None),
        ({"status": 400}, Reason.PROVIDER_ERROR, False, False, None),
        ({"reason": "timeout"}, Reason.TIMEOUT, True, False, None),
        ({"reason": "quota"}, Reason.QUOTA, False, False, None),
        ({"status": 429, "message": "quota exceeded"}, Reason.QUOTA, False, True, None),
    ],
    ids=["429", "500", "400", "timeout", "quota", "429-quota"],
)
async def test_a_failure_can_be_rehearsed(
    error: dict[str, Any],
    reason: Reason,
    retryable: bool,
    throttled: bool,
    retry_after: float | None,
) -> None:
    with pytest.raises(ProviderError) as caught:
        await replay(line(error=error)).ask(ask_for())

    made = caught.value
    assert (made.reason, made.retryable, made.retry_after) == (reason, retryable, retry_after)
    assert made.throttled == (throttled and reason is not Reason.QUOTA)
    assert made.usage.cost_usd == 0.0


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", "tape.jsonl, line 2: this is no JSON"),
        ('{"case": "a"}', "line 2: check: Field required"),
        ('{"check": "a", "case": "b", "tier": "third"}', "line 2: tier: "),
        ("[]", "line 2: the line: "),
    ],
)
async def test_a_malformed_recording_is_found_at_preflight_with_its_line(
    bad: str, words: str
) -> None:
    assert words in str(replay(line(), bad).preflight("m"))


def test_a_recording_that_cannot_be_read_is_found_at_preflight() -> None:
    provider = build("tape", ReplayProvider(kind="replay", path="/x.jsonl"), workshop())
    assert "/x.jsonl cannot be read" in str(provider.preflight("m"))


async def test_a_line_without_a_case_stands_for_every_case_that_has_none_of_its_own() -> None:
    lines = (line(check="a", case=None, reply="any"), line(check="a", case="one", reply="own"))
    provider = replay(*lines)
    own = await provider.ask(ask_for(check="a", case_id="one"))
    other = await provider.ask(ask_for(check="a", case_id="two"))
    assert (own.text, other.text) == ("own", "any")
