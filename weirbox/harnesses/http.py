"""A service called over HTTP as the system under test."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from pydantic import JsonValue

from weirbox.domain.base import storable
from weirbox.domain.case import Case
from weirbox.domain.seams import Handle, TrialContext, Workshop
from weirbox.domain.spec import HttpHarness
from weirbox.domain.template import Missing, fill, fill_json, lookup
from weirbox.domain.trace import Observation, StageError, TraceEvent
from weirbox.domain.tracing import traceparent_of
from weirbox.domain.words import ErrorKind, EventKind
from weirbox.errors import HarnessError
from weirbox.harnesses.values import case_values, filled, read_secret, redact

if TYPE_CHECKING:
    import httpx

POOL = 256
"""The most connections of one harness."""

CONNECT_S = 10.0
"""The most that is waited for a connection: after that the service is not there."""

REPLY_LIMIT = 10 * 2**20
"""The most bytes of a reply."""

_SHOWN = 500
_TEXT_LIMIT = 100_000
_SECRET = re.compile(r"secret:([A-Za-z0-9_][A-Za-z0-9_.\-]*)")
_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True)
class _Exchange:
    """One request, ready to send, and what must not be shown of it."""

    method: str
    url: str
    headers: dict[str, str]
    body: str | None
    secrets: tuple[str, ...]

    @property
    def place(self) -> str:
        """The method and the URL without user, query and fragment."""
        parts = urlsplit(self.url)
        return f"{self.method} {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass(frozen=True)
class _Reply:
    status: int
    is_json: bool
    text: str


class Http:
    """Calls a service; see `HttpHarness`."""

    needs_compute = False

    def __init__(self, spec: HttpHarness, workshop: Workshop) -> None:
        self._spec = spec
        self._workshop = workshop
        self._client: httpx.AsyncClient | None = None

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        """Send the request and read the answer.

        Raises:
            HarnessError: `HARNESS_TRANSIENT` for 429, 5xx and failed connections;
                `HARNESS_ERROR` for other refusals and for replies without the answer.
        """
        exchange = self._exchange(case, context)
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._spec.timeout_s) as limit:
                reply = await self._send(exchange)
        except TimeoutError:
            if not limit.expired():
                raise
            return self._late(exchange, context, time.perf_counter() - started)
        duration = time.perf_counter() - started
        _check_status(exchange, reply)
        return Observation(
            output=self._answer(exchange, reply),
            trace=(_request_event(exchange), _reply_event(reply, duration)),
            duration=duration,
            correlation=context.correlation,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _exchange(self, case: Case, context: TrialContext) -> _Exchange:
        values = case_values(case, context.trial)
        secrets: list[str] = []

        def reveal(match: re.Match[str]) -> str:
            secrets.append(read_secret(self._workshop.read_secret, match.group(1)))
            return secrets[-1]

        headers = {
            "content-type": "application/json",
            "traceparent": traceparent_of(context.correlation),
            "x-weirbox-run-id": quote(context.correlation, safe="/:"),
        }
        headers |= {
            name.lower(): _SECRET.sub(reveal, value) for name, value in self._spec.headers.items()
        }
        body = self._body(case, values)
        if body is None:
            del headers["content-type"]
        return _Exchange(self._spec.method, self._url(values), headers, body, tuple(secrets))

    def _url(self, values: dict[str, Any]) -> str:
        """Fill the URL; what is put in cannot leave its place, unless it is the start."""
        if not self._spec.url.lstrip().startswith("{{"):
            values = _quoted(values)
        return filled(fill, self._spec.url, values, where="url").strip()

    def _body(self, case: Case, values: dict[str, Any]) -> str | None:
        if self._spec.body is not None:
            return json.dumps(filled(fill_json, self._spec.body, values, where="body"))
        return None if self._spec.method == "GET" else json.dumps({"input": case.input})

    async def _send(self, exchange: _Exchange) -> _Reply:
        import httpx

        try:
            async with self._connected().stream(
                exchange.method, exchange.url, headers=exchange.headers, content=exchange.body
            ) as response:
                content = bytearray()
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > REPLY_LIMIT:
                        raise HarnessError(
                            f"{exchange.place} replied with more than {REPLY_LIMIT} bytes"
                        )
                kind = response.headers.get("content-type", "")
                charset = response.charset_encoding or "utf-8"
                return _Reply(
                    status=response.status_code,
                    is_json="json" in kind,
                    text=redact(storable(_decoded(bytes(content), charset)), exchange.secrets),
                )
        except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.LocalProtocolError, ValueError):
            raise HarnessError(
                f"{exchange.place} cannot be sent: the URL or a header is malformed"
            ) from None
        except httpx.DecodingError:
            raise HarnessError(f"{exchange.place} replied in a broken encoding") from None
        except httpx.TransportError as error:
            said = redact(str(error), exchange.secrets) or type(error).__name__
            raise HarnessError(
                f"{exchange.place} could not be reached: {said}",
                kind=ErrorKind.HARNESS_TRANSIENT,
            ) from None

    def _connected(self) -> httpx.AsyncClient:
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(
                limits=httpx.Limits(max_connections=POOL, max_keepalive_connections=POOL),
                timeout=httpx.Timeout(None, connect=CONNECT_S),
            )
        return self._client

    def _answer(self, exchange: _Exchange, reply: _Reply) -> JsonValue:
        if self._spec.output is None and not reply.is_json:
            return reply.text
        try:
            whole: JsonValue = json.loads(reply.text)
        except (ValueError, RecursionError):
            raise HarnessError(
                f"{exchange.place} replied with what is not JSON", detail=reply.text[:_SHOWN]
            ) from None
        if self._spec.output is None:
            return whole
        try:
            found: JsonValue = lookup(whole, self._spec.output)
        except Missing:
            raise HarnessError(
                f"{exchange.place} replied without {self._spec.output!r}, which the harness's "
                "'output' names",
                detail=reply.text[:_SHOWN],
            ) from None
        return found

    def _late(self, exchange: _Exchange, context: TrialContext, duration: float) -> Observation:
        return Observation(
            trace=(_request_event(exchange),),
            duration=duration,
            correlation=context.correlation,
            error=StageError(
                kind=ErrorKind.HARNESS_TIMEOUT,
                message=f"{exchange.place} did not reply within {self._spec.timeout_s:g} s",
            ),
        )


def _check_status(exchange: _Exchange, reply: _Reply) -> None:
    if 200 <= reply.status < 300:
        return
    transient = reply.status == _TOO_MANY_REQUESTS or reply.status >= 500
    said = f": {reply.text[:_SHOWN]}" if reply.text else ""
    raise HarnessError(
        f"{exchange.place} replied with status {reply.status}{said}",
        kind=ErrorKind.HARNESS_TRANSIENT if transient else ErrorKind.HARNESS_ERROR,
    )


def _request_event(exchange: _Exchange) -> TraceEvent:
    text = redact(exchange.body or "", exchange.secrets)
    return TraceEvent(
        kind=EventKind.MESSAGE,
        name="request",
        text=text[:_TEXT_LIMIT],
        data={"request": exchange.place},
        at=0.0,
    )


def _reply_event(reply: _Reply, duration: float) -> TraceEvent:
    return TraceEvent(
        kind=EventKind.MESSAGE,
        name="reply",
        text=reply.text[:_TEXT_LIMIT],
        data={"status": reply.status},
        at=duration,
        duration=duration,
    )


def _decoded(content: bytes, charset: str) -> str:
    try:
        return content.decode(charset, "backslashreplace")
    except LookupError:
        return content.decode("utf-8", "backslashreplace")


def _quoted(value: Any) -> Any:
    """The value with every text percent-encoded."""
    if isinstance(value, str):
        return quote(value, safe="", errors="backslashreplace")
    if isinstance(value, dict):
        return {key: _quoted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted(item) for item in value]
    return value
