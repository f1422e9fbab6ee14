"""The parameters of the flows: small, typed, and shown as forms in the Prefect UI."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from weirbox.domain.base import Frozen
from weirbox.domain.run import Origin
from weirbox.domain.words import RunKind


class EvaluateRequest(Frozen):
    """What to evaluate: a suite to plan a run of, or a run that is planned."""

    suite: str | None = Field(
        default=None,
        title="Suite",
        description="Name of a registered suite, or absolute path of a suite file",
    )
    run_id: str | None = Field(
        default=None, title="Run", description="Instead of a suite: a run that is planned already"
    )
    kind: RunKind = Field(
        default=RunKind.FULL,
        title="Kind",
        description="full: every current case; preview: a sample; delta: some cases",
    )
    cases: tuple[str, ...] | None = Field(
        default=None, title="Cases", description="Delta: the ids of the cases"
    )
    since: str | None = Field(
        default=None,
        title="Since",
        description="Delta: the cases that are new or changed since this run, or 'latest'; "
        "or 'any': that no run of the suite has taken",
    )
    size: int | None = Field(
        default=None, ge=1, title="Size", description="Preview: how many cases"
    )
    origin: Origin = Field(
        default=Origin(),
        title="Origin",
        description="What asks for the run; a newer run of the same pull request and suite "
        "replaces an older one",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.suite is None) == (self.run_id is None):
            raise ValueError("give either 'suite' or 'run_id'")
        return self

    @property
    def label(self) -> str:
        """What a person reads in the Prefect UI."""
        return self.run_id or f"{self.suite} · {self.kind}"


class DriveRequest(Frozen):
    """Which run to drive, beside whoever drives it already."""

    run_id: str = Field(title="Run", description="The run's id")
    dispatch: int | None = Field(
        default=None,
        title="Dispatch",
        description="Under which number the coordinator asked for this driver; empty by hand",
    )


class FinalizeRequest(Frozen):
    """Which completed run to finalize."""

    run_id: str = Field(title="Run", description="The run's id")
