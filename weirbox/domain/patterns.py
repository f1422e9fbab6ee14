"""Regular expressions that cannot hold a trial up.

The `regex` package reads the syntax of `re` and can give a search up after a
time limit, which neither `re` nor a thread around it can.
"""

from __future__ import annotations

from typing import Annotated

import regex
from pydantic import AfterValidator

SEARCH_LIMIT_S = 1.0
"""Seconds one search may take: far above any sane one, far below a stalled driver."""


class PatternTimeout(Exception):
    """A search was given up at its time limit."""


class BadPattern(ValueError):
    """A text is no regular expression."""


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> regex.Pattern[str]:
    """Compile a regular expression.

    Raises:
        BadPattern: When it is none.
    """
    try:
        return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, RecursionError) as error:
        raise BadPattern(f"{pattern!r} is no regular expression: {error}") from error


def found(pattern: str, text: str, *, ignore_case: bool = False, whole: bool = False) -> bool:
    """Whether a pattern is found in a text.

    Other threads run meanwhile.

    Args:
        pattern: A regular expression.
        text: Where to look.
        ignore_case: Whether upper and lower case are the same.
        whole: Whether the whole text must match.

    Raises:
        BadPattern: When `pattern` is no regular expression.
        PatternTimeout: After `SEARCH_LIMIT_S`.
    """
    compiled = compile_pattern(pattern, ignore_case=ignore_case)
    look = compiled.fullmatch if whole else compiled.search
    try:
        return look(text, timeout=SEARCH_LIMIT_S, concurrent=True) is not None
    except TimeoutError as error:
        raise PatternTimeout(
            f"the pattern {pattern!r} took more than {SEARCH_LIMIT_S:g} s on a text of "
            f"{len(text)} characters; write it without nested repeats"
        ) from error


def _checked(pattern: str) -> str:
    if not pattern:
        raise ValueError("an empty pattern matches everything")
    compile_pattern(pattern)
    return pattern


PatternText = Annotated[str, AfterValidator(_checked)]
"""A regular expression that is compiled when the suite is read."""
