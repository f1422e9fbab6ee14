"""The names that suites give to things, and where a trace stands that was pulled."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from weirbox.domain.base import Frozen

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(
            "a name is 1 to 100 letters, digits, '.', '_' or '-', starting with a letter or digit"
        )
    return value


Name = Annotated[str, AfterValidator(_name)]


class SourceTrace(Frozen):
    """Where the trace of a trial stands that was pulled from a platform.

    Attributes:
        platform: The kind of the trace source: otel, mlflow, phoenix, langfuse, langsmith.
        base_url: The platform's address, as the suite has it.
        scope: The experiment or project that it stands in, where the platform has such.
        trace_id: As the platform has it.
        url: A link for people, where there is one.
    """

    platform: str
    base_url: str
    scope: str | None = None
    trace_id: str
    url: str | None = None
