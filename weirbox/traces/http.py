"""Requests to a platform: secrets read late and shown nowhere, and answers that say no."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar

import httpx

from weirbox.domain.pulling import Probe
from weirbox.domain.seams import ReadSecret
from weirbox.domain.tracing import SECRET_IN_HEADER
from weirbox.domain.words import ErrorKind, ProbeState
from weirbox.errors import TraceError, WeirboxError

BODY_LIMIT = 256 * 2**20
"""The most bytes of one answer: some platforms give a trace in one piece."""

CONNECT_S = 10.0
"""The most that is waited for a connection: after that the platform is not there."""

PROBE_S = 10.0
"""The most that a probe takes."""

_SHOWN = 300
_TRANSIENT = frozenset({408, 425, 429})
_SHORTEST_SECRET = 4

Query = Sequence[tuple[str, str]]

T = TypeVar("T")


@functools.cache
def _tls() -> ssl.SSLContext:
    """One context for all clients: making it reads the whole bundle of certificates."""
    return httpx.create_ssl_context()


class Answer(NamedTuple):
    """What a platform answered.

    Attributes:
        body: As JSON; None where it is none, as with many platforms' errors.
        said: What it says, for people: an error's message or its beginning; no secrets.
    """

    status: int
    body: Any
    said: str
    retry_after: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it is what was asked for."""
        return 200 <= self.status < 300

    @property
    def object(self) -> dict[str, Any]:
        """The body where it is a JSON object, else nothing."""
        return self.body if isinstance(self.body, dict) else {}


