"""The parameters of the flows: small, typed, and shown as forms in the Prefect UI."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from weirbox.domain.base import Frozen
from weirbox.domain.words import RunKind


class EvaluateRequest(Frozen):
    """What to evaluate: a suite file to plan a run from, or a run that is planned."""

    suite: str | None = Field(default=None, description="Absolute path of a suite file")
    run_id: str | None = Field(default=None, description="A run that is planned already")
    kind: RunKind = RunKind.FULL
    cases: tuple[str, ...] | None = Field(default=None, description="Case ids of a delta run")
    since: str | None = Field(default=None, description="Delta: cases new since this run")
    size: int | None = Field(default=None, ge=1, description="How many cases a preview takes")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.suite is None) == (self.run_id is None):
            raise ValueError("give either 'suite' or 'run_id'")
        return self

    @property
    def label(self) -> str:
        """What a person reads in the Prefect UI."""
        return self.run_id or f"{self.suite} · {self.kind}"


class FinalizeRequest(Frozen):
    """Which completed run to finalize."""

    run_id: str
