"""What graders that run in compute share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weirbox.domain.base import storable
from weirbox.domain.case import Case
from weirbox.domain.template import Missing, fill
from weirbox.domain.trace import Observation

MISSING_EXECUTABLE = 127
"""The exit status that says that a program was not found."""

NOT_EXECUTABLE = 126
"""The exit status that says that a program was found and could not be started."""

TAIL = 4000
"""Characters of output that a score keeps: enough for a failing test's message."""

EXCERPT = 300
"""Characters of output that fit into a rationale."""


class TemplateGap(Exception):
    """A template names something that the case does not have."""


def template_values(case: Case, observation: Observation) -> dict[str, Any]:
    """What templates of graders may name."""
    return {
        "case": {
            "id": case.id,
            "input": case.input,
            "target": case.target,
            "record": case.record,
        },
        "output": observation.output,
    }


def fill_in(template: str, values: Mapping[str, Any], *, where: str) -> str:
    """Fill a template.

    Raises:
        TemplateGap: When it names something that is not there.
    """
    try:
        return fill(template, values)
    except Missing as gap:
        case_id = values["case"]["id"]
        raise TemplateGap(
            f"{where} names {gap.args[0]!r}, which case {case_id!r} does not have"
        ) from gap


def fill_files(files: Mapping[str, str | bytes], values: Mapping[str, Any]) -> dict[str, bytes]:
    """Fill the templates of a grader's files; bytes stay as they are.

    Raises:
        TemplateGap: When one names something that is not there.
    """
    return {
        path: content
        if isinstance(content, bytes)
        else encode(fill_in(content, values, where=f"file {path!r}"))
        for path, content in files.items()
    }


def encode(text: str) -> bytes:
    """A text as UTF-8; lone surrogates become escapes rather than an error."""
    return text.encode("utf-8", "backslashreplace")


def tail(*outputs: bytes) -> str:
    """The end of what a command wrote, as text that can be stored."""
    joined = "\n".join(
        text for output in outputs if (text := output.decode("utf-8", "backslashreplace").strip())
    )
    return storable(joined[-TAIL:])


def end_of(*outputs: bytes) -> str:
    """The end of what a command wrote, in one line."""
    return " ".join(tail(*outputs).split())[-EXCERPT:] or "no output"


def last_line(*outputs: bytes) -> str:
    """The last line of the last output that has one."""
    lines = tail(*outputs).splitlines()
    return lines[-1].strip() if lines else "no output"
