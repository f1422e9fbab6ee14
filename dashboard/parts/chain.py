"""Which checks a verdict rests on: the tiers of authority, the highest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from weirbox.domain.score import Score
from weirbox.domain.words import Authority, ScoreState, Verdict


class Role(StrEnum):
    """What a tier has to do with the verdict."""

    DECIDES = "decides"
    OUTRANKED = "outranked by a higher tier"
    NOT_MEASURED = "not measured, so the next tier decides"


@dataclass(frozen=True)
class Link:
    """One tier of a verdict's chain.

    Attributes:
        deciding: The check that settled the verdict; None when all of the tier did.
    """

    authority: Authority
    role: Role
    scores: tuple[Score, ...]
    deciding: str | None = None


def chain(scores: Sequence[Score], *, verdict: Verdict | None, deciding: str) -> list[Link]:
    """Lay the scores out as the verdict was found.

    The stored decision is shown, not found again: it names the tier all of which
    passed, or the first check that failed.

    Args:
        verdict: None before the trial is judged: then nothing decides.
        deciding: As the trial's row has it.
    """
    decisive = _decisive(scores, deciding) if verdict is not None else None
    links: list[Link] = []
    for authority in Authority:
        tier = tuple(score for score in scores if score.authority is authority and _bears(score))
        if not tier:
            continue
        if authority is decisive:
            named = deciding if any(score.name == deciding for score in tier) else None
            links.append(Link(authority, Role.DECIDES, tier, named))
        elif any(link.role is Role.DECIDES for link in links):
            links.append(Link(authority, Role.OUTRANKED, tier))
        else:
            links.append(Link(authority, Role.NOT_MEASURED, tier))
    return links


def _decisive(scores: Sequence[Score], deciding: str) -> Authority | None:
    if deciding in set(Authority):
        return Authority(deciding)
    return next((score.authority for score in scores if score.name == deciding), None)


def _bears(score: Score) -> bool:
    """Whether a score says pass or fail, or would have if it had been measured."""
    return score.passed is not None or score.state is not ScoreState.SCORED
