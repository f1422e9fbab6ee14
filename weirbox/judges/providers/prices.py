"""What calls cost: known prices (offline data), overridden by the suite's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weirbox.domain.base import canonical_json
from weirbox.domain.judging import Price
from weirbox.domain.seams import JudgeRequest
from weirbox.domain.trace import Usage

_PER = 1_000_000
_OVERHEAD_TOKENS = 1_000  # roles, separators, and what providers add for structured output


@dataclass(frozen=True)
class Prices:
    """The prices of one account.

    Attributes:
        provider_id: The provider whose known prices hold; absent when only `api_url` tells.
        api_url: Where requests go; an address that is not a known provider's has no prices.
        overrides: The suite's own prices, by model.
    """

    provider_id: str | None = None
    api_url: str | None = None
    overrides: Mapping[str, Price] = field(default_factory=dict)

    def cost(self, model: str, usage: Usage) -> float | None:
        """US dollars for a call; None when the price or the usage is unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        price = self.overrides.get(model)
        if price is None:
            return self._known(model, usage)
        cached = min(usage.cached_tokens or 0, usage.input_tokens)
        cached_price = price.input if price.cached_input is None else price.cached_input
        plain = (usage.input_tokens - cached) * price.input
        return (plain + cached * cached_price + usage.output_tokens * price.output) / _PER

    def bound(self, request: JudgeRequest) -> float | None:
        """The most a request can cost; None when the model has no known price.

        Input tokens are bounded by the prompt's UTF-8 bytes: every token of a byte-level
        vocabulary stands for at least one byte. Output tokens are bounded by the request
        itself. Writing to a cache may cost more than plain input, so the dearer one counts.
        """
        prompt = request.system + request.user + canonical_json(request.reply_schema)
        tokens = len(prompt.encode("utf-8", "backslashreplace")) + _OVERHEAD_TOKENS
        output = request.max_tokens
        costs = [
            self.cost(request.model, Usage(input_tokens=tokens, output_tokens=output)),
            self.cost(
                request.model,
                Usage(input_tokens=tokens, cache_write_tokens=tokens, output_tokens=output),
            ),
        ]
        return max((cost for cost in costs if cost is not None), default=None)

    def _known(self, model: str, usage: Usage) -> float | None:
        from genai_prices import Usage as Counted
        from genai_prices import calc_price

        counted = Counted(
            input_tokens=usage.input_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
        )
        try:
            if self.provider_id is not None:
                price = calc_price(counted, model, provider_id=self.provider_id)
            else:
                price = calc_price(counted, model, provider_api_url=self.api_url)
        except (LookupError, ValueError):
            return None
        return float(price.total_price)
