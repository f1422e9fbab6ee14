"""How a suite names a user's function."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def _checked(reference: str) -> str:
    place, _, name = reference.rpartition(":")
    module = place.split(".")
    if not (place.endswith(".py") or all(part.isidentifier() for part in module)):
        raise ValueError(f"function {reference!r}: write 'module:name' or 'file.py:name'")
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"function {reference!r}: {name!r} is no name of a function")
    return reference


FunctionRef = Annotated[str, AfterValidator(_checked)]
"""``module:name`` or ``file.py:name``; checked for its shape when the suite is read."""
