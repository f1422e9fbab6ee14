"""A judge's provider over HTTP that is out of order when it is told to be."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

VERDICT = '{"verdict": "pass", "confidence": 0.9, "reason": "it is right"}'

HANG_S = 600.0
"""Longer than any test waits."""


@dataclass(frozen=True)
class Trouble:
    """How a provider is out of order: the status it answers with; None answers nothing."""

    status: int | None
    retry_after: str | None = None


@dataclass
class Provider:
    """A server that speaks one provider's protocol.

    Attributes:
        trouble: What is wrong now.
        on_request: Is called for each request.
        answered: How many requests it has answered well.
    """

    kind: Literal["anthropic", "openai"]
    url: str = ""
    trouble: Trouble | None = None
    on_request: Callable[[], None] = lambda: None
    answered: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def heal_after(self, seconds: float) -> None:
        """Be in order again some time after the first request."""
        begun: list[float] = []

        def count() -> None:
            begun.append(time.monotonic())
            if begun[-1] - begun[0] > seconds:
                self.trouble = None

        self.on_request = count

    def body(self) -> dict[str, Any]:
        """A verdict."""
        self.answered += 1
        if self.kind == "anthropic":
            return {
                "type": "message",
                "model": "judge-1",
                "content": [{"type": "text", "text": VERDICT}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 100, "output_tokens": 20},
            }
        return {
            "model": "judge-1",
            "choices": [{"message": {"content": VERDICT}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20},
        }

    def fault(self, status: int) -> dict[str, Any]:
        """What is said with a status."""
        kind = "overloaded_error" if status == 529 else "rate_limit_error"
        return {"error": {"type": kind if status != 500 else "api_error", "message": "come later"}}


@contextmanager
def provider(kind: Literal["anthropic", "openai"]) -> Iterator[Provider]:
    """Serve for the length of a block."""
    made = Provider(kind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            made.on_request()
            trouble = made.trouble
            if trouble is None:
                self._answer(200, made.body())
            elif trouble.status is None:
                made.ended.wait(HANG_S)
                self.close_connection = True
            else:
                self._answer(trouble.status, made.fault(trouble.status), trouble.retry_after)

        def _answer(self, status: int, body: Any, retry_after: str | None = None) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            if retry_after is not None:
                self.send_header("retry-after", retry_after)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
