"""The frozen plan of a run."""

from __future__ import annotations

from pydantic import Field

from weirbox.domain.base import Frozen, digest
from weirbox.domain.case import DatasetVersion
from weirbox.domain.judging import Prompt
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunKind


class FrozenFile(Frozen):
    """A file the plan depends on, kept in the store by its digest."""

    path: str
    digest: str


class Plan(Frozen):
    """Everything a run needs besides its trials; nothing later reads the live suite.

    Attributes:
        suite: With every path absolute, judges that exist only, and their prompts resolved.
        prompts: The prompt of each judge, by the judge's name.
        files: Recordings and functions, as they were when the run was planned.
        skipped_judges: Judges the suite names that are not available, with the reason.
        twins: For each rule of kind unique: case id -> another case with the same value.
        folder: The folder of the suite file; relative functions are found from it.
    """

    suite: Suite
    kind: RunKind
    dataset: DatasetVersion
    prompts: dict[str, Prompt]
    files: tuple[FrozenFile, ...] = ()
    skipped_judges: dict[str, str] = Field(default_factory=dict)
    twins: dict[str, dict[str, str]] = Field(default_factory=dict)
    folder: str

    @property
    def harness_digest(self) -> str:
        """What identifies the system under test: the key of reuse across runs."""
        return digest(self.suite.harness.model_dump(mode="json") | {"files": self._harness_files()})

    def _harness_files(self) -> list[str]:
        return sorted(file.digest for file in self.files)


def entry_digest(*, case_id: str, content_digest: str, trial: int) -> str:
    """What identifies one (case, trial) of a plan, by content."""
    return digest([case_id, content_digest, trial])
