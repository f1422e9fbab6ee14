"""What providers over HTTP have in common."""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx

from weirbox.domain.judging import HttpProvider
from weirbox.domain.seams import JudgeReply, JudgeRequest, Workshop
from weirbox.domain.trace import Usage
from weirbox.domain.words import Reason
from weirbox.errors import ProviderError, WeirboxError
from weirbox.judges.providers.failures import failure, parse_retry_after, timed_out
from weirbox.judges.providers.prices import Prices


@functools.cache
def _tls() -> ssl.SSLContext:
    """One context for all clients: making it reads the whole bundle of certificates."""
    return httpx.create_ssl_context()


class Answer(NamedTuple):
    """A response of the provider; `body` is None when it is no JSON object."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any] | None
    text: str


class HttpAccount:
    """An account at a provider: one connection pool, prices, and a secret by name.

    The secret is read for each call and kept nowhere.
    """

    def __init__(
        self,
        name: str,
        spec: HttpProvider,
        workshop: Workshop,
        *,
        base_url: str,
        prices: Prices,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._name = name
        self._spec = spec
        self._workshop = workshop
        self._base_url = base_url.rstrip("/")
        self._prices = prices
        self._transport = transport
        self._client: httpx.AsyncClient | None = None

    @property
    def name(self) -> str:
        """The name in the suite's ``providers``."""
        return self._name

    def bound_usd(self, request: JudgeRequest) -> float | None:
        """The most this request can cost; None when the model has no known price."""
        return self._prices.bound(request)

    def preflight(self, model: str) -> str | None:
        """What is missing to use the model, or None; a price is for the caller to miss."""
        try:
            self._secret()
        except ProviderError as error:
            return str(error)
        return None

    async def aclose(self) -> None:
        """Close connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _who(self, model: str) -> str:
        return f"provider {self._name!r} ({model})"

    def _secret(self) -> str | None:
        name = self._spec.secret
        if name is None:
            return None
        try:
            value = self._workshop.read_secret(name).strip()
        except WeirboxError as error:
            message = f"provider {self._name!r}: {error}"
            raise ProviderError(message, reason=Reason.MISSING_SECRET) from None
        if not value or not value.isascii() or not value.isprintable():
            raise ProviderError(
                f"provider {self._name!r}: secret {name!r} is empty or has characters that no "
                "HTTP header can carry",
                reason=Reason.MISSING_SECRET,
            )
        return value

    async def _post(
        self, path: str, body: dict[str, Any], headers: dict[str, str], *, model: str
    ) -> Answer:
        """Send one request. The time limit is for the whole exchange."""
        content = json.dumps(body, allow_nan=False).encode("ascii")
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                response = await self._open().post(
                    self._base_url + path,
                    content=content,
                    headers={"content-type": "application/json"} | headers,
                )
        except TimeoutError:
            raise timed_out(self._spec.timeout_s, who=self._who(model)) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProviderError(
                f"{self._who(model)}: {type(error).__name__}: {self._redacted(str(error))}",
                retryable=isinstance(error, httpx.TransportError)
                and not isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError),
            ) from None
        return Answer(response.status_code, response.headers, _object(response), response.text)

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            most = self._spec.concurrency
            self._client = httpx.AsyncClient(
                verify=_tls(),
                timeout=None,
                limits=httpx.Limits(max_connections=most, max_keepalive_connections=most),
                transport=self._transport,
            )
        return self._client

    def _failed(self, answer: Answer, *, model: str) -> ProviderError:
        error = (answer.body or {}).get("error")
        details = error if isinstance(error, dict) else {}
        message = details.get("message") or (error if isinstance(error, str) else answer.text)
        return failure(
            answer.status,
            self._redacted(str(message).strip()),
            who=self._who(model),
            retry_after=parse_retry_after(answer.headers),
            code=f"{details.get('type')} {details.get('code')}",
        )

    def _unusable(self, what: str, *, model: str, usage: Usage | None = None) -> ProviderError:
        return ProviderError(
            f"{self._who(model)}: the response {what}", retryable=True, usage=usage
        )

    def _redacted(self, text: str) -> str:
        """A provider's text without the secret, in case it sends it back."""
        try:
            secret = self._secret()
        except ProviderError:
            return text
        return text.replace(secret, f"[secret {self._spec.secret}]") if secret else text

    def _reply(self, text: str, stop: str, usage: Usage, *, model: str, served: Any) -> JudgeReply:
        priced = usage.model_copy(update={"cost_usd": self._prices.cost(model, usage)})
        return JudgeReply(
            text=text, stop=stop, usage=priced, model=served if isinstance(served, str) else model
        )


def count(value: Any) -> int | None:
    """A number of tokens; None when the provider reports none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None
