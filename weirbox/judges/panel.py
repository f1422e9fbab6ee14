"""The judges of a suite, asked about one trial."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import JsonValue

from weirbox.domain.case import Case
from weirbox.domain.judging import JudgeSpec, Prompt, TierSpec
from weirbox.domain.score import Score
from weirbox.domain.seams import JudgeRequest, Ledger, Provider
from weirbox.domain.spec import Routing
from weirbox.domain.template import Missing
from weirbox.domain.trace import Observation
from weirbox.domain.words import Authority, Judgement, Reason, ScoreState, Source, Tier
from weirbox.errors import BudgetExhausted, ProviderError, SuiteError
from weirbox.judges.asking import Account, Limiter
from weirbox.judges.prompts import material_text, render, reply_schema
from weirbox.judges.reading import Reading, read_verdict


class Panel:
    """Asks a suite's judges, one after another, in the suite's order.

    The primary tier goes first. An uncertain verdict, a confidence under the floor
    or a reply that cannot be read sends that check alone to the escalation tier,
    whose result stands. Every failure is a score with a state and a reason.
    """

    def __init__(
        self,
        judges: Sequence[JudgeSpec],
        prompts: Mapping[str, Prompt],
        providers: Mapping[str, Provider],
        routing: Routing,
        limiters: Mapping[str, Limiter],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Args:
            prompts: By the judge's name.
            providers, limiters: By the provider's name.
            sleep, jitter: For tests.

        Raises:
            SuiteError: When a judge has no prompt, provider or limiter.
        """
        self._judges = tuple(judges)
        self._prompts = prompts
        self._routing = routing
        self._schemas = {name: reply_schema(prompt.rubric) for name, prompt in prompts.items()}
        for judge in self._judges:
            if judge.name not in prompts:
                raise SuiteError(f"judge {judge.name!r} has no prompt")
            for tier in (judge.primary, judge.escalation):
                if tier is not None and not (
                    tier.provider in providers and tier.provider in limiters
                ):
                    raise SuiteError(f"judge {judge.name!r}: no provider {tier.provider!r}")
        self._accounts = {
            name: Account(provider, limiters[name], sleep=sleep, jitter=jitter)
            for name, provider in providers.items()
            if name in limiters
        }

    async def judge(
        self,
        case: Case,
        observation: Observation,
        *,
        trial: int,
        checks: Collection[str] | None,
        ledger: Ledger,
    ) -> list[Score]:
        """Judge one trial.

        Safe to run again after a crash: a call that `ledger` knows is neither made
        nor booked a second time.

        Args:
            checks: The judges to ask; the others are skipped. None asks all.

        Returns:
            One score for each judge, in the suite's order.
        """
        scores = []
        for judge in self._judges:
            if checks is not None and judge.name not in checks:
                scores.append(_skipped(judge))
                continue
            scores.append(await self._check(judge, case, observation, trial, ledger))
        return scores

    async def _check(
        self, judge: JudgeSpec, case: Case, observation: Observation, trial: int, ledger: Ledger
    ) -> Score:
        began = time.perf_counter()
        prompt = self._prompts[judge.name]
        try:
            rendered = render(prompt, case, observation)
        except Missing as missing:
            message = f"the prompt names {missing.args[0]!r}, which this trial does not have"
            reading = Reading(
                ScoreState.UNSCORED, reason=Reason.MISSING_EVIDENCE, rationale=message
            )
            return _score(judge, reading, None, None, began=began)
        shown = partial(material_text, case, observation)

        async def ask(tier: Tier, spec: TierSpec) -> Reading:
            request = JudgeRequest(
                check=judge.name,
                case_id=case.id,
                trial=trial,
                tier=tier,
                model=spec.model,
                system=rendered.system,
                user=rendered.user,
                rubric=prompt.rubric,
                reply_schema=self._schemas[judge.name],
                max_tokens=spec.max_tokens,
                temperature=spec.temperature,
            )
            return await _read(self._accounts[spec.provider], request, ledger, shown)

        primary = await ask(Tier.PRIMARY, judge.primary)
        if judge.escalation is None or not self._is_doubtful(primary):
            return _score(judge, primary, Tier.PRIMARY, judge.primary.model, began=began)
        final = await ask(Tier.ESCALATION, judge.escalation)
        return _score(
            judge,
            final,
            Tier.ESCALATION,
            judge.escalation.model,
            began=began,
            detail={"primary": _as_detail(primary)},
        )

    def _is_doubtful(self, reading: Reading) -> bool:
        """Whether the escalation tier has to decide; a call that failed is not a doubt."""
        if reading.state is ScoreState.ERRORED or reading.reason is Reason.BUDGET:
            return False
        if reading.state is ScoreState.UNSCORED:
            return True
        if reading.judgement is Judgement.UNCERTAIN:
            return True
        confidence = reading.confidence
        return confidence is not None and confidence < self._routing.confidence_floor


async def _read(
    account: Account, request: JudgeRequest, ledger: Ledger, shown: Callable[[], str]
) -> Reading:
    """Ask one tier and read its reply; what fails is a reading too.

    A reply that was cut at the token limit is asked for once more with twice the room.
    """
    try:
        reply = await account.ask(request, ledger)
    except BudgetExhausted as error:
        return Reading(ScoreState.UNSCORED, reason=Reason.BUDGET, rationale=str(error))
    except ProviderError as error:
        return Reading(ScoreState.ERRORED, reason=error.reason, rationale=str(error))
    if reply.stop == "length":
        wider = request.model_copy(update={"max_tokens": 2 * request.max_tokens})
        try:
            reply = await account.ask(wider, ledger)
        except (BudgetExhausted, ProviderError) as error:
            message = f"cut at {request.max_tokens} tokens; no second try with more: {error}"
            return Reading(ScoreState.UNSCORED, reason=Reason.TRUNCATED, rationale=message)
    return read_verdict(reply, request.rubric, answer_text=shown)


def _score(
    judge: JudgeSpec,
    reading: Reading,
    tier: Tier | None,
    model: str | None,
    *,
    began: float,
    detail: JsonValue = None,
) -> Score:
    return Score(
        name=judge.name,
        state=reading.state,
        reason=reading.reason,
        value=reading.value,
        passed=reading.passed,
        authority=Authority.JUDGE,
        source=Source.JUDGE,
        required=judge.required,
        confidence=reading.confidence,
        rationale=reading.rationale,
        tier=tier,
        model=model,
        judgement=reading.judgement,
        detail=detail,
        duration=time.perf_counter() - began,
    )


def _skipped(judge: JudgeSpec) -> Score:
    return Score(
        name=judge.name,
        state=ScoreState.SKIPPED,
        reason=Reason.POLICY_SKIP,
        authority=Authority.JUDGE,
        source=Source.JUDGE,
        required=judge.required,
    )


def _as_detail(reading: Reading) -> dict[str, Any]:
    return {
        "state": reading.state.value,
        "reason": reading.reason and reading.reason.value,
        "value": reading.value,
        "confidence": reading.confidence,
        "rationale": reading.rationale,
    }
