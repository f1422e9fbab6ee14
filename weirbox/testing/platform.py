"""What the fakes of trace platforms have in common: a real HTTP server on loopback, and spans.

A fake is a context manager; inside, `url` is its address::

    with FakePhoenix() as phoenix:
        phoenix.add(span)
        ...  # a suite whose source has phoenix.url
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import parse_qsl, unquote, urlsplit

_POLL_S = 0.02
"""How long a fake that is left takes to notice."""


@dataclass(frozen=True, kw_only=True)
class SpanEvent:
    """Something that happened within a span; `at` is in nanoseconds since 1970."""

    name: str
    at: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FakeSpan:
    """A span as a program sends it, whatever platform it is sent to.

    Attributes:
        trace_id, span_id: 32 and 16 hex digits.
        start, end: In nanoseconds since 1970; no end while it is open.
        error: What went wrong; None where nothing did.
        resource: What the program says of itself, such as ``service.name``.
    """

    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str
    start: int
    end: int | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None
    resource: Mapping[str, Any] = field(default_factory=dict)


class Request(NamedTuple):
    """A request; names of headers are in lower case."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def one(self, name: str, default: str = "") -> str:
        """The query's first value of that name."""
        return next((value for key, value in self.query if key == name), default)

    def all(self, name: str) -> list[str]:
        """The query's values of that name."""
        return [value for key, value in self.query if key == name]


class Reply(NamedTuple):
    """An answer; a body that is no text or bytes is sent as JSON."""

    status: int
    body: Any = b""
    headers: Mapping[str, str] = {}


class Route(NamedTuple):
    """Which requests a method answers; groups of the path become its arguments."""

    method: str
    path: re.Pattern[str]


def route(method: str, path: str) -> Callable[[Any], Any]:
    """Mark a fake's method as the answer to requests of that method and path."""

    def mark(function: Any) -> Any:
        function.routes = [*getattr(function, "routes", []), Route(method, re.compile(path))]
        return function

    return mark


class FakePlatform:
    """A platform in memory behind a real HTTP server.

    Attributes:
        spans: What it holds, in the order in which it came.
        requests: Everything it was asked.
        troubles: Answers to give instead of the right ones, the first one first.
        delay_s: How long each answer takes.
        required: Headers that a request must have, by lower-case name; else it is refused.
    """

    _routes: ClassVar[list[tuple[Route, str]]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._routes = [
            (one, name) for name in dir(cls) for one in getattr(getattr(cls, name), "routes", [])
        ]

    def __init__(self) -> None:
        self.spans: list[FakeSpan] = []
        self.requests: list[Request] = []
        self.troubles: deque[Reply] = deque()
        self.delay_s = 0.0
        self.required: dict[str, str] = {}
        self._server: ThreadingHTTPServer | None = None

    def add(self, *spans: FakeSpan) -> None:
        """Take spans in."""
        self.spans += spans

    def traces(self, spans: Iterable[FakeSpan] | None = None) -> dict[str, list[FakeSpan]]:
        """The spans by trace id."""
        found: dict[str, list[FakeSpan]] = {}
        for span in self.spans if spans is None else spans:
            found.setdefault(span.trace_id, []).append(span)
        return found

    def unauthorized(self, request: Request) -> Reply:
        """The answer to who does not have the credentials."""
        return Reply(401, "Unauthorized")

    def answer(self, request: Request) -> Reply:
        """The answer to a request."""
        self.requests.append(request)
        if self.troubles:
            return self.troubles.popleft()
        if any(request.headers.get(name) != value for name, value in self.required.items()):
            return self.unauthorized(request)
        for one, name in self._routes:
            match = one.path.fullmatch(request.path)
            if match and one.method == request.method:
                reply: Reply = getattr(self, name)(request, **match.groupdict())
                return reply
        return self.unknown(request)

    def unknown(self, request: Request) -> Reply:
        """The answer to what is at no address."""
        return Reply(404, "404 page not found\n")

    # --- the server -------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Its address, while it is up."""
        if self._server is None:
            raise RuntimeError("the fake is not up: enter it with 'with'")
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *reason: object) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, platform: FakePlatform) -> None:
        self.platform = platform
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asks may go away before the answer; all else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        parts = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=unquote(parts.path),
            query=parse_qsl(parts.query, keep_blank_values=True),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=body,
        )
        reply = self.server.platform.answer(request)
        if self.server.platform.delay_s:
            time.sleep(self.server.platform.delay_s)
        content, kind = _encoded(reply.body)
        self.send_response(reply.status)
        for name, value in ({"content-type": kind} | dict(reply.headers)).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _encoded(body: Any) -> tuple[bytes, str]:
    if isinstance(body, bytes):
        return body, "application/octet-stream"
    if isinstance(body, str):
        return body.encode(), "text/plain; charset=utf-8"
    return json.dumps(body).encode(), "application/json"
