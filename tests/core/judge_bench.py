"""Fakes and factories for the tests of judges."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from weirbox.domain.case import Case
from weirbox.domain.judging import (
    JudgeSpec,
    Prompt,
    PythonProvider,
    ReplayProvider,
    Rubric,
    TierSpec,
)
from weirbox.domain.score import JudgeCall, Score
from weirbox.domain.seams import JudgeReply, JudgeRequest, Provider, Workshop
from weirbox.domain.spec import Routing
from weirbox.domain.trace import Observation, Usage
from weirbox.domain.words import Reason, Tier
from weirbox.errors import BudgetExhausted, ProviderError
from weirbox.judges import Panel, build, reply_schema
from weirbox.limiter import AdaptiveLimiter
from weirbox.secrets import reader

KEY = "sk-very-secret-0123456789"
PASS = '{"reason": "right", "verdict": "pass", "confidence": 0.9}'
UNSURE = '{"reason": "hm", "verdict": "uncertain", "confidence": 0.9}'
PROMPT = Prompt(id="p", version=1, system="Judge.", user="{{ output }}")
CASE = Case(id="c1", input="2+2?", target="4")
OBSERVATION = Observation(output="four")


def workshop(
    files: Mapping[str, bytes] | None = None, secrets: Mapping[str, str] | None = None
) -> Workshop:
    known = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY} if secrets is None else secrets
    return Workshop(
        folder="/suite", read_file=dict(files or {}).__getitem__, read_secret=reader(known.get)
    )


def ask_for(**changes: Any) -> JudgeRequest:
    return JudgeRequest(
        **{
            "check": "correct",
            "case_id": "c1",
            "trial": 1,
            "tier": Tier.PRIMARY,
            "model": "claude-sonnet-4-5",
            "system": "Judge.",
            "user": "four",
            "rubric": Rubric(),
            "reply_schema": reply_schema(Rubric()),
            "max_tokens": 100,
        }
        | changes
    )


FUNCTIONS = b"""
import asyncio, time
from weirbox.domain.seams import JudgeReply

def text(request): return '{"verdict": "pass"}'
def as_dict(request): return {"verdict": request.case_id}
async def later(request):
    await asyncio.sleep(0)
    return JudgeReply(text="verdict: fail", stop="length")
def breaks(request): raise KeyError("no such thing")
def stops(request): raise StopIteration
def leaves(request): raise SystemExit(3)
def number(request): return 1
def not_json(request): return {"a": {1, 2}}
def hangs(request): time.sleep(30)
"""


def python(function: str, **spec: Any) -> Provider:
    return build(
        "fn",
        PythonProvider(kind="python", function=f"f.py:{function}", cost_usd=0.02, **spec),
        workshop({"/suite/f.py": FUNCTIONS}),
    )


def replay(*lines: dict[str, Any] | str, **spec: Any) -> Provider:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return build(
        "tape",
        ReplayProvider(kind="replay", path="tape.jsonl", **spec),
        workshop({"/suite/tape.jsonl": text.encode()}),
    )


def line(**changes: Any) -> dict[str, Any]:
    return {"check": "correct", "case": "c1", "tier": "primary", "reply": "pass"} | changes


class Book:
    """A ledger in memory: one limit, reservations, and the calls that were booked."""

    def __init__(
        self, limit: float | None = None, *, spent: float = 0.0, earlier: tuple[JudgeCall, ...] = ()
    ) -> None:
        self.limit = limit
        self.spent = spent
        self.reserved: dict[int, float] = {}
        self.calls: list[JudgeCall] = []
        self.bounds: list[float | None] = []
        self._earlier = {call.request_digest: call for call in earlier}

    async def reserve(self, usd: float | None) -> int:
        bound = usd or 0.0
        if (
            self.limit is not None
            and self.spent + sum(self.reserved.values()) + bound > self.limit + 1e-12
        ):
            raise BudgetExhausted("the budget is exhausted")
        self.bounds.append(usd)
        reservation = len(self.bounds)
        self.reserved[reservation] = bound
        await asyncio.sleep(0)
        return reservation

    async def settle(self, reservation: int, call: JudgeCall) -> None:
        del self.reserved[reservation]
        self.calls.append(call)
        self.spent += call.usage.cost_usd or 0.0

    async def release(self, reservation: int) -> None:
        del self.reserved[reservation]

    def earlier(self, request_digest: str) -> JudgeCall | None:
        return self._earlier.get(request_digest)


class Scripted:
    """A provider that says what it is told to, in order; the last again and again."""

    def __init__(self, *script: Any, cost: float | None = 0.01, bound: float | None = None) -> None:
        self.name = "main"
        self.script = list(script)
        self.cost = cost
        self.bound = cost if bound is None else bound
        self.requests: list[JudgeRequest] = []

    async def ask(self, request: JudgeRequest) -> JudgeReply:
        self.requests.append(request)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        await asyncio.sleep(0)
        if isinstance(step, BaseException):
            raise step
        reply = step if isinstance(step, JudgeReply) else JudgeReply(text=step)
        usage = Usage(input_tokens=500, output_tokens=300, cost_usd=self.cost)
        return reply.model_copy(update={"usage": usage})

    def bound_usd(self, request: JudgeRequest) -> float | None:
        return self.bound

    def preflight(self, model: str) -> str | None:
        return None

    async def aclose(self) -> None:
        return None


def judge(name: str = "correct", *, escalation: bool = False, **spec: Any) -> JudgeSpec:
    return JudgeSpec(
        name=name,
        prompt=PROMPT,
        primary=TierSpec(provider="main", model="small"),
        escalation=TierSpec(provider="wise", model="large") if escalation else None,
        **spec,
    )


class Bench:
    """A panel over scripted providers, with a clock that moves when somebody sleeps."""

    def __init__(
        self,
        main: Any,
        wise: Any = None,
        *,
        judges: tuple[JudgeSpec, ...] | None = None,
        prompt: Prompt = PROMPT,
        concurrency: int = 8,
    ) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.limiter = AdaptiveLimiter(
            concurrency, clock=lambda: self.now, sleep=self.sleep, jitter=lambda: 0.5
        )
        judges = judges or (judge(escalation=wise is not None),)
        self.panel = Panel(
            judges,
            {one.name: prompt for one in judges},
            {"main": main, "wise": wise or main},
            Routing(),
            {"main": self.limiter, "wise": AdaptiveLimiter(8)},
            sleep=self.sleep,
            jitter=lambda: 0.5,
        )

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        await asyncio.sleep(0)

    async def run(self, book: Book | None = None, **changes: Any) -> list[Score]:
        given: dict[str, Any] = {"trial": 1, "checks": None, "ledger": book or Book()} | changes
        case = given.pop("case", CASE)
        return await self.panel.judge(case, given.pop("observation", OBSERVATION), **given)


def failing(reason: Reason = Reason.PROVIDER_ERROR, **more: Any) -> ProviderError:
    return ProviderError("the provider broke", reason=reason, **more)
