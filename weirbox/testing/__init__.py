"""Fakes for tests, weirbox's own and its users'."""

from __future__ import annotations

from weirbox.testing.jaeger import FakeJaeger
from weirbox.testing.langfuse import FakeLangfuse
from weirbox.testing.langsmith import FakeLangsmith
from weirbox.testing.memory import (
    Clock,
    MemoryCompute,
    MemoryEngine,
    MemoryHandle,
    MemorySink,
    ReplayJudge,
    ScriptedHarness,
)
from weirbox.testing.mlflow import FakeMlflow
from weirbox.testing.phoenix import FakePhoenix
from weirbox.testing.platform import FakePlatform, FakeSpan, Reply, SpanEvent
from weirbox.testing.receivers import (
    LangfuseReceiver,
    LangsmithReceiver,
    MlflowReceiver,
    OtlpReceiver,
    PhoenixReceiver,
)

__all__ = [
    "Clock",
    "FakeJaeger",
    "FakeLangfuse",
    "FakeLangsmith",
    "FakeMlflow",
    "FakePhoenix",
    "FakePlatform",
    "FakeSpan",
    "LangfuseReceiver",
    "LangsmithReceiver",
    "MemoryCompute",
    "MemoryEngine",
    "MemoryHandle",
    "MemorySink",
    "MlflowReceiver",
    "OtlpReceiver",
    "PhoenixReceiver",
    "ReplayJudge",
    "Reply",
    "ScriptedHarness",
    "SpanEvent",
]
