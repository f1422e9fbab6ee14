"""What harnesses put into templates, and what they must not give away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from weirbox.domain.case import Case
from weirbox.domain.seams import ReadSecret
from weirbox.domain.template import Missing
from weirbox.domain.words import ErrorKind
from weirbox.errors import HarnessError, WeirboxError

T = TypeVar("T")

_SHORTEST_SECRET = 4
"""Shorter values are no secrets, and replacing them would garble what is shown."""


def case_values(case: Case, trial: int) -> dict[str, Any]:
    """The values of a harness's templates; the target is not among them."""
    return {
        "case": {"id": case.id, "input": case.input, "record": case.record},
        "trial": trial,
    }


def filled(fill: Callable[..., T], template: Any, values: dict[str, Any], *, where: str) -> T:
    """Fill a template, and say where it stands when a value is missing.

    Raises:
        HarnessError: Of kind `HARNESS_ERROR`.
    """
    try:
        return fill(template, values)
    except Missing as error:
        raise HarnessError(
            f"the harness's {where} names {error.args[0]!r}, which case "
            f"{values['case']['id']!r} does not have"
        ) from None


def read_secret(read: ReadSecret, name: str) -> str:
    """The value of a secret. Raises `HarnessError` of kind `MISSING_SECRET`."""
    try:
        return read(name)
    except WeirboxError as error:
        raise HarnessError(str(error), kind=ErrorKind.MISSING_SECRET) from None


def redact(text: str, secrets: Iterable[str]) -> str:
    """Take the values of secrets out of a text, such as a reply that echoes them."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "[secret]")
    return text
