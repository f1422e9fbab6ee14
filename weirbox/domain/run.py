"""What a run looks like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from weirbox.domain.base import Frozen
from weirbox.domain.words import RunKind, RunStatus


class Progress(Frozen):
    """Counts of a run's trials, derived from its rows.

    Always ``planned = scored + unscored + errored + skipped + pending``.
    """

    planned: int = 0
    executed: int = 0
    judged: int = 0
    exported: int = 0
    scored: int = 0
    unscored: int = 0
    errored: int = 0
    skipped: int = 0
    pending: int = 0
    cached: int = 0


class Verdicts(Frozen):
    """Judged trials by verdict; ``fail`` and ``pass`` are as in the JSON."""

    passed: int = Field(default=0, serialization_alias="pass")
    failed: int = Field(default=0, serialization_alias="fail")
    none: int = 0


class Dispositions(Frozen):
    """Judged trials by disposition."""

    clean: int = 0
    review: int = 0
    quarantined: int = 0


class RunSummary(Frozen):
    """A run at a glance: the documented JSON of the CLI and the API.

    Attributes:
        finalizing: Completed, but not yet finalized.
        cost_usd: Of all judge calls, those whose verdict did not stand included.
        unpriced_calls: Paid calls of unknown price, which `cost_usd` does not have.
        metrics: By name, from the scorecard once the run is finalized.
    """

    run_id: str
    suite: str
    kind: RunKind
    status: RunStatus
    reason: str = ""
    finalizing: bool = False
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    finalized_at: datetime | None = None
    dataset: str
    dataset_digest: str
    progress: Progress
    verdicts: Verdicts
    dispositions: Dispositions
    cost_usd: float = 0.0
    calls: int = 0
    unpriced_calls: int = 0
    budget_usd: float | None = None
    budget_calls: int | None = None
    reserved_usd: float = 0.0
    metrics: dict[str, Any] = Field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, with the names that are documented."""
        return self.model_dump(mode="json", by_alias=True)
