"""weirbox: evaluations of LLM agents and data pipelines as durable, streaming Prefect flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weirbox.api import (
        Run,
        aplan,
        aresume,
        arun,
        get_run,
        plan,
        resume,
        run,
    )
    from weirbox.domain.spec import Suite
    from weirbox.suites import load_suite

__version__ = "0.1.0"

__all__ = [
    "Run",
    "Suite",
    "aplan",
    "aresume",
    "arun",
    "get_run",
    "load_suite",
    "plan",
    "resume",
    "run",
]

_HOMES = {"Suite": "weirbox.domain.spec", "load_suite": "weirbox.suites"}


def __getattr__(name: str) -> Any:
    """Load the public names when they are asked for, so that importing weirbox is quick."""
    if name not in __all__:
        raise AttributeError(f"module 'weirbox' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "weirbox.api")), name)
