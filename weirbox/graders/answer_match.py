"""answer-match: the answer is compared with the target."""

from __future__ import annotations

import asyncio

from pydantic import JsonValue

from weirbox.domain.case import Case
from weirbox.domain.grading import AnswerMatch
from weirbox.domain.patterns import PatternTimeout, found
from weirbox.domain.score import Score
from weirbox.domain.values import NotJson, is_number, json_equal, parse_json, plain_text, show
from weirbox.domain.words import Reason
from weirbox.graders.base import ReferenceGrader, targets_of
from weirbox.graders.wording import normalise, numbers_in


class AnswerMatchGrader(ReferenceGrader[AnswerMatch]):
    """Passes when the answer matches the target, or any of a list of targets."""

    def targets(self, case: Case) -> list[JsonValue]:
        """The pattern where the suite gives one, else the case's targets.

        An empty text stands in every answer, so it is no target for a search.
        """
        if self.spec.pattern is not None:
            return [self.spec.pattern]
        targets = targets_of(case, self.spec.target)
        if self.spec.mode in ("contains", "regex"):
            return [target for target in targets if plain_text(target)]
        return targets

    async def compare(self, answer: JsonValue, targets: list[JsonValue]) -> Score:
        """Look for a target that matches."""
        try:
            matched = await asyncio.to_thread(self._matches, answer, targets)
        except PatternTimeout as error:
            return self.errored(Reason.TIMEOUT, str(error))
        wanted = show(targets[0]) if len(targets) == 1 else f"any of {show(targets)}"
        rationale = f"{show(answer)} {'matches' if matched else 'does not match'} {wanted}"
        return self.scored(matched, passed=matched, rationale=f"{rationale} ({self.spec.mode})")

    def missed(self, rationale: str) -> Score:
        """No answer is a wrong answer."""
        return self.scored(False, passed=False, rationale=rationale)

    def _matches(self, answer: JsonValue, targets: list[JsonValue]) -> bool:
        if isinstance(answer, list) and self.spec.mode in ("exact", "normalised"):
            targets = [*targets, targets]
        return any(self._match(answer, target) for target in targets)

    def _match(self, answer: JsonValue, target: JsonValue) -> bool:
        match self.spec.mode:
            case "exact":
                return _exact(answer, target, ignore_case=self.spec.ignore_case)
            case "normalised":
                return _exact(answer, target, ignore_case=False) or (
                    normalise(plain_text(answer)) == normalise(plain_text(target))
                )
            case "contains":
                return _contains(answer, target, ignore_case=self.spec.ignore_case)
            case "regex":
                return found(
                    plain_text(target), plain_text(answer), ignore_case=self.spec.ignore_case
                )


def _exact(answer: JsonValue, target: JsonValue, *, ignore_case: bool) -> bool:
    """Texts as texts; where one side is no text, both as JSON or as text."""
    one, other = plain_text(answer), plain_text(target)
    if one == other or (ignore_case and one.casefold() == other.casefold()):
        return True
    if isinstance(answer, str) and isinstance(target, str):
        return False
    return json_equal(_as_json(answer), _as_json(target))


def _as_json(value: JsonValue) -> JsonValue:
    if not isinstance(value, str):
        return value
    try:
        parsed: JsonValue = parse_json(value)
    except NotJson:
        return value
    return parsed


def _contains(answer: JsonValue, target: JsonValue, *, ignore_case: bool) -> bool:
    """Whether the target stands in the answer; a number as a number, so 5 is not in 15."""
    text, wanted = plain_text(answer), plain_text(target)
    if is_number(target):
        return float(wanted) in numbers_in(text)
    return wanted in text or (ignore_case and wanted.casefold() in text.casefold())
