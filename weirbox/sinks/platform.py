"""What sinks that are platforms have in common: one trial is one trace with its scores.

Sending is safe to repeat: every id is made from the judged trial. It never raises and its
time is bounded; a platform that is down or slow is left alone for a while (`Circuit`), so
that it never holds a run up. What it did not take has its outcome, and can be sent again.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from weirbox.domain import exporting as spec_of
from weirbox.domain.seams import ExportOutcome, Probe, ReadSecret, RunHeader, TrialExport
from weirbox.domain.words import ExportStatus, ProbeState
from weirbox.sinks.circuit import SLOW_S, Circuit
from weirbox.sinks.wire import Refused, SecretTrouble, Wire, within

PROBE_S = 10.0
"""How long a platform may take to answer when it is asked whether it can be used."""

Spec = TypeVar("Spec", bound=spec_of.PlatformSink)
Place = TypeVar("Place")


@dataclass(frozen=True)
class Delivery:
    """What a platform took of a trial.

    Attributes:
        url: Where people look at it.
        left_out: What it did not take, part by part.
    """

    url: str | None = None
    left_out: tuple[Refused, ...] = ()

    def without(self, left_out: Sequence[Refused]) -> Delivery:
        """The same with more that was left out."""
        return replace(self, left_out=(*self.left_out, *left_out))


class PlatformSink(ABC, Generic[Spec, Place]):
    """A platform as a sink.

    `Place` is what is known of where in the platform trials go, found or made before the
    first one.
    """

    def __init__(self, spec: Spec, read_secret: ReadSecret) -> None:
        self._spec = spec
        self._wire = Wire(
            spec.url, read_secret, headers=spec.headers, credentials=self._credentials
        )
        self._circuit = Circuit()
        self._warm = False
        self._run: RunHeader | None = None
        self._preparing: asyncio.Task[Place] | None = None

    @property
    def name(self) -> str:
        """The sink's name in the suite."""
        return self._spec.name

    async def set_up(self, run: RunHeader) -> None:
        """Note the run; its place is found or made with the first trial, so that a platform
        that is down does not keep the run from starting. Safe to run again."""
        self._forget_place()
        self._run = run

    async def send(self, trial: TrialExport) -> ExportOutcome:
        """Send one trial; sending it again changes no count. Never raises."""
        run = self._run
        if run is None or run.run_id != trial.run_id:
            return _failed(f"it is not set up for run {trial.run_id!r}")
        if not self._circuit.admits():
            return _failed(self._left_alone())
        limit = min(SLOW_S, self._spec.timeout_s) if self._circuit.is_open else self._spec.timeout_s
        try:
            return await self._sent(trial, run, limit)
        except asyncio.CancelledError:
            self._circuit.came_to_nothing()
            raise
        except SecretTrouble as error:
            self._circuit.came_to_nothing()
            return _failed(str(error))
        except Refused as error:
            self._judge(error)
            return _failed(str(error))
        except Exception as error:  # noqa: BLE001 - a trial may hold anything
            self._circuit.came_to_nothing()
            return _failed(f"{type(error).__name__}: {error}")

    async def probe(self) -> Probe:
        """Ask whether trials could be sent, within ten seconds. Never raises."""
        try:
            await within(PROBE_S, self._ask(), self._spec.url)
        except SecretTrouble as error:
            return Probe(ProbeState.AUTH, str(error))
        except Refused as error:
            if error.unauthorized:
                return Probe(ProbeState.AUTH, str(error))
            state = ProbeState.UNREACHABLE if error.status is None else ProbeState.ERROR
            return Probe(state, str(error))
        except Exception as error:  # noqa: BLE001 - an answer may be anything
            return Probe(ProbeState.ERROR, f"{type(error).__name__}: {error}")
        return Probe(ProbeState.OK, self._spec.url)

    async def complete(self) -> None:
        """Nothing is left to do: each trial was whole when it was sent."""

    async def aclose(self) -> None:
        """Close the connections."""
        self._forget_place()
        await self._wire.aclose()

    # --- what each platform does its own way ------------------------------------------

    @abstractmethod
    async def _prepare(self, run: RunHeader) -> Place:
        """Find or make where the run's trials go. Safe to run twice and at once."""

    @abstractmethod
    async def _deliver(self, trial: TrialExport, run: RunHeader, place: Place) -> Delivery:
        """Send a trial. Raises `Refused` when its trace is not taken."""

    @abstractmethod
    async def _ask(self) -> None:
        """Ask for something that needs the credentials, and changes nothing."""

    def _credentials(self, read_secret: ReadSecret) -> Mapping[str, str]:
        """The headers that the platform tells its users by."""
        return {}

    def _scope(self, run: RunHeader) -> str | None:
        """The experiment or project that the run's trials go to."""
        return None

    # --- what they share --------------------------------------------------------------

    def _attached_to(self, trial: TrialExport, run: RunHeader) -> str | None:
        """The id of the trace that the scores belong to, where it is here already."""
        source = trial.source_trace
        if source is None:
            return None
        here = (self._spec.kind, self._spec.url, self._scope(run))
        there = (source.platform, source.base_url, source.scope)
        return source.trace_id if here == there else None

    async def _all(self, sending: Mapping[str, Coroutine[Any, Any, object]]) -> list[Refused]:
        """Send the parts of a trial at once.

        Returns:
            What was refused, with the names of the parts in front.
        """
        answers = await asyncio.gather(*sending.values(), return_exceptions=True)
        refused = []
        for name, answer in zip(sending, answers, strict=True):
            if isinstance(answer, Refused):
                refused.append(answer.about(f"score {name!r}"))
            elif isinstance(answer, BaseException):
                raise answer
        return refused

    async def _sent(self, trial: TrialExport, run: RunHeader, limit: float) -> ExportOutcome:
        """Send, and note how it went; the first trials may take long, since servers load what
        they need when it is first asked for."""
        begun = time.monotonic()
        place = await within(limit, self._ready(run), "its set-up")
        started, warm = time.monotonic(), self._warm
        left = limit - (started - begun)
        delivery = await within(left, self._deliver(trial, run, place), "the trial")
        took, self._warm = time.monotonic() - started, True
        if down := next((part for part in delivery.left_out if part.of_platform), None):
            self._judge(down)
        elif took > SLOW_S and warm:
            self._circuit.went_badly(f"it took {took:.1f} s for one trial")
        else:
            self._circuit.went_well()
        if not delivery.left_out:
            return ExportOutcome(ExportStatus.SUCCEEDED, url=delivery.url)
        first, more = delivery.left_out[0], len(delivery.left_out) - 1
        message = f"{first} (and {more} more)" if more else str(first)
        return ExportOutcome(ExportStatus.PARTIAL, url=delivery.url, message=message)

    async def _ready(self, run: RunHeader) -> Place:
        """The place, found or made once; a failure is tried again by the next trial."""
        if self._preparing is None or _has_failed(self._preparing):
            self._preparing = asyncio.ensure_future(self._prepare(run))
        return await asyncio.shield(self._preparing)

    def _forget_place(self) -> None:
        task, self._preparing = self._preparing, None
        if task is not None and not _has_failed(task):
            task.cancel()

    def _judge(self, error: Refused) -> None:
        """Note what a refusal says of the platform: one of this trial alone says it is well."""
        if error.of_platform:
            self._circuit.went_badly(str(error))
        else:
            self._circuit.went_well()

    def _left_alone(self) -> str:
        left = self._circuit.seconds_left
        return (
            f"{self._circuit.why}; it is left alone for {left:.0f} s, as the run does not wait "
            "for it: `weirbox export-retry` sends what is missing"
        )


def _failed(why: str) -> ExportOutcome:
    return ExportOutcome(ExportStatus.FAILED, message=why)


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
