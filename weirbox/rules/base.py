"""What all rules share: the document they look at, and what follows when it breaks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weirbox.domain.case import Case
from weirbox.domain.ruling import RuleBase
from weirbox.domain.score import Proposal
from weirbox.domain.seams import RuleResult
from weirbox.domain.template import Missing, lookup
from weirbox.domain.trace import Observation
from weirbox.domain.values import NotJson, parse_json, show
from weirbox.domain.words import RuleOutcome

BrokenBy = Callable[[Any, str | None], str | None]
"""Tells from a document, and the id of its twin, how it breaks a rule; None if it does not."""


class Broken(Exception):
    """A document breaks a rule; the message says how."""


@dataclass(frozen=True)
class DeclaredRule:
    """A rule as a suite describes it."""

    spec: RuleBase
    broken_by: BrokenBy

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.spec.name

    @property
    def check(self) -> str | None:
        """The judge that a review escalates to; None for all."""
        return self.spec.check

    def apply(self, case: Case, observation: Observation, twin: str | None) -> RuleResult:
        """Decide.

        Raises:
            PatternTimeout: When a pattern takes too long.
            Exception: Whatever a user's function raises.
        """
        try:
            document = self._document(case, observation)
            if self.spec.when is not None and not is_present(document, self.spec.when):
                return RuleResult(RuleOutcome.PASS)
            message = self.broken_by(document, twin)
        except Broken as broken:
            message = str(broken)
        if message is None:
            return RuleResult(RuleOutcome.PASS)
        proposal = Proposal(check=self.name, action=self.spec.propose, message=message)
        return RuleResult(RuleOutcome(self.spec.otherwise), message, proposal)

    def _document(self, case: Case, observation: Observation) -> Any:
        if self.spec.on == "record":
            return case.record
        output = observation.output
        if output is None:
            raise Broken("there is no output")
        if not isinstance(output, str):
            return output
        try:
            return parse_json(output)
        except NotJson as error:
            raise Broken(f"the output is not JSON: {show(output)} ({error})") from error


def is_present(document: Any, path: str) -> bool:
    """Whether a path leads to a value that is not null."""
    try:
        return lookup(document, path) is not None
    except Missing:
        return False


def value_at(document: Any, path: str) -> Any:
    """The value at a path.

    Raises:
        Broken: When it is missing.
    """
    try:
        return lookup(document, path)
    except Missing as missing:
        raise Broken(f"{path} is missing") from missing
