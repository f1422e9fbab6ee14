"""Collection: the trace of a trial, pulled from where the system under test has sent it.

Either in the execute stage, once compute is released, or in the judge stage. Safe to run
twice: pulling changes nothing at the platform.
"""

from __future__ import annotations

from typing import Any

from weirbox.domain.policy import POLICIES
from weirbox.domain.trace import Observation, TraceEvent
from weirbox.domain.tracing import ATTRIBUTE, TraceSpec, trace_id_of, traceparent_of
from weirbox.domain.words import Collect, Correlate, ErrorKind
from weirbox.pipeline.kit import Kit
from weirbox.traces.collecting import Collected, collect, unsaid


def correlation_env(spec: TraceSpec | None, correlation: str) -> dict[str, str]:
    """What carries a trial's correlation id to the system under test."""
    attribute = spec.attribute if spec is not None else ATTRIBUTE
    env = {
        "WEIRBOX_RUN_ID": correlation,
        "OTEL_RESOURCE_ATTRIBUTES": f"{attribute}={correlation}",
    }
    if spec is not None and spec.correlate is Correlate.ID:
        env |= {
            "WEIRBOX_TRACE_ID": trace_id_of(correlation),
            "TRACEPARENT": traceparent_of(correlation),
        }
    return env


def is_due(observation: Observation, kit: Kit, when: Collect) -> bool:
    """Whether a trial's trace is to be pulled now: nothing that never ran has sent one."""
    spec = kit.plan.suite.trace
    if spec is None or spec.collect is not when or observation.source is not None:
        return False
    return observation.error is None or POLICIES[observation.error.kind].grade


def lacks_trace(observation: Observation) -> bool:
    """Whether a trial is errored for nothing but its trace, which can be pulled again."""
    return observation.error is not None and observation.error.kind is ErrorKind.COLLECT


async def collected(observation: Observation, kit: Kit, when: Collect) -> Observation:
    """An observation with the trace of its trial.

    A trace that cannot be had is an error of the trial where it is collected in the execute
    stage; in the judge stage an event says so, and what was measured without it stands.
    """
    assert kit.trace_source is not None, "a suite that collects has a source"
    correlation = observation.correlation
    found = await collect(kit.trace_source, correlation, trace_id_of(correlation))
    error = None if lacks_trace(observation) else observation.error
    if when is Collect.JOB:
        error = error or found.error
    return observation.model_copy(update=_from_trace(observation, found) | {"error": error})


def _from_trace(observation: Observation, found: Collected) -> dict[str, Any]:
    usage = found.usage if found.usage.total_tokens is not None else observation.usage
    own = unsaid(observation.trace)
    return {
        "trace": (*own, *_behind(len(own), found.events)),
        "usage": usage,
        "model": found.model or observation.model,
        "source": found.trace,
    }


def _behind(known: int, events: tuple[TraceEvent, ...]) -> tuple[TraceEvent, ...]:
    """Events with the indexes of their parents, where they stand behind others."""
    return tuple(
        event if event.parent is None else event.model_copy(update={"parent": event.parent + known})
        for event in events
    )
