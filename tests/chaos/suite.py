"""What chaos evaluates: slow enough to be killed in the middle, and always the same."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

from weirbox.domain.case import Case
from weirbox.domain.seams import JudgeRequest
from weirbox.domain.spec import Suite

PRICE = 0.01
"""What each judge call costs, in dollars."""

EXECUTE_S = 0.3
JUDGE_S = 0.1


def suite(folder: Path, *, cases: int, drivers: int, usd: float) -> Suite:
    """A suite of cases with a grader, a rule, two judges with escalation, and a sink."""
    primary = {"provider": "paid", "model": "small"}
    escalation = {"provider": "paid", "model": "large"}
    return Suite.model_validate(
        {
            "suite": "chaos",
            "dataset": {
                "records": [
                    {"id": f"case-{n}", "input": f"in {n}", "target": f"in {n}"}
                    for n in range(cases)
                ]
            },
            "harness": {"kind": "python", "function": "tests.chaos.suite:execute"},
            "graders": [{"kind": "answer-match", "name": "match"}],
            "providers": {
                "paid": {
                    "kind": "python",
                    "function": "tests.chaos.suite:ask",
                    "cost_usd": PRICE,
                }
            },
            "judges": [
                {
                    "name": name,
                    "prompt": {"id": name, "version": 1, "user": "Is {{ output }} right?"},
                    "primary": primary,
                    "escalation": escalation,
                }
                for name in ("first", "second")
            ],
            "sinks": [{"kind": "jsonl", "path": str(folder / "out")}],
            "concurrency": {"execute": 8, "judge": 6, "export": 2, "drivers": drivers},
            "budget": {"usd": usd},
        }
    )


async def execute(case: Case) -> Any:
    """The system under test: gives its input back, but for every seventh case."""
    await asyncio.sleep(EXECUTE_S)
    return "wrong" if _number(case.id) % 7 == 0 else case.input


async def ask(request: JudgeRequest) -> str:
    """A paid judge whose word depends on nothing but what it is asked."""
    await asyncio.sleep(JUDGE_S)
    drawn = _number(f"{request.case_id} {request.check} {request.tier}")
    verdict = ("pass", "pass", "pass", "fail", "uncertain")[drawn % 5]
    return json.dumps({"verdict": verdict, "confidence": 0.9, "reason": f"drawn {drawn % 100}"})


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
