"""A user's function as a provider."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import traceback
from collections.abc import Callable
from typing import Any

from weirbox.domain.base import canonical_json
from weirbox.domain.judging import PythonProvider
from weirbox.domain.seams import JudgeReply, JudgeRequest, Workshop
from weirbox.domain.trace import Usage
from weirbox.domain.words import Reason
from weirbox.errors import ProviderError, SuiteError
from weirbox.functions import load_function
from weirbox.judges.providers.failures import timed_out


class PythonFunction:
    """Calls ``f(request) -> text, dict or JudgeReply``, plain (in a thread) or async.

    A function may raise `ProviderError` to say whether a retry makes sense.
    """

    def __init__(self, name: str, spec: PythonProvider, workshop: Workshop) -> None:
        self._name = name
        self._spec = spec
        self._workshop = workshop

    @property
    def name(self) -> str:
        """The name in the suite's ``providers``."""
        return self._name

    def bound_usd(self, request: JudgeRequest) -> float | None:
        """What every call costs."""
        return self._spec.cost_usd

    def preflight(self, model: str) -> str | None:
        """Why the function cannot be loaded, or None."""
        try:
            load_function(self._spec.function, self._workshop)
        except SuiteError as error:
            return f"provider {self._name!r}: {error}"
        return None

    async def aclose(self) -> None:
        """Nothing is open."""

    async def ask(self, request: JudgeRequest) -> JudgeReply:
        """Call the function once. Raises `ProviderError`, whatever the function raises."""
        paid = Usage(cost_usd=self._spec.cost_usd)
        who = f"provider {self._name!r} ({self._spec.function})"
        try:
            function = load_function(self._spec.function, self._workshop)
        except SuiteError as error:
            raise ProviderError(f"provider {self._name!r}: {error}") from error
        try:
            async with asyncio.timeout(self._spec.timeout_s) as limit:
                answer = await _call(function, request)
        except ProviderError:
            raise
        except Exception as error:
            if limit.expired():
                raise timed_out(self._spec.timeout_s, who=who, usage=paid) from None
            stack = "".join(traceback.format_exception(error))
            raise ProviderError(
                f"{who} raised {type(error).__name__}: {error}\n{stack}",
                reason=Reason.GRADER_ERROR,
                usage=paid,
            ) from error
        return self._reply(answer, request.model, paid, who)

    def _reply(self, answer: Any, model: str, paid: Usage, who: str) -> JudgeReply:
        if isinstance(answer, JudgeReply):
            usage = answer.usage.model_copy(update={"cost_usd": paid.cost_usd})
            return answer.model_copy(update={"usage": usage})
        if isinstance(answer, str):
            return JudgeReply(text=answer, usage=paid, model=model)
        if isinstance(answer, dict):
            try:
                text = canonical_json(answer)
            except (TypeError, ValueError, RecursionError) as error:
                message = f"{who} returned a dict that is no JSON: {error}"
                raise ProviderError(message, reason=Reason.GRADER_ERROR, usage=paid) from error
            return JudgeReply(text=text, usage=paid, model=model)
        raise ProviderError(
            f"{who} returned {type(answer).__name__}: return a text, a dict or a JudgeReply",
            reason=Reason.GRADER_ERROR,
            usage=paid,
        )


async def _call(function: Callable[..., Any], request: JudgeRequest) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(request)
    answer = await _in_thread(function, request)
    return await answer if inspect.isawaitable(answer) else answer


async def _in_thread(function: Callable[..., Any], request: JudgeRequest) -> Any:
    """Run in a thread of its own, which never keeps the process from ending.

    A pool would let calls that hang take the threads, and the time, of later ones.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(answer: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((answer, error))

    def run() -> None:
        answer, raised = None, None
        try:
            answer = context.run(function, request)
        except BaseException as error:  # noqa: BLE001
            raised = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, answer, raised)

    threading.Thread(target=run, name="weirbox-judge", daemon=True).start()
    answer, error = await done
    if isinstance(error, Exception):
        raise error
    if error is not None:
        raise RuntimeError(f"the function ended with {type(error).__name__}: {error}")
    return answer
