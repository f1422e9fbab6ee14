"""script-score: a user's function scores the trial."""

from __future__ import annotations

import asyncio
import inspect
import math
from dataclasses import dataclass
from typing import Any

from weirbox.domain.case import Case
from weirbox.domain.grading import ScriptScore
from weirbox.domain.score import Score, Value
from weirbox.domain.seams import Handle, Workshop
from weirbox.domain.trace import Observation
from weirbox.domain.words import Authority, Reason
from weirbox.errors import USER_FAULTS
from weirbox.functions import load_function
from weirbox.graders.base import CodeGrader


@dataclass(frozen=True)
class _Raised:
    """What the user's function raised."""

    error: BaseException


class ScriptScoreGrader(CodeGrader[ScriptScore]):
    """Calls ``f(case, observation)``; plain functions run in a thread."""

    family_authority = Authority.OBJECTIVE

    def __init__(self, spec: ScriptScore, workshop: Workshop) -> None:
        super().__init__(spec)
        self._function = load_function(spec.function, workshop)

    async def measure(
        self, case: Case, observation: Observation, handle: Handle | None
    ) -> list[Score]:
        """Call the function on a copy of the case, and read what it returns."""
        returned = await self._call(case.model_copy(deep=True), observation)
        if isinstance(returned, _Raised):
            return [self.broken(returned.error)]
        if not isinstance(returned, dict):
            return [self._read(returned, None)]
        if not returned:
            return [self.unscored(Reason.EMPTY, f"{self.spec.function} returned no scores")]
        return [self._read(value, key) for key, value in returned.items()]

    async def _call(self, case: Case, observation: Observation) -> Any:
        if not inspect.iscoroutinefunction(self._function):
            called = await asyncio.to_thread(self._contained, case, observation)
            if not inspect.isawaitable(called):
                return called
        else:
            called = self._function(case, observation)
        try:
            return await called
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            return _Raised(error)
        except USER_FAULTS as error:
            return _Raised(error)

    def _contained(self, case: Case, observation: Observation) -> Any:
        """Call in the thread.

        Nothing may leave the thread as an exception: `SystemExit` would end the
        event loop, and `StopIteration` would leave its future pending for ever.
        """
        try:
            return self._function(case, observation)
        except BaseException as error:  # noqa: BLE001
            return _Raised(error)

    def _read(self, returned: Any, key: str | None) -> Score:
        value = _plain(returned)
        if value is None:
            if returned is None:
                return self.unscored(Reason.EMPTY, f"{self.spec.function} returned None", key=key)
            return self.errored(
                Reason.GRADER_ERROR,
                f"{self.spec.function} returned a {type(returned).__name__}; "
                "return a number, a boolean, a text, or a dict of these",
                key=key,
            )
        if not _is_finite(value):
            return self.errored(
                Reason.OUT_OF_RANGE, f"{self.spec.function} returned {str(value)[:80]}", key=key
            )
        return self.scored(value, passed=self._passes(value), key=key)

    def _passes(self, value: Value) -> bool | None:
        if isinstance(value, bool):
            return value
        if self.spec.pass_at is None or isinstance(value, str):
            return None
        return value >= self.spec.pass_at


def _is_being_cancelled() -> bool:
    """Whether it is this task that is cancelled, not the user's code that says so."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _plain(value: Any) -> Value | None:
    """A value as its plain type (an array library's scalar as its own item), or None."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        value = item()
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    return None


def _is_finite(value: Value) -> bool:
    """Whether a number can be stored and averaged."""
    if isinstance(value, str):
        return True
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
