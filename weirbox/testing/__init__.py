"""Fakes for tests, weirbox's own and its users'."""

from __future__ import annotations

from weirbox.testing.memory import (
    Clock,
    MemoryCompute,
    MemoryEngine,
    MemoryHandle,
    MemorySink,
    ReplayJudge,
    ScriptedHarness,
)

__all__ = [
    "Clock",
    "MemoryCompute",
    "MemoryEngine",
    "MemoryHandle",
    "MemorySink",
    "ReplayJudge",
    "ScriptedHarness",
]
