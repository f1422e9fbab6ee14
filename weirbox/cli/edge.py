"""The edge to the terminal: streams, exit statuses, and errors in one message."""

from __future__ import annotations

import functools
import io
import json
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from weirbox.settings import Settings

DONE, FAILED, MISTAKE, SIGNALLED = 0, 1, 2, 128
"""Exit statuses: done; the run or a service failed; the user's mistake; plus a signal's number."""

ROOMY = 10_000
"""Characters of a line that no table reaches."""

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Screen:
    """Where a command writes.

    Attributes:
        out: What the command was asked for; standard output, unless that is for JSON.
        err: Everything else; standard error.
    """

    def __init__(self, *, json_into: io.TextIOBase | None = None) -> None:
        self.err = _console(sys.stderr)
        self.out = self.err if json_into is not None else _console(sys.stdout)
        self._json_into = json_into

    @property
    def as_json(self) -> bool:
        """Whether JSON was asked for."""
        return self._json_into is not None

    def json(self, value: Any) -> None:
        """Write the JSON, where it was asked for: one line, pure ASCII, the last one."""
        if self._json_into is not None:
            self._json_into.write(json.dumps(value, allow_nan=False) + "\n")

    def print_whole(self, table: Table) -> None:
        """Print a table that is copied from: no cell is folded or cut, however narrow the
        terminal is."""
        from rich.measure import Measurement

        roomy = self.out.options.update(width=ROOMY)
        table.width = Measurement.get(self.out, roomy, table).maximum
        self.out.print(table, crop=False)

    def tell(self, message: str) -> None:
        """Tell a person something beside the result."""
        self.err.print(plain(message), soft_wrap=True)


@contextmanager
def screen(*, as_json: bool = False) -> Iterator[Screen]:
    """Where to write; with `as_json`, standard output carries the JSON and nothing else.

    Meanwhile whatever anything prints, child processes and user code included, goes to
    standard error.
    """
    if not as_json:
        with _logs_told(Screen()) as plain_screen:
            yield plain_screen
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with (
            open(os.dup(kept), "w", encoding="ascii") as stream,
            _logs_told(Screen(json_into=stream)) as json_screen,
        ):
            yield json_screen
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _logs_told(screen: Screen) -> Iterator[Screen]:
    """Tell what weirbox warns of, in between whatever else is on the screen."""

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            screen.tell(f"{record.levelname.lower()}: {record.getMessage()}")

    logger, teller = logging.getLogger("weirbox"), Teller(logging.WARNING)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(teller)
    try:
        yield screen
    finally:
        logger.removeHandler(teller)
        logger.propagate = propagated


def plain(text: object) -> str:
    """Untrusted text for a terminal: control characters, which could move the cursor or
    turn the direction of writing, stand as escapes."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


@functools.cache
def invoked() -> str:
    """How this program was called, so that the commands it suggests can be copied."""
    called, found = Path(sys.argv[0]), shutil.which("weirbox")
    if called.name != "weirbox" or not called.exists():
        return "weirbox"
    if found is not None and called.samefile(found):
        return "weirbox"
    return shlex.quote(str(called))


def load_settings() -> Settings:
    """The settings of the environment.

    Raises:
        UserError: Naming the variable, what it holds, and what it may hold.
    """
    from pydantic import ValidationError

    from weirbox.errors import UserError
    from weirbox.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        lines = [
            f"WEIRBOX_{'.'.join(map(str, item['loc'])).upper()}: {item['msg']} "
            f"(found {item['input']!r})"
            for item in error.errors()
        ]
        raise UserError("; ".join(lines)) from None


def guarded(command: Callable[[], Any]) -> NoReturn:
    """Run a command, and end the process: expected errors as one message, others as they are."""
    _make_streams_safe()
    try:
        command()
    except Exception as error:
        status = _tell_error(error)
        if status is None:
            raise
        sys.exit(status)
    sys.exit(DONE)


def _tell_error(error: Exception) -> int | None:
    """Tell an expected error and give the exit status; None for one that is a bug."""
    from weirbox.errors import UserError, WeirboxError

    if isinstance(error, WeirboxError):
        _say(str(error))
        return MISTAKE if isinstance(error, UserError) else FAILED
    databases = sys.modules.get("sqlalchemy.exc")
    if databases is not None and isinstance(error, databases.DBAPIError):
        _say(f"the database failed: {error.orig}")
        return FAILED
    if isinstance(error, OSError) and error.filename is not None:
        _say(f"{error.strerror}: {error.filename!r}")
        return FAILED
    return None


def _say(message: str) -> None:
    from rich.text import Text

    _console(sys.stderr).print(
        Text.assemble(("error: ", "bold red"), plain(message)), soft_wrap=True
    )


def _console(stream: Any) -> Console:
    from rich.console import Console

    return Console(file=stream, markup=False, highlight=False, emoji=False)


def _make_streams_safe() -> None:
    """No stream that is closed (its number would go to the next file that is opened, the
    database for instance), and none that fails on a character."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
