"""One account, asked with reservations, slots and retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from weirbox.domain.base import digest, model_json
from weirbox.domain.score import JudgeCall
from weirbox.domain.seams import JudgeReply, JudgeRequest, Ledger, Provider
from weirbox.domain.trace import Usage
from weirbox.domain.words import Reason
from weirbox.errors import ProviderError
from weirbox.limiter import AdaptiveLimiter, pause_seconds

ATTEMPTS = 3
"""Attempts at one request that fails in a way that may pass."""

THROTTLED_ATTEMPTS = 5
"""Attempts at one request that is throttled: the limit halves in between, and needs a few."""

_FIRST_WAIT_S = 0.5  # doubles with each attempt


def request_digest(request: JudgeRequest) -> str:
    """What identifies a request by everything that shapes its reply, the trial included.

    Repeats of a case are different questions: without the trial they would share a reply.
    """
    return digest(
        [
            request.model,
            request.system,
            request.user,
            model_json(request.rubric),
            request.max_tokens,
            request.temperature,
            request.tier.value,
            request.check,
            request.case_id,
            request.trial,
        ]
    )


class Account:
    """A provider with its limiter; every call is reserved before and booked after."""

    def __init__(
        self,
        provider: Provider,
        limiter: AdaptiveLimiter,
        *,
        sleep: Callable[[float], Awaitable[None]],
        jitter: Callable[[], float],
    ) -> None:
        self._provider = provider
        self._limiter = limiter
        self._sleep = sleep
        self._jitter = jitter
        self._spent: dict[str, str] = {}

    async def ask(self, request: JudgeRequest, ledger: Ledger) -> JudgeReply:
        """Ask until there is a reply or no hope of one.

        A call that was paid for before a crash is answered from its booked reply.
        Once a model's quota is spent it is not asked again.

        Raises:
            BudgetExhausted: When the budget admits no call.
            ProviderError: When the provider fails for good.
        """
        key = request_digest(request)
        earlier = ledger.earlier(key)
        if earlier is not None and earlier.ok and (reply := _stored(earlier)) is not None:
            return reply
        attempt = 0
        while True:
            attempt += 1
            if request.model in self._spent:
                raise ProviderError(self._spent[request.model], reason=Reason.QUOTA)
            try:
                return await self._once(request, key, ledger)
            except ProviderError as error:
                if error.reason is Reason.QUOTA:
                    self._spent[request.model] = str(error)
                most = THROTTLED_ATTEMPTS if error.throttled else ATTEMPTS
                if not error.retryable or attempt >= most:
                    raise
                if not error.throttled:
                    await self._sleep(self._wait(attempt, error.retry_after))

    async def _once(self, request: JudgeRequest, key: str, ledger: Ledger) -> JudgeReply:
        """One call. It is reserved once there is a slot, so that waiting blocks no budget."""
        async with self._limiter.slot() as started:
            reservation = await ledger.reserve(self._provider.bound_usd(request) or None)
            began = time.perf_counter()

            def call(usage: Usage, *, message: str = "") -> JudgeCall:
                return JudgeCall(
                    check=request.check,
                    tier=request.tier,
                    model=request.model,
                    provider=self._provider.name,
                    request_digest=key,
                    usage=usage,
                    ok=not message,
                    message=message,
                    duration=time.perf_counter() - began,
                )

            try:
                reply = await self._provider.ask(request)
            except ProviderError as error:
                if error.throttled:
                    self._limiter.throttled(error.retry_after, started=started)
                if _counted(error):
                    await ledger.settle(reservation, call(error.usage, message=str(error)))
                else:
                    await ledger.release(reservation)
                raise
            except asyncio.CancelledError:
                await ledger.settle(reservation, call(Usage(), message="cancelled in flight"))
                raise
            except Exception as error:
                message = f"provider {self._provider.name!r}: {type(error).__name__}: {error}"
                await ledger.settle(reservation, call(Usage(), message=message))
                raise ProviderError(message) from error
            self._limiter.succeeded()
            booked = call(reply.usage).model_copy(
                update={"cached": reply.cached, "reply": {"text": reply.text, "stop": reply.stop}}
            )
            await ledger.settle(reservation, booked)
            return reply

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        own = _FIRST_WAIT_S * 2 ** (attempt - 1) * (1 + self._jitter())
        return own if retry_after is None else max(own, pause_seconds(retry_after))


def _counted(error: ProviderError) -> bool:
    """Whether a failed call may have cost something: tokens, money, or nobody knows."""
    return bool(error.usage.total_tokens or error.usage.cost_usd or error.reason is Reason.TIMEOUT)


def _stored(call: JudgeCall) -> JudgeReply | None:
    """The reply of a booked call; None when none was kept."""
    kept = call.reply
    if not isinstance(kept, dict):
        return None
    text, stop = kept.get("text"), kept.get("stop")
    if not isinstance(text, str) or not isinstance(stop, str):
        return None
    usage = call.usage.model_copy(update={"cost_usd": 0.0})
    return JudgeReply(text=text, stop=stop, usage=usage, model=call.model, cached=True)
