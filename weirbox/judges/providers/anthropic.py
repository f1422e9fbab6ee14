"""The Messages API."""

from __future__ import annotations

from typing import Any

import httpx

from weirbox.domain.judging import AnthropicProvider
from weirbox.domain.seams import JudgeReply, JudgeRequest, Workshop
from weirbox.domain.trace import Usage
from weirbox.judges.providers.http import HttpAccount, count
from weirbox.judges.providers.prices import Prices

BASE_URL = "https://api.anthropic.com"
NO_SAMPLING_SINCE = "2026-10-21"
"""From this version on, temperature, top_p and top_k are answered with 400."""

_STOPS = {
    "end_turn": "end",
    "stop_sequence": "end",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class AnthropicAccount(HttpAccount):
    """An account at Anthropic, or at a server that speaks its protocol."""

    def __init__(
        self,
        name: str,
        spec: AnthropicProvider,
        workshop: Workshop,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(
            name,
            spec,
            workshop,
            base_url=(spec.base_url or BASE_URL).rstrip("/").removesuffix("/v1"),
            prices=Prices(provider_id="anthropic", overrides=spec.prices),
            transport=transport,
        )
        self._version = spec.version

    async def ask(self, request: JudgeRequest) -> JudgeReply:
        """Answer once, without retries. Raises `ProviderError`."""
        secret = self._secret()
        headers = {"anthropic-version": self._version}
        if secret is not None:
            headers["x-api-key"] = secret
        model = request.model
        answer = await self._post("/v1/messages", self._body(request), headers, model=model)
        if answer.status != 200:
            raise self._failed(answer, model=model)
        body = answer.body or {}
        usage = _usage(body.get("usage"))
        content = body.get("content")
        if not isinstance(content, list):
            usage = usage.model_copy(update={"cost_usd": self._prices.cost(model, usage)})
            raise self._unusable("has no list 'content'", model=model, usage=usage)
        stop = str(body.get("stop_reason"))
        text = "".join(_texts(content))
        if stop == "refusal" and isinstance(details := body.get("stop_details"), dict):
            text = text or str(details.get("explanation") or details.get("category") or "")
        return self._reply(
            text, _STOPS.get(stop, "other"), usage, model=model, served=body.get("model")
        )

    def _body(self, request: JudgeRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": request.max_tokens,
            "messages": [{"role": "user", "content": request.user}],
            "output_config": {"format": {"type": "json_schema", "schema": request.reply_schema}},
        }
        if request.system:
            body["system"] = request.system
        if request.temperature is not None and self._version < NO_SAMPLING_SINCE:
            body["temperature"] = request.temperature
        return body


def _texts(content: list[Any]) -> list[str]:
    return [
        block["text"]
        for block in content
        if isinstance(block, dict)
        and block.get("type") == "text"
        and isinstance(block.get("text"), str)
    ]


def _usage(counted: Any) -> Usage:
    """Anthropic's ``input_tokens`` leave out what was read from or written to a cache."""
    if not isinstance(counted, dict):
        return Usage()
    plain = count(counted.get("input_tokens"))
    written = count(counted.get("cache_creation_input_tokens"))
    read = count(counted.get("cache_read_input_tokens"))
    parts = [part for part in (plain, written, read) if part is not None]
    return Usage(
        input_tokens=sum(parts) if parts else None,
        cached_tokens=read,
        cache_write_tokens=written,
        output_tokens=count(counted.get("output_tokens")),
    )
