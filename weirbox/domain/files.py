"""Files that a suite lays into compute."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

from weirbox.domain.base import Frozen
from weirbox.domain.template import CASE_SLOTS, GRADER_SLOTS, refuse_unknown_slots


class FileSource(Frozen):
    """A file whose content is laid as it is: no template, any bytes.

    Attributes:
        path: Relative to the suite file; its content is frozen with the plan.
    """

    path: str


Files = dict[str, str | FileSource]
"""By their place in the work folder: a text that is a template, or where the file is."""


def _check(files: Files, slots: tuple[str, ...]) -> Files:
    for place, content in files.items():
        parts = PurePosixPath(place).parts
        if not parts or "\0" in place or place.startswith("/") or ".." in parts:
            raise ValueError(
                f"{place!r} is no place in the work folder: give a relative path without '..'"
            )
        if isinstance(content, str):
            refuse_unknown_slots(content, slots, where=f"file {place!r}")
    return files


CaseFiles = Annotated[Files, AfterValidator(lambda files: _check(files, CASE_SLOTS))]
"""Laid before the harness starts: templates over the case, without its target."""

GraderFiles = Annotated[Files, AfterValidator(lambda files: _check(files, GRADER_SLOTS))]
"""Laid after the harness has ended: templates over the case and the output."""
