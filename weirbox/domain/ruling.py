"""What a suite says about rules."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from weirbox.domain.base import Frozen
from weirbox.domain.words import ProposedAction


class RuleBase(Frozen):
    """What all rules have in common.

    Attributes:
        name: Unique within the suite.
        on: Whether the path is looked up in the record or in the (JSON) output.
        otherwise: What a record that breaks the rule gets: ``fail`` quarantines
            without paying for a judge, ``review`` escalates to the judges.
        check: The judge that a review escalates to; all judges if absent.
        propose: What is proposed when the rule fails.
        when: The rule holds only where this path is present and not null.
    """

    name: str = Field(min_length=1, max_length=100)
    on: Literal["record", "output"] = "record"
    otherwise: Literal["fail", "review"] = "fail"
    check: str | None = None
    propose: ProposedAction = ProposedAction.REVIEW
    when: str | None = None


class Required(RuleBase):
    """Every path is present, not null, and not an empty text."""

    kind: Literal["required"]
    paths: tuple[str, ...] = Field(min_length=1)


class OfType(RuleBase):
    """The value has a JSON type; booleans are no numbers, 1.0 is an integer."""

    kind: Literal["type"]
    path: str
    type: Literal["string", "number", "integer", "boolean", "object", "array", "null"]


class InRange(RuleBase):
    """The number lies between `at_least` and `at_most`, both inclusive."""

    kind: Literal["range"]
    path: str
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError(f"rule {self.name!r} needs 'at_least' or 'at_most'")
        return self


class Matches(RuleBase):
    """The whole text matches a regular expression."""

    kind: Literal["regex"]
    path: str
    pattern: str


class Allowed(RuleBase):
    """The value is one of a list; types count, so 1 is not "1"."""

    kind: Literal["allowed"]
    path: str
    values: tuple[JsonValue, ...] = Field(min_length=1)


class DateSanity(RuleBase):
    """The text is an ISO date or time, and lies between two.

    Attributes:
        not_before: An ISO date, or the path of another field as ``field:PATH``.
        not_after: The same; ``now`` is the moment of judging.
    """

    kind: Literal["date"]
    path: str
    not_before: str | None = None
    not_after: str | None = None


class UniqueInRun(RuleBase):
    """No other case of the run has the same value here; trials of one case share it."""

    kind: Literal["unique"]
    path: str


class Reference(RuleBase):
    """Compares two fields of the record."""

    kind: Literal["reference"]
    path: str
    to: str
    relation: Literal[
        "equal", "different", "less", "less-or-equal", "greater", "greater-or-equal", "in"
    ]


class PythonRule(RuleBase):
    """A function ``f(record) -> None or a message``, named ``module:name`` or ``file.py:name``."""

    kind: Literal["python"]
    function: str


RuleSpec = Annotated[
    Required
    | OfType
    | InRange
    | Matches
    | Allowed
    | DateSanity
    | UniqueInRun
    | Reference
    | PythonRule,
    Field(discriminator="kind"),
]