@dataclass
class Secrets:
    """Reads secrets by name for one request, and takes them out of what is shown."""

    who: str
    read: ReadSecret = field(repr=False)
    _values: list[str] = field(default_factory=list, repr=False)

    def __call__(self, name: str) -> str:
        """The value of a secret.

        Raises:
            TraceError: Of kind `MISSING_SECRET`.
        """
        try:
            value = self.read(name).strip()
        except WeirboxError as error:
            raise TraceError(f"{self.who}: {error}", kind=ErrorKind.MISSING_SECRET) from None
        if not value or not value.isascii() or not value.isprintable():
            raise TraceError(
                f"{self.who}: secret {name!r} is empty or has characters that no HTTP header "
                "can carry",
                kind=ErrorKind.MISSING_SECRET,
            )
        self._values.append(value)
        return value

    def fill(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers, with the secrets that they name."""
        return {
            name.lower(): SECRET_IN_HEADER.sub(lambda match: self(match.group(1)), value)
            for name, value in headers.items()
        }

    def hide(self, *derived: str) -> None:
        """Hide what was made of secrets, too."""
        self._values += derived

    def redact(self, text: str) -> str:
        """A text without the secrets."""
        for value in self._values:
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "[secret]")
        return text


class Api:
    """A platform's HTTP interface.

    Redirects are not followed: they would take the credentials elsewhere.

    Args:
        who: What messages call it, such as ``trace source 'mlflow' at http://...``.
        headers: Gives the headers of one request, reading the secrets that it needs.
    """

    def __init__(
        self,
        who: str,
        base_url: str,
        read_secret: ReadSecret,
        headers: Callable[[Secrets], dict[str, str]],
        *,
        timeout_s: float,
    ) -> None:
        self.who = who
        self.base_url = base_url
        self._read_secret = read_secret
        self._headers = headers
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"Api({self.who!r})"

    async def get(self, path: str, query: Query = ()) -> Answer:
        """Ask. Raises `TraceError` where no answer comes, or one that may be another later."""
        return await self._ask("GET", path, query, None)

    async def post(self, path: str, body: Any) -> Answer:
        """Ask, with a JSON body."""
        return await self._ask("POST", path, (), body)

    def refusal(self, answer: Answer, doing: str, hint: str = "") -> TraceError:
        """The error that an answer comes to."""
        message = f"{self.who}: {doing}: HTTP {answer.status}: {answer.said}"
        return TraceError(
            f"{message} ({hint})" if hint else message,
            transient=answer.status in _TRANSIENT or answer.status >= 500,
            retry_after=answer.retry_after,
            status=answer.status,
        )

    def check(self, answer: Answer, doing: str) -> dict[str, Any]:
        """The answer's JSON object. Raises `TraceError` where it is none."""
        return self._checked(answer, doing, dict)

    def check_list(self, answer: Answer, doing: str) -> list[Any]:
        """The answer's JSON list. Raises `TraceError` where it is none."""
        return self._checked(answer, doing, list)

    def _checked(self, answer: Answer, doing: str, shape: type[T]) -> T:
        if not answer.ok:
            raise self.refusal(answer, doing)
        if not isinstance(answer.body, shape):
            raise TraceError(
                f"{self.who}: {doing}: the answer is not what the platform's API gives: is "
                f"this its address? It begins with {answer.said[:80]!r}",
                status=answer.status,
            )
        return answer.body

    async def aclose(self) -> None:
        """Close connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _ask(self, method: str, path: str, query: Query, body: Any) -> Answer:
        secrets = Secrets(self.who, self._read_secret)
        headers = {"accept": "application/json"} | self._headers(secrets)
        content = None
        if body is not None:
            headers["content-type"] = "application/json"
            content = json.dumps(body).encode("ascii")
        try:
            async with asyncio.timeout(self._timeout_s):
                request = self._open().build_request(
                    method,
                    self.base_url + path,
                    params=list(query),
                    headers=headers,
                    content=content,
                )
                response = await self._open().send(request, stream=True)
                try:
                    raw = await self._body(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise TraceError(
                f"{self.who}: no answer within {self._timeout_s:g} s", transient=True
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = secrets.redact(str(error)) or "the connection failed"
            raise TraceError(
                f"{self.who}: {type(error).__name__}: {said}",
                transient=isinstance(error, httpx.TransportError)
                and not isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError),
            ) from None
        return self._answer(response, await asyncio.to_thread(_read, raw), secrets)

    async def _body(self, response: httpx.Response) -> bytes:
        raw = bytearray()
        async for chunk in response.aiter_bytes():
            raw += chunk
            if len(raw) > BODY_LIMIT:
                raise TraceError(f"{self.who}: an answer has more than {BODY_LIMIT} bytes")
        return bytes(raw)

    def _answer(self, response: httpx.Response, read: tuple[Any, str], secrets: Secrets) -> Answer:
        body, text = read
        answer = Answer(
            response.status_code,
            body,
            secrets.redact(_said(body, text)),
            _retry_after(response.headers.get("retry-after", "")),
        )
        if 300 <= answer.status < 400:
            raise TraceError(
                f"{self.who}: the address redirects (HTTP {answer.status}); redirects are not "
                "followed: write the final address as the source's 'url'",
                status=answer.status,
            )
        if answer.status in (401, 403):
            raise self.refusal(answer, "not let in", "check the secrets that the source names")
        if answer.status in _TRANSIENT or answer.status in (502, 503, 504):
            raise self.refusal(answer, "not now")
        return answer

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                verify=_tls(),
                timeout=httpx.Timeout(None, connect=CONNECT_S),
                follow_redirects=False,
            )
        return self._client


async def probe(ask: Callable[[], Any]) -> Probe:
    """What asking comes to, within `PROBE_S`; never raises `TraceError`."""
    try:
        async with asyncio.timeout(PROBE_S):
            await ask()
    except TimeoutError:
        return Probe(ProbeState.UNREACHABLE, f"no answer within {PROBE_S:g} s")
    except TraceError as error:
        if error.kind is ErrorKind.MISSING_SECRET or error.status in (401, 403):
            return Probe(ProbeState.AUTH, str(error))
        if error.status is None and error.transient:
            return Probe(ProbeState.UNREACHABLE, str(error))
        return Probe(ProbeState.ERROR, str(error))
    return Probe(ProbeState.OK)


def _read(raw: bytes) -> tuple[Any, str]:
    """An answer as JSON and its beginning as text; in a thread, as it may be large."""
    text = raw[: 4 * _SHOWN].decode("utf-8", "replace").strip()
    try:
        return json.loads(raw), text
    except (ValueError, RecursionError):
        return None, text


def _said(body: Any, text: str) -> str:
    """The message of an error, which is JSON with some platforms and a page with others."""
    found = body if isinstance(body, dict) else None
    for _ in range(4):
        if isinstance(found, list) and found:
            found = found[0]
        if not isinstance(found, dict):
            break
        inner = [
            found[name]
            for name in ("message", "msg", "detail", "error", "errors")
            if found.get(name)
        ]
        found = inner[0] if inner else None
    return (found if isinstance(found, str) else text)[:_SHOWN] or "no message"


def _retry_after(text: str) -> float | None:
    """Seconds to wait: a number or a date (RFC 9110, 10.2.3); None where it says neither."""
    try:
        seconds = float(text)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError):
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())
