"""Rules decide deterministically whether a record is worth a judge's money."""

from __future__ import annotations

from weirbox.domain.ruling import (
    Allowed,
    DateSanity,
    InRange,
    Matches,
    OfType,
    PythonRule,
    Reference,
    Required,
    RuleSpec,
    UniqueInRun,
)
from weirbox.domain.seams import Rule, Workshop
from weirbox.rules.base import DeclaredRule
from weirbox.rules.fields import allowed, in_range, matches, of_type, required
from weirbox.rules.findings import RuleFinding, apply_all, finding_to_score
from weirbox.rules.relations import date_sanity, reference
from weirbox.rules.uniqueness import unique, unique_value
from weirbox.rules.user_function import user_function


def build(spec: RuleSpec, workshop: Workshop) -> Rule:
    """Make the rule that a suite describes.

    Raises:
        SuiteError: When a user's function cannot be loaded, or is async.
    """
    match spec:
        case Required():
            return DeclaredRule(spec, required(spec))
        case OfType():
            return DeclaredRule(spec, of_type(spec))
        case InRange():
            return DeclaredRule(spec, in_range(spec))
        case Matches():
            return DeclaredRule(spec, matches(spec))
        case Allowed():
            return DeclaredRule(spec, allowed(spec))
        case DateSanity():
            return DeclaredRule(spec, date_sanity(spec))
        case UniqueInRun():
            return DeclaredRule(spec, unique(spec))
        case Reference():
            return DeclaredRule(spec, reference(spec))
        case PythonRule():
            return DeclaredRule(spec, user_function(spec, workshop))


__all__ = ["RuleFinding", "apply_all", "build", "finding_to_score", "unique_value"]
