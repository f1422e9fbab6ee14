"""Secrets that a team keeps as Secret blocks in Prefect."""

from __future__ import annotations

import re
from typing import cast


def from_prefect_blocks(name: str) -> str | None:
    """The Secret block of that name; Prefect wants lower-case names with dashes."""
    from prefect.blocks.system import Secret

    block = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    try:
        loaded = cast(Secret[str], Secret.load(block, _sync=True))  # type: ignore[call-arg]
    except ValueError:
        return None
    return loaded.get()
