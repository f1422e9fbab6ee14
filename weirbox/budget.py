"""One hard budget per run: reserve before a call, settle after it, release if it was not made.

The limit holds across drivers because a reservation is a row that is only inserted while
``spent + reserved + bound <= limit``, under the run's row lock. A driver that dies leaves
its reservations to whoever takes its claim back; what it spent stands in the call rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from weirbox.domain.score import JudgeCall
from weirbox.domain.spec import BudgetSpec
from weirbox.errors import BudgetExhausted
from weirbox.store.rows import Ticket
from weirbox.store.spending import ReserveRequest, Settlement
from weirbox.store.types import to_nano
from weirbox.store.writer import Release

UNRESERVED = 0
"""The reservation of a call that the budget does not limit."""


class Submits(Protocol):
    """What hands records to the database; see `weirbox.store.writer.Writer`."""

    def submit(self, record: Any) -> Future[Any]:
        """Give a future for the committed record."""


def total_cost(calls: Sequence[JudgeCall]) -> float | None:
    """What calls cost together; None when one has an unknown price."""
    known = [call.usage.cost_usd for call in calls if call.usage.cost_usd is not None]
    return sum(known) if len(known) == len(calls) else None


class TrialLedger:
    """The spending of one trial under its run's budget.

    Attributes:
        free_calls: Calls that cost nothing; they are booked with the stage's end.
    """

    def __init__(
        self, writer: Submits, ticket: Ticket, budget: BudgetSpec, earlier: Sequence[JudgeCall] = ()
    ) -> None:
        self._writer = writer
        self._ticket = ticket
        self._budget = budget
        self._earlier = {call.request_digest: call for call in earlier if call.ok}
        self.free_calls: list[JudgeCall] = []
        self._calls = list(earlier)

    @property
    def cost_usd(self) -> float | None:
        """What the trial's calls cost so far; None when one has an unknown price."""
        return total_cost(self._calls)

    async def reserve(self, usd: float | None) -> int:
        """Reserve an upper bound for one call.

        Args:
            usd: The most the call can cost; None where the price is unknown.

        Raises:
            BudgetExhausted: When the budget does not admit the call.
        """
        if self._budget.calls is None and (self._budget.usd is None or usd == 0):
            return UNRESERVED
        request = ReserveRequest(self._ticket, to_nano(usd))
        reservation: int | None = await asyncio.wrap_future(self._writer.submit(request))
        if reservation is None:
            raise BudgetExhausted(f"the budget of run {self._ticket.run_id} is exhausted")
        return reservation

    async def settle(self, reservation: int, call: JudgeCall) -> None:
        """Book what a call really cost; it is committed when this returns."""
        self._calls.append(call)
        if reservation == UNRESERVED and call.cached:
            self.free_calls.append(call)
            return
        settlement = Settlement(self._ticket, reservation or None, call)
        await _written(self._writer.submit(settlement))

    async def release(self, reservation: int) -> None:
        """Void the reservation of a call that was not made."""
        if reservation != UNRESERVED:
            await _written(self._writer.submit(Release(reservation)))

    def earlier(self, request_digest: str) -> JudgeCall | None:
        """A call that this trial already paid for before its driver died."""
        return self._earlier.get(request_digest)


async def _written(future: Future[Any]) -> None:
    """Wait until a record is committed; who is cut off meanwhile leaves it to the writer."""
    writing = asyncio.wrap_future(future)
    writing.add_done_callback(asyncio.Future.exception)
    await asyncio.shield(writing)
