"""Chat completions, as OpenAI and many servers speak them."""

from __future__ import annotations

import re
from typing import Any

import httpx

from weirbox.domain.base import canonical_json
from weirbox.domain.judging import OpenAIProvider
from weirbox.domain.seams import JudgeReply, JudgeRequest, Workshop
from weirbox.domain.trace import Usage
from weirbox.judges.providers.http import Answer, HttpAccount, count
from weirbox.judges.providers.prices import Prices

BASE_URL = "https://api.openai.com/v1"

_STOPS = {"stop": "end", "length": "length", "content_filter": "refusal"}
_UNKNOWN = re.compile(
    r"unsupported|not supported|does(?: not|n't) support|unrecogni[sz]ed|unknown|unexpected"
    r"|not permitted|not allowed|extra_forbidden|additional propert"
)
_SCHEMA_WORDS = ("response_format", "json_schema", "guided_json", "structured output")


class OpenAIAccount(HttpAccount):
    """An account at OpenAI, or a server that speaks its protocol.

    What a server turns out not to know (a JSON schema, ``max_completion_tokens``)
    is left out from then on.
    """

    def __init__(
        self,
        name: str,
        spec: OpenAIProvider,
        workshop: Workshop,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        base_url = spec.base_url or BASE_URL
        super().__init__(
            name,
            spec,
            workshop,
            base_url=base_url,
            prices=Prices(api_url=base_url, overrides=spec.prices),
            transport=transport,
        )
        self._takes_schema = True
        self._limit_key = "max_completion_tokens"

    async def ask(self, request: JudgeRequest) -> JudgeReply:
        """Answer once, without retries. Raises `ProviderError`."""
        secret = self._secret()
        headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
        while True:
            body = self._body(request)
            answer = await self._post("/chat/completions", body, headers, model=request.model)
            if answer.status == 200:
                return self._read(answer, request.model)
            if not self._adapts(answer, body):
                raise self._failed(answer, model=request.model)

    def _body(self, request: JudgeRequest) -> dict[str, Any]:
        system = request.system
        body: dict[str, Any] = {"model": request.model, self._limit_key: request.max_tokens}
        if self._takes_schema:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {
                    "name": "judgement",
                    "schema": request.reply_schema,
                    "strict": True,
                },
            }
        else:
            schema = canonical_json(request.reply_schema)
            ask = f"Reply with one JSON object and nothing else. It must fit this schema: {schema}"
            system = f"{system}\n\n{ask}".strip()
        system_part = [{"role": "system", "content": system}] if system else []
        body["messages"] = [*system_part, {"role": "user", "content": request.user}]
        if request.temperature is not None:
            body["temperature"] = request.temperature
        return body

    def _adapts(self, answer: Answer, body: dict[str, Any]) -> bool:
        """Whether a refusal is about something that the next request can do without."""
        if answer.status not in (400, 422):
            return False
        text = answer.text.casefold()
        unknown = _UNKNOWN.search(text) is not None
        if unknown and "max_completion_tokens" in body and "max_completion_tokens" in text:
            self._limit_key = "max_tokens"
            return True
        if "response_format" in body and any(word in text for word in _SCHEMA_WORDS):
            self._takes_schema = False
            return True
        return False

    def _read(self, answer: Answer, model: str) -> JudgeReply:
        body = answer.body or {}
        usage = _usage(body.get("usage"))
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            usage = usage.model_copy(update={"cost_usd": self._prices.cost(model, usage)})
            raise self._unusable("has no 'choices[0].message'", model=model, usage=usage)
        stop = _STOPS.get(str(choice.get("finish_reason")), "other")
        text = _text(message.get("content"))
        if message.get("refusal"):
            stop, text = "refusal", str(message["refusal"])
        return self._reply(text, stop, usage, model=model, served=body.get("model"))


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _usage(counted: Any) -> Usage:
    """OpenAI's ``prompt_tokens`` include the cached ones."""
    if not isinstance(counted, dict):
        return Usage()
    details = counted.get("prompt_tokens_details")
    return Usage(
        input_tokens=count(counted.get("prompt_tokens")),
        cached_tokens=count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        output_tokens=count(counted.get("completion_tokens")),
    )
