"""What the tests of platform sinks share: each platform's spec and the fake that stands for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.core.test_sinks import HEADER, a_trial
from weirbox.domain.exporting import (
    LangfuseSink,
    LangsmithSink,
    MlflowSink,
    OtelSink,
    PhoenixSink,
    SinkSpec,
)
from weirbox.domain.score import Score
from weirbox.domain.seams import RunHeader, Sink, TrialExport
from weirbox.domain.trace import Observation, TraceEvent, Usage
from weirbox.domain.words import EventKind, Reason, ScoreState, Source, Tier
from weirbox.secrets import SecretMissing
from weirbox.sinks import build
from weirbox.testing.receivers import (
    LangfuseReceiver,
    LangsmithReceiver,
    MlflowReceiver,
    OtlpReceiver,
    PhoenixReceiver,
    Receiver,
)

CANARY = "canary-7f3a91"
SECRETS = {"KEY": CANARY, "LANGFUSE_PUBLIC_KEY": "pk-1", "LANGFUSE_SECRET_KEY": CANARY}
HEADERS = {"authorization": "Bearer secret:KEY"}


@dataclass(frozen=True)
class Platform:
    """A kind of sink with the fake of its platform."""

    receiver: type[Receiver]
    spec: Callable[..., SinkSpec]

    def at(self, receiver: Receiver, **changes: Any) -> SinkSpec:
        """The spec of a sink that sends to a fake."""
        return self.spec(**({"url": receiver.url} | changes))


def _spec(model: Any, kind: str, **parts: Any) -> Callable[..., SinkSpec]:
    return lambda **changes: model(**({"kind": kind} | parts | changes))


PLATFORMS = {
    "mlflow": Platform(MlflowReceiver, _spec(MlflowSink, "mlflow", headers=HEADERS)),
    "phoenix": Platform(PhoenixReceiver, _spec(PhoenixSink, "phoenix", secret="KEY")),
    "langfuse": Platform(LangfuseReceiver, _spec(LangfuseSink, "langfuse")),
    "langsmith": Platform(LangsmithReceiver, _spec(LangsmithSink, "langsmith", secret="KEY")),
    "otel": Platform(
        OtlpReceiver,
        _spec(OtelSink, "otel", headers=HEADERS, link="http://jaeger/trace/{trace_id}"),
    ),
}


def reading(secrets: Mapping[str, str]) -> Callable[[str], str]:
    """A reader of these secrets alone."""

    def read(name: str) -> str:
        if name not in secrets:
            raise SecretMissing(f"secret {name!r} is not set")
        return secrets[name]

    return read


@asynccontextmanager
async def a_sink(
    spec: SinkSpec, header: RunHeader = HEADER, secrets: Mapping[str, str] = SECRETS
) -> AsyncIterator[Sink]:
    """A sink that is set up, for the length of a block."""
    sink = build(spec, reading(secrets))
    await sink.set_up(header)
    try:
        yield sink
    finally:
        await sink.aclose()


TRACE = (
    TraceEvent(kind=EventKind.MESSAGE, name="user", text="2 + 2", at=0.0),
    TraceEvent(
        kind=EventKind.LLM_CALL,
        name="ask",
        data=[{"role": "user", "content": "2 + 2"}],
        text="I add.",
        model="small",
        usage=Usage(input_tokens=10, output_tokens=2, cached_tokens=4, cost_usd=0.001),
        at=0.1,
        duration=0.2,
    ),
    TraceEvent(kind=EventKind.TOOL_CALL, name="add", data={"a": 2, "b": 2}, at=0.2, parent=1),
    TraceEvent(kind=EventKind.TOOL_RESULT, name="add", text="4", at=0.25, parent=2),
    TraceEvent(kind=EventKind.ERROR, name="late", text="too late", at=0.4),
)

SCORES = (
    Score(name="match", value=True, passed=True, rationale="equal"),
    Score(
        name="quality",
        value=0.75,
        passed=True,
        source=Source.JUDGE,
        model="gpt",
        tier=Tier.PRIMARY,
        confidence=0.9,
        rationale="fine",
    ),
    Score(name="tone", value="friendly"),
    Score(
        name="safety",
        state=ScoreState.UNSCORED,
        reason=Reason.REFUSAL,
        source=Source.JUDGE,
        rationale="I cannot help with that.",
    ),
    Score(name="depth", state=ScoreState.SKIPPED, reason=Reason.POLICY_SKIP),
)


def judged(case_id: str = "one", **changes: Any) -> TrialExport:
    """A judged trial with a trace and with scores of every kind."""
    observation = Observation(
        output="4", duration=0.5, model="small", trace=TRACE, correlation="run-1.0"
    )
    parts: dict[str, Any] = {
        "scores": SCORES,
        "observation": observation,
        "judged_at": "2026-11-01T00:00:02+00:00",
    }
    return a_trial(case_id, **(parts | changes))


def held(receiver: Receiver) -> tuple[int, int, int]:
    """How many spans, runs and scores a fake holds."""
    runs = receiver.runs if isinstance(receiver, LangsmithReceiver) else {}
    return len(receiver.spans), len(runs), len(receiver.scores)


def names(receiver: Receiver) -> Iterator[str]:
    """The names of spans or runs, in the order in which they came."""
    if isinstance(receiver, LangsmithReceiver):
        yield from (run["name"] for run in receiver.runs.values())
    yield from (span.name for span in receiver.spans)
