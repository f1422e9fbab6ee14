"""Write a run's results to a file or to standard output."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weirbox.cli.options import ExportFormat
from weirbox.errors import NotPossible, UserError
from weirbox.result_files import write_csv, write_jsonl, write_parquet
from weirbox.runtime import open_runtime
from weirbox.store import queries

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from weirbox.settings import Settings


def export_run(settings: Settings, run: str, form: ExportFormat, output: Path | None) -> None:
    """Write a run's results; a file appears whole or not at all.

    Raises:
        UserError: When there is no such run, or the file cannot be written.
    """
    if form is ExportFormat.PARQUET and output is None:
        raise NotPossible("parquet is no text: give a file with --output FILE.parquet")
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        run_id = queries.find_run_id(connection, run)
        if output is None:
            _write_text(connection, run_id, form, sys.stdout.buffer)
            return
        with _replaced(output) as temporary:
            if form is ExportFormat.PARQUET:
                write_parquet(connection, run_id, temporary)
            else:
                with temporary.open("wb") as into:
                    _write_text(connection, run_id, form, into)


def _write_text(connection: Connection, run_id: str, form: ExportFormat, into: Any) -> None:
    """UTF-8 whatever the terminal's encoding is: a format, not a display."""
    text = io.TextIOWrapper(into, encoding="utf-8", errors="backslashreplace", newline="")
    write = write_csv if form is ExportFormat.CSV else write_jsonl
    write(connection, run_id, text)
    text.flush()
    text.detach()


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    if path.exists() and not path.is_file():
        raise UserError(f"{str(path)!r} cannot be written: it is a folder or a device")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
