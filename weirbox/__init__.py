"""weirbox: evaluations of LLM agents and data pipelines as durable, streaming Prefect flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weirbox.again import aexport_retry, arejudge, aretry, export_retry, rejudge, retry
    from weirbox.api import (
        Run,
        acancel,
        aplan,
        aresume,
        arun,
        cancel,
        get_run,
        plan,
        resume,
        run,
    )
    from weirbox.domain.spec import Suite
    from weirbox.ingesting import aingest, ingest
    from weirbox.suites import load_suite
    from weirbox.triggering import Triggered, atrigger, trigger

__version__ = "0.1.0"

__all__ = [
    "Run",
    "Suite",
    "Triggered",
    "acancel",
    "aexport_retry",
    "aingest",
    "aplan",
    "arejudge",
    "aresume",
    "aretry",
    "arun",
    "atrigger",
    "cancel",
    "export_retry",
    "get_run",
    "ingest",
    "load_suite",
    "plan",
    "rejudge",
    "resume",
    "retry",
    "run",
    "trigger",
]

_AGAIN = ("aexport_retry", "arejudge", "aretry", "export_retry", "rejudge", "retry")
_HOMES = {
    **dict.fromkeys(_AGAIN, "weirbox.again"),
    "Suite": "weirbox.domain.spec",
    "load_suite": "weirbox.suites",
    **dict.fromkeys(("aingest", "ingest"), "weirbox.ingesting"),
    **dict.fromkeys(("Triggered", "atrigger", "trigger"), "weirbox.triggering"),
}


def __getattr__(name: str) -> Any:
    """Load the public names when they are asked for, so that importing weirbox is quick."""
    if name not in __all__:
        raise AttributeError(f"module 'weirbox' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "weirbox.api")), name)
