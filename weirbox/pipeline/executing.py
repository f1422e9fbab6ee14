"""The execute stage of one trial: provision, harness, quiesce, compute graders, release, collect.

Safe to run twice: nothing is shared between two executions but the case; what counts is
the row that is written afterwards, under the driver's claim.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weirbox import graders
from weirbox.domain.case import Case
from weirbox.domain.policy import POLICIES
from weirbox.domain.score import Score
from weirbox.domain.seams import Grader, Handle, TrialContext
from weirbox.domain.template import fill
from weirbox.domain.trace import Observation, StageError
from weirbox.domain.words import Collect, ErrorKind
from weirbox.errors import TrialError
from weirbox.pipeline.collecting import collected, correlation_env, is_due
from weirbox.pipeline.kit import Kit
from weirbox.store.rows import Ticket


@dataclass(frozen=True, kw_only=True)
class Executed:
    """What an execution came to.

    Attributes:
        scores: Of the graders that need compute.
        compute_s: Seconds from provisioning to release; None without compute.
    """

    observation: Observation
    scores: tuple[Score, ...] = ()
    compute_s: float | None = None
    cached: bool = False

    @property
    def error(self) -> StageError | None:
        """Why the execution failed, where it did."""
        return self.observation.error


def correlation_of(ticket: Ticket) -> str:
    """What tells this try at an execution from all others, those of lost claims included."""
    return f"{ticket.run_id}.{ticket.seq}.{ticket.token}.{ticket.attempt}"


async def execute(case: Case, ticket: Ticket, kit: Kit) -> Executed:
    """Execute one trial; every failure is a value."""
    correlation = correlation_of(ticket)
    if case.parse_error is not None:
        error = StageError(kind=ErrorKind.PARSE, message=case.parse_error.message)
        return Executed(observation=Observation(correlation=correlation, error=error))
    env = correlation_env(kit.plan.suite.trace, correlation)
    context = TrialContext(trial=ticket.trial, correlation=correlation, env=env)
    executed = await _executed(case, context, kit)
    if not is_due(executed.observation, kit, Collect.JOB):
        return executed
    observation = await collected(executed.observation, kit, Collect.JOB)
    return replace(executed, observation=observation)


async def _executed(case: Case, context: TrialContext, kit: Kit) -> Executed:
    correlation = context.correlation
    if kit.compute is None:
        return Executed(observation=await _observe(case, None, context, kit))
    started = time.perf_counter()
    spec = kit.plan.suite.compute
    try:
        handle = await kit.compute.provision(spec, correlation=correlation)
    except TrialError as error:
        return Executed(observation=_failed(correlation, error))
    try:
        observation, scores = await _in_compute(case, handle, context, kit)
    finally:
        await asyncio.shield(handle.release())
    return Executed(
        observation=observation, scores=tuple(scores), compute_s=time.perf_counter() - started
    )


async def _in_compute(
    case: Case, handle: Handle, context: TrialContext, kit: Kit
) -> tuple[Observation, list[Score]]:
    record = {"id": case.id, "input": case.input, "record": case.record}
    values = {"case": record, "trial": context.trial}
    try:
        await handle.put({path: _laid(part, values) for path, part in kit.files.items()})
        observation = await _observe(case, handle, context, kit)
        if observation.error and not POLICIES[observation.error.kind].grade:
            return observation, []
        await handle.quiesce()
        return observation, await _grade(kit.compute_graders, case, observation, handle)
    except TrialError as error:
        return _failed(context.correlation, error), []
    except (OSError, KeyError) as error:
        broken = TrialError(f"compute files: {error!r}", kind=ErrorKind.HARNESS_ERROR)
        return _failed(context.correlation, broken), []


async def _grade(
    chosen: Sequence[Grader], case: Case, observation: Observation, handle: Handle
) -> list[Score]:
    scores: list[Score] = []
    for grader in chosen:
        scores += await graders.grade_safely(grader, case, observation, handle)
    return scores


async def _observe(
    case: Case, handle: Handle | None, context: TrialContext, kit: Kit
) -> Observation:
    try:
        return await kit.harness.run(case, handle=handle, context=context)
    except TrialError as error:
        return _failed(context.correlation, error)


def _failed(correlation: str, error: TrialError) -> Observation:
    value = StageError(kind=error.kind, message=str(error), detail=error.detail)
    return Observation(correlation=correlation, error=value)


def _laid(content: str | bytes, values: Mapping[str, Any]) -> bytes:
    if isinstance(content, bytes):
        return content
    return fill(content, values).encode("utf-8", "backslashreplace")
