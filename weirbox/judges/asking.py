"""One account, asked with reservations, slots and retries."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from weirbox.domain.base import digest, model_json
from weirbox.domain.score import JudgeCall
from weirbox.domain.seams import JudgeReply, JudgeRequest, Ledger, Provider
from weirbox.domain.trace import Usage
from weirbox.domain.words import Reason
from weirbox.errors import ProviderError

ATTEMPTS = 3
"""Attempts at one request that fails in a way that may pass, while others come through."""

THROTTLED_ATTEMPTS = 5
"""Attempts at one request that is throttled: the limit halves in between, and needs a few."""

OUTAGE_S = 120.0
"""How long an account from which nothing comes through is waited for, before its requests
fail: outages and limits by the minute pass in that time, and a run has to end."""

PROBE_S = 10.0
"""How often an account that has failed for longer is asked whether it is back; the requests
in between fail at once, or a run would wait for each of them."""

_FIRST_WAIT_S = 0.5  # doubles with each attempt
_LONGEST_OWN_WAIT_S = 10.0
_LONGEST_WAIT_S = 60.0  # whatever the provider asks

log = logging.getLogger(__name__)


class Limiter(Protocol):
    """The limit on an account's requests in flight; see `weirbox.limiter`."""

    def slot(self) -> AbstractAsyncContextManager[float]:
        """Wait for a slot; gives the moment at which it was had."""

    def throttled(self, retry_after: float | None, *, started: float | None = None) -> None:
        """The provider said "too fast"."""

    def failed(self) -> None:
        """A request failed in a way that may pass."""

    def succeeded(self) -> None:
        """A request came through."""

    @property
    def failing_s(self) -> float:
        """For how many seconds requests have failed, without one that came through."""

    @property
    def successes(self) -> int:
        """How many requests have come through."""


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
        limiter: Limiter,
        *,
        sleep: Callable[[float], Awaitable[None]],
        jitter: Callable[[], float],
    ) -> None:
        self._provider = provider
        self._limiter = limiter
        self._sleep = sleep
        self._jitter = jitter
        self._spent: dict[str, str] = {}
        self._outage = _Outage(limiter)

    async def ask(self, request: JudgeRequest, ledger: Ledger) -> JudgeReply:
        """Ask until there is a reply or no hope of one.

        A call that was paid for before a crash is answered from its booked reply.
        Once a model's quota is spent it is not asked again. An account that answers nobody
        is waited for.

        Raises:
            BudgetExhausted: When the budget admits no call.
            ProviderError: When the provider fails for good.
        """
        key = request_digest(request)
        earlier = ledger.earlier(key)
        if earlier is not None and earlier.ok and (reply := _stored(earlier)) is not None:
            return reply
        attempt, successes = 0, self._limiter.successes
        while True:
            attempt += 1
            if request.model in self._spent:
                raise ProviderError(self._spent[request.model], reason=Reason.QUOTA)
            self._outage.refuse()
            try:
                return await self._once(request, key, ledger)
            except ProviderError as error:
                if error.reason is Reason.QUOTA:
                    self._spent[request.model] = str(error)
                if not error.retryable:
                    raise
                self._outage.failed(error)
                others = self._limiter.successes > successes
                most = THROTTLED_ATTEMPTS if error.throttled else ATTEMPTS
                if self._outage.lasts or (others and attempt >= most):
                    raise
                if attempt == most:
                    self._outage.tell(error)
                if not error.throttled:
                    await self._sleep(self._wait(attempt, error.retry_after))

    async def _once(self, request: JudgeRequest, key: str, ledger: Ledger) -> JudgeReply:
        """One call. It is reserved once there is a slot, so that waiting blocks no budget."""
        async with self._limiter.slot() as started:
            bound = self._provider.bound_usd(request)
            reservation = await ledger.reserve(bound)
            began = time.perf_counter()

            async def close(usage: Usage | None, message: str) -> None:
                """Book a call that failed; when nothing can have been paid, only void it."""
                if usage is None or (bound == 0 and not usage.cost_usd):
                    await ledger.release(reservation)
                else:
                    call = self._call(request, key, usage, began)
                    failed = call.model_copy(update={"ok": False, "message": message})
                    await ledger.settle(reservation, failed)

            try:
                reply = await self._provider.ask(request)
            except ProviderError as error:
                if error.throttled:
                    self._limiter.throttled(error.retry_after, started=started)
                await close(_counted(error), str(error))
                raise
            except asyncio.CancelledError:
                await close(Usage(), "cancelled in flight")
                raise
            except Exception as error:
                message = f"provider {self._provider.name!r}: {type(error).__name__}: {error}"
                await close(Usage(), message)
                raise ProviderError(message) from error
            self._limiter.succeeded()
            call = self._call(request, key, reply.usage, began)
            kept = {"text": reply.text, "stop": reply.stop}
            booked = call.model_copy(update={"cached": reply.cached, "reply": kept})
            await ledger.settle(reservation, booked)
            return reply

    def _call(self, request: JudgeRequest, key: str, usage: Usage, began: float) -> JudgeCall:
        return JudgeCall(
            check=request.check,
            tier=request.tier,
            model=request.model,
            provider=self._provider.name,
            request_digest=key,
            usage=usage,
            duration=time.perf_counter() - began,
        )

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        own = min(_FIRST_WAIT_S * 2.0 ** (attempt - 1), _LONGEST_OWN_WAIT_S)
        own *= 1 + self._jitter()
        return max(own, min(retry_after or 0.0, _LONGEST_WAIT_S))


class _Outage:
    """What is known of an account from which nothing comes through."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._error: ProviderError | None = None
        self._next_probe_s = 0.0
        self._told_of = -1

    @property
    def lasts(self) -> bool:
        """Whether it is longer than is waited for."""
        return self._limiter.failing_s >= OUTAGE_S

    def failed(self, error: ProviderError) -> None:
        """Remember what the account fails with."""
        self._limiter.failed()
        self._error = error

    def refuse(self) -> None:
        """Let one request in a while find out whether an outage that lasts is over.

        Raises:
            ProviderError: For the others: the one that the account failed with last.
        """
        if not self.lasts or self._error is None:
            self._next_probe_s = 0.0
            return
        failing_s = self._limiter.failing_s
        if failing_s < self._next_probe_s:
            why = f"{self._error} (not asked: it has failed for more than {OUTAGE_S:g} s)"
            raise ProviderError(why, reason=self._error.reason)
        self._next_probe_s = failing_s + PROBE_S

    def tell(self, error: ProviderError) -> None:
        """Tell a person, once for each outage, why nothing moves."""
        if self._told_of != self._limiter.successes:
            self._told_of = self._limiter.successes
            log.warning("%s; it is asked again for up to %g s", error, OUTAGE_S)


def _counted(error: ProviderError) -> Usage | None:
    """What a failed call used; None when it used nothing, empty when nobody knows."""
    if error.usage.total_tokens or error.usage.cost_usd or error.reason is Reason.TIMEOUT:
        return error.usage
    return None


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
