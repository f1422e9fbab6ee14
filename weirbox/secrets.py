"""Secrets by name, resolved as late as possible and kept nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from weirbox.errors import WeirboxError


class SecretMissing(WeirboxError):
    """No resolver knows the secret; the message has its name only."""


def from_environment(name: str) -> str | None:
    """The environment variable of that name."""
    return os.environ.get(name) or None


def from_files(folder: Path) -> Callable[[str], str | None]:
    """A resolver that reads ``folder/NAME``, as container platforms mount secrets."""

    def read(name: str) -> str | None:
        if not name or "/" in name or name.startswith("."):
            return None
        path = folder / name
        return path.read_text().strip() or None if path.is_file() else None

    return read


def reader(*resolvers: Callable[[str], str | None]) -> Callable[[str], str]:
    """One function that asks the resolvers in turn.

    Raises:
        SecretMissing: From the function, when none of them knows the name.
    """

    def read(name: str) -> str:
        for resolve in resolvers:
            value = resolve(name)
            if value:
                return value
        raise SecretMissing(
            f"secret {name!r} is not set: export it, or put it in a file of that name "
            "in WEIRBOX_SECRETS_DIR"
        )

    return read
