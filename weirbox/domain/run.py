"""What a run looks like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field, field_validator

from weirbox.domain.base import Frozen, canonical_json
from weirbox.domain.words import AlertKind, RunKind, RunStatus


class Origin(Frozen):
    """What asked for a run; free text, shown and never interpreted but for `supersede_key`."""

    repository: str | None = None
    pull_request: str | int | None = None
    commit: str | None = None
    branch: str | None = None
    actor: str | None = None
    url: str | None = None

    @field_validator("pull_request", mode="before")
    @classmethod
    def _number_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def supersede_key(self, suite: str) -> str | None:
        """What a newer run of the same pull request and suite replaces; None without one."""
        if self.repository is None or self.pull_request is None:
            return None
        return canonical_json([self.repository, self.pull_request, suite])


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


class Alert(Frozen):
    """A threshold that a run has passed.

    Attributes:
        value: What was measured, where it is a number.
        threshold: What it was compared with.
    """

    kind: AlertKind
    message: str
    value: float | None = None
    threshold: float | None = None


class RunSummary(Frozen):
    """A run at a glance: the documented JSON of the CLI and the API.

    Attributes:
        finalizing: Completed, but not yet finalized.
        settled_at: When a run that was cancelled, superseded or failed had come to rest.
        waiting_since: Since when no worker has taken up any driver of a live run.
        stalls: How many times in a row the coordinator found nothing changed.
        managed: Whether the coordinator has it driven.
        parent: The run whose finished trials it carries over.
        cost_usd: Of all judge calls, those whose verdict did not stand included.
        unpriced_calls: Paid calls of unknown price, which `cost_usd` does not have.
        exports: By sink, how many trials it took, and how: once the run is finalized, or
            came to rest.
        alerts: Thresholds that the run has passed, the first one first.
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
    settled_at: datetime | None = None
    waiting_since: datetime | None = None
    stalls: int = 0
    managed: bool = False
    origin: Origin | None = None
    parent: str | None = None
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
    exports: dict[str, dict[str, int]] = Field(default_factory=dict)
    alerts: tuple[Alert, ...] = ()
    metrics: dict[str, Any] = Field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, with the names that are documented."""
        return self.model_dump(mode="json", by_alias=True)
