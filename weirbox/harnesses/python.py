"""A function as the system under test."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from weirbox.domain.case import Case
from weirbox.domain.seams import Handle, TrialContext, Workshop
from weirbox.domain.spec import PythonHarness
from weirbox.domain.trace import Observation, StageError
from weirbox.domain.words import ErrorKind
from weirbox.errors import USER_FAULTS, HarnessError
from weirbox.functions import load_function

_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
_DETAIL = 8000


@dataclass(frozen=True)
class _Ended:
    """How a call of the function ended; an error is a value here, whatever it is."""

    value: Any = None
    error: BaseException | None = None


class Python:
    """Calls a function, ``f(case)`` or ``f(case, context)``; see `PythonHarness`."""

    needs_compute = False

    def __init__(self, spec: PythonHarness, workshop: Workshop) -> None:
        self._spec = spec
        self._function = load_function(spec.function, workshop)
        self._takes_context = _takes_two(self._function)

    async def run(self, case: Case, *, handle: Handle | None, context: TrialContext) -> Observation:
        """Call the function.

        Async functions are awaited, others run in a thread of their own. On a time-out
        the former is cancelled; the latter cannot be, and its result is dropped.

        Raises:
            HarnessError: When it raises, or returns what is not JSON.
        """
        arguments = (case, context) if self._takes_context else (case,)
        started = time.perf_counter()
        call = asyncio.ensure_future(_settle(self._function, arguments))
        try:
            done, _ = await asyncio.wait({call}, timeout=self._spec.timeout_s)
        finally:
            call.cancel()
        duration = time.perf_counter() - started
        if not done:
            return Observation(
                duration=duration, correlation=context.correlation, error=self._late()
            )
        return self._observation(_ended(call), duration, context)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _late(self) -> StageError:
        return StageError(
            kind=ErrorKind.HARNESS_TIMEOUT,
            message=f"function {self._spec.function!r} did not return within "
            f"{self._spec.timeout_s:g} s",
        )

    def _observation(self, ended: _Ended, duration: float, context: TrialContext) -> Observation:
        if ended.error is not None:
            raise HarnessError(
                f"{type(ended.error).__name__}: {ended.error}",
                detail="".join(traceback.format_exception(ended.error))[-_DETAIL:],
            ) from ended.error
        if isinstance(ended.value, Observation):
            update = {"duration": duration, "correlation": context.correlation}
            return ended.value.model_copy(update=update)
        try:
            output = _JSON.validate_python(ended.value)
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise HarnessError(
                f"function {self._spec.function!r} returned {type(ended.value).__name__!r}, "
                f"which is not JSON{f' at {place}' if place else ''}: return text, numbers, "
                "lists, dicts or an Observation"
            ) from None
        return Observation(output=output, duration=duration, correlation=context.correlation)


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a second positional argument can be given."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _ended(call: asyncio.Task[_Ended]) -> _Ended:
    """The task's result; a function that cancels itself has raised."""
    if call.cancelled():
        return _Ended(error=RuntimeError("the function was cancelled from inside"))
    return call.result()


async def _settle(function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Ended:
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )
    try:
        if is_async:
            return _Ended(await function(*arguments))
        ended = await _in_thread(function, arguments)
        if ended.error is None and inspect.isawaitable(ended.value):
            return _Ended(await ended.value)
        return ended
    except USER_FAULTS as error:
        return _Ended(error=error)


def _in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Awaitable[_Ended]:
    """Call in a new daemon thread: one that never returns blocks no pool and no exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Ended] = loop.create_future()
    surroundings = contextvars.copy_context()

    def settle(ended: _Ended) -> None:
        if not future.done():
            future.set_result(ended)

    def body() -> None:
        try:
            ended = _Ended(surroundings.run(function, *arguments))
        except BaseException as error:  # noqa: BLE001
            ended = _Ended(error=error)
        try:
            loop.call_soon_threadsafe(settle, ended)
        except RuntimeError:  # the loop is closed: nobody waits for this any more
            return

    threading.Thread(target=body, name="weirbox-harness", daemon=True).start()
    return future
