"""Requests to a platform: secrets resolved late, retries within a time limit, no secret shown.

Nothing here follows redirects, so that no other host is ever sent a secret.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import ssl
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from weirbox.domain.base import storable
from weirbox.domain.seams import ReadSecret
from weirbox.domain.tracing import SECRET_IN_HEADER
from weirbox.errors import SinkError, WeirboxError
from weirbox.sinks.lines import encoded

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

ATTEMPTS = 3
"""Attempts of one request that is answered with what may pass."""

CONNECT_S = 3.0
"""The most that is waited for a connection."""

FIRST_PAUSE_S = 0.2
"""Before the second attempt, doubled each time, where the platform does not say how long."""

LONGEST_PAUSE_S = 10.0
"""A platform that asks for a longer pause is not asked again for this trial."""

CONNECTIONS = 16
"""The most connections to one platform."""

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_UNAUTHORIZED = frozenset({401, 403})
_SHOWN = 300


class SecretTrouble(SinkError):
    """A secret is missing, or cannot stand in a header; nothing was sent."""


class Refused(SinkError):
    """A platform's answer, or the want of one.

    Attributes:
        status: The HTTP status; None when nothing answered.
        transient: Whether the same request may be taken later.
        retry_after: Seconds that the platform asks to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        transient: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.transient = transient
        self.retry_after = retry_after

    def about(self, what: str) -> Refused:
        """The same with what was refused in front."""
        return Refused(
            f"{what}: {self}",
            status=self.status,
            transient=self.transient,
            retry_after=self.retry_after,
        )

    @property
    def worth_another(self) -> bool:
        """Whether to try again at once, as far as the platform says."""
        return self.transient and (self.retry_after or 0.0) <= LONGEST_PAUSE_S

    @property
    def unauthorized(self) -> bool:
        """Whether the platform refuses the credentials."""
        return self.status in _UNAUTHORIZED

    @property
    def of_platform(self) -> bool:
        """Whether any other trial would be refused as well, for now."""
        return self.status is None or self.transient or self.unauthorized


class Answer(NamedTuple):
    """A response below 400."""

    status: int
    content: bytes
    content_type: str

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None

    def found(self, *keys: str | int) -> Any:
        """What stands at a place in the JSON; None where there is no such place."""
        value = self.json()
        for key in keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return None
        return value


Credentials = Callable[[ReadSecret], Mapping[str, str]]
"""Gives the headers that a platform tells its users by; reads the secrets."""


class Wire:
    """One platform, as it is reached; see the module.

    Args:
        base_url: Where paths start.
        headers: Sent with each request; values may name a secret as ``secret:NAME``.
        credentials: More headers, made for each request.
    """

    def __init__(
        self,
        base_url: str,
        read_secret: ReadSecret,
        *,
        headers: Mapping[str, str],
        credentials: Credentials,
    ) -> None:
        self.base_url = base_url
        self._read_secret = read_secret
        self._headers = headers
        self._credentials = credentials
        self._client: httpx.AsyncClient | None = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        fine: frozenset[int] = frozenset(),
        attempts: int = ATTEMPTS,
    ) -> Answer:
        """Send a request; again where the answer may be another one then.

        The caller limits the time that all attempts may take.

        Args:
            body: Sent as JSON.
            fine: Statuses from 400 on that are answers all the same.

        Raises:
            SecretTrouble: Before anything is sent.
            Refused: When the last attempt is not answered, or with a refusal.
        """
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

        if body is not None:
            content = encoded(body)
            headers = {"content-type": "application/json"} | dict(headers or {})
        request = functools.partial(
            self._once, method, path, content=content, headers=headers or {}, params=params
        )
        retrying = AsyncRetrying(
            stop=stop_after_attempt(attempts),
            retry=retry_if_exception(lambda e: isinstance(e, Refused) and e.worth_another),
            wait=_pause,
            reraise=True,
        )
        answer: Answer = await retrying(request, fine=fine)
        return answer

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _once(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        headers: Mapping[str, str],
        params: Mapping[str, str] | None,
        fine: frozenset[int],
    ) -> Answer:
        import httpx

        place = f"{method} {self.base_url}{path}"
        secrets: dict[str, str] = {}
        own = self._own_headers(secrets)
        try:
            response = await self._opened().request(
                method,
                f"{self.base_url}{path}",
                content=content,
                headers=own | dict(headers),
                params=params,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = _redacted(str(error), secrets) or type(error).__name__
            raise Refused(f"{place}: no answer: {said}", transient=_may_pass(error)) from None
        if response.status_code >= 300 and response.status_code not in fine:
            raise self._refusal(place, response, secrets)
        kind = response.headers.get("content-type", "")
        return Answer(response.status_code, response.content, kind)

    def _own_headers(self, secrets: dict[str, str]) -> dict[str, str]:
        def read(name: str) -> str:
            try:
                value = self._read_secret(name).strip()
            except WeirboxError:
                raise SecretTrouble(f"secret {name!r} is missing") from None
            if not value or not value.isascii() or not value.isprintable():
                raise SecretTrouble(
                    f"secret {name!r} is empty or has characters that no HTTP header can carry"
                )
            secrets[name] = value
            return value

        own = {
            name.lower(): SECRET_IN_HEADER.sub(lambda found: read(found.group(1)), value)
            for name, value in self._headers.items()
        }
        made = dict(self._credentials(read))
        secrets |= {name: value.rpartition(" ")[2] for name, value in made.items()}
        return made | own

    def _refusal(self, place: str, response: httpx.Response, secrets: dict[str, str]) -> Refused:
        said = _redacted(" ".join(response.text.split()), secrets)[:_SHOWN]
        status = response.status_code
        if status < 400:
            said = "it redirects, which is not followed; give the address that it leads to"
        return Refused(
            f"{place}: HTTP {status}: {said or 'no message'}",
            status=status,
            transient=status in _TRANSIENT,
            retry_after=_retry_after(response.headers.get("retry-after", "")),
        )

    def _opened(self) -> httpx.AsyncClient:
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(
                verify=_tls(),
                timeout=httpx.Timeout(None, connect=CONNECT_S),
                limits=httpx.Limits(
                    max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS
                ),
            )
        return self._client


@functools.cache
def _tls() -> ssl.SSLContext:
    """One context for all clients: making it reads the whole bundle of certificates."""
    import httpx

    return httpx.create_ssl_context()


def _pause(state: Any) -> float:
    """Seconds before the next attempt."""
    error = state.outcome.exception()
    asked: float | None = error.retry_after if isinstance(error, Refused) else None
    return FIRST_PAUSE_S * 2 ** (state.attempt_number - 1) if asked is None else asked


def _may_pass(error: Exception) -> bool:
    import httpx

    lasting = httpx.UnsupportedProtocol | httpx.LocalProtocolError
    return isinstance(error, httpx.TransportError) and not isinstance(error, lasting)


def _retry_after(text: str) -> float | None:
    """The seconds of a ``Retry-After`` header, which is a number or a date."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (aware - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _redacted(text: str, secrets: Mapping[str, str]) -> str:
    for name, value in secrets.items():
        text = text.replace(value, f"[secret {name}]")
    return storable(text)


async def within(seconds: float, work: Coroutine[Any, Any, T], what: str) -> T:
    """Wait for work no longer than this.

    Raises:
        Refused: When the time is up.
    """
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise Refused(f"{what}: no answer within {seconds:.2g} s", transient=True) from None
