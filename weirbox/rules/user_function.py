"""Rules of kind python: a user's function looks at the record."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from weirbox.domain.ruling import PythonRule
from weirbox.domain.seams import Workshop
from weirbox.errors import SuiteError
from weirbox.functions import load_function
from weirbox.rules.base import BrokenBy


def user_function(spec: PythonRule, workshop: Workshop) -> BrokenBy:
    """The function gives a message about what is wrong, or None.

    Raises:
        SuiteError: When the function cannot be loaded, or is async.
    """
    function = load_function(spec.function, workshop)
    if inspect.iscoroutinefunction(function):
        raise SuiteError(
            f"rule {spec.name!r}: {spec.function} is async; a rule is decided at once, "
            "without waiting: write a plain function, or a judge"
        )

    def broken_by(document: Any, twin: str | None) -> str | None:
        said = function(copy.deepcopy(document))
        if said is None or (isinstance(said, str) and said.strip()):
            return said
        raise TypeError(
            f"{spec.function} returned {said!r:.80}; return None, or a message of what is wrong"
        )

    return broken_by
