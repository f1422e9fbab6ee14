"""Judges: providers, prompts, and the reading of their replies."""

from weirbox.judges.panel import Panel
from weirbox.judges.prompts import Rendered, render, reply_schema, resolve
from weirbox.judges.providers import build
from weirbox.judges.reading import Reading, read_verdict

__all__ = [
    "Panel",
    "Reading",
    "Rendered",
    "build",
    "read_verdict",
    "render",
    "reply_schema",
    "resolve",
]
