"""What a suite says about rules."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from weirbox.domain.base import Frozen
from weirbox.domain.patterns import PatternText
from weirbox.domain.references import FunctionRef
from weirbox.domain.values import earlier, parse_moment
from weirbox.domain.words import ProposedAction

Path = Annotated[str, Field(min_length=1)]
"""A dot path, such as ``items.0.price``."""

FIELD = "field:"
"""Stands before the path of another field where a date is expected."""

NOW = "now"


class RuleBase(Frozen):
    """What all rules have in common.

    A value that is missing breaks every rule but where `when` leaves it out.

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
    when: Path | None = None


class Required(RuleBase):
    """Every path is present, not null, and not an empty or blank text."""

    kind: Literal["required"]
    paths: tuple[Path, ...] = Field(min_length=1)


class OfType(RuleBase):
    """The value has a JSON type; booleans are no numbers, 1.0 is an integer."""

    kind: Literal["type"]
    path: Path
    type: Literal["string", "number", "integer", "boolean", "object", "array", "null"]


class InRange(RuleBase):
    """The number lies between `at_least` and `at_most`, both inclusive."""

    kind: Literal["range"]
    path: Path
    at_least: float | None = Field(default=None, allow_inf_nan=False)
    at_most: float | None = Field(default=None, allow_inf_nan=False)

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError(f"rule {self.name!r} needs 'at_least' or 'at_most'")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(
                f"rule {self.name!r}: no number is at least {self.at_least:g} "
                f"and at most {self.at_most:g}"
            )
        return self


class Matches(RuleBase):
    """The whole text matches a regular expression."""

    kind: Literal["regex"]
    path: Path
    pattern: PatternText


class Allowed(RuleBase):
    """The value is one of a list; types count, so 1 is not "1"."""

    kind: Literal["allowed"]
    path: Path
    values: tuple[JsonValue, ...] = Field(min_length=1)


class DateSanity(RuleBase):
    """The text is an ISO date, or date and time, and lies between two.

    Times without a zone count as UTC; a day is compared with a time by that
    time's own calendar day.

    Attributes:
        not_before: An ISO date or time, the path of another field as
            ``field:PATH``, or ``now``, the moment of judging.
        not_after: The same.
    """

    kind: Literal["date"]
    path: Path
    not_before: str | None = None
    not_after: str | None = None

    @field_validator("not_before", "not_after", mode="before")
    @classmethod
    def _yaml_reads_dates(cls, bound: object) -> object:
        return bound.isoformat() if isinstance(bound, date) else bound

    @field_validator("not_before", "not_after")
    @classmethod
    def _bound_is_known(cls, bound: str | None) -> str | None:
        if bound is None or bound == NOW or bound.removeprefix(FIELD) not in ("", bound):
            return bound
        try:
            parse_moment(bound)
        except ValueError as error:
            raise ValueError(
                f"{bound!r} is neither an ISO date, nor 'field:PATH', nor 'now': {error}"
            ) from error
        return bound

    @model_validator(mode="after")
    def _bounds_leave_room(self) -> Self:
        bounds = (self.not_before, self.not_after)
        if any(bound is None or bound == NOW or bound.startswith(FIELD) for bound in bounds):
            return self
        first, last = (parse_moment(str(bound)) for bound in bounds)
        if earlier(last, first):
            raise ValueError(
                f"rule {self.name!r}: nothing is not before {self.not_before} "
                f"and not after {self.not_after}"
            )
        return self


class UniqueInRun(RuleBase):
    """No other case of the run has the same value here; trials of one case share it."""

    kind: Literal["unique"]
    path: Path

    @model_validator(mode="after")
    def _looks_at_records(self) -> Self:
        if self.on != "record":
            raise ValueError(
                f"rule {self.name!r}: kind 'unique' compares the records of a plan; "
                "outputs are not known when it is made"
            )
        return self


class Reference(RuleBase):
    """Compares two fields of the record (or of the output).

    Order is between two numbers, two ISO dates, or two other texts; ``in`` means an
    item of a list, a key of an object, or a part of a text.
    """

    kind: Literal["reference"]
    path: Path
    to: Path
    relation: Literal[
        "equal", "different", "less", "less-or-equal", "greater", "greater-or-equal", "in"
    ]


class PythonRule(RuleBase):
    """A function ``f(record) -> None or a message``, named ``module:name`` or ``file.py:name``."""

    kind: Literal["python"]
    function: FunctionRef


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
