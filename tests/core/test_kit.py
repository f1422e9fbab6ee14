"""What a driver is built of."""

from __future__ import annotations

from weirbox.domain.judging import AnthropicProvider, OpenAIProvider, ReplayProvider
from weirbox.pipeline.kit import account_limiters


def test_providers_of_one_account_share_the_strictest_limiter() -> None:
    cheap = OpenAIProvider(kind="openai", concurrency=8)
    dear = OpenAIProvider(kind="openai", concurrency=3)
    local = OpenAIProvider(kind="openai", base_url="http://127.0.0.1:8000/v1", secret=None)
    other = OpenAIProvider(kind="openai", secret="ANOTHER_KEY")
    hosted = AnthropicProvider(kind="anthropic")

    limiters = account_limiters(
        {"cheap": cheap, "dear": dear, "local": local, "other": other, "hosted": hosted}
    )

    assert limiters["cheap"] is limiters["dear"]
    assert limiters["cheap"].state.limit == 3
    assert len({id(limiter) for limiter in limiters.values()}) == 4


def test_recordings_are_accounts_of_their_own() -> None:
    one = ReplayProvider(kind="replay", path="/a")

    limiters = account_limiters({"one": one, "two": one})

    assert limiters["one"] is not limiters["two"]
