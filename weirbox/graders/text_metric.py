"""text-metric: how similar the answer is to the target, 0 to 1."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from pydantic import JsonValue

from weirbox.domain.case import Case
from weirbox.domain.grading import TextMetric
from weirbox.domain.score import Score
from weirbox.domain.values import plain_text, show
from weirbox.graders.base import ReferenceGrader, targets_of
from weirbox.graders.wording import normalise, words_of


class TextMetricGrader(ReferenceGrader[TextMetric]):
    """Measures the similarity to the target, or to the nearest of a list of targets."""

    def targets(self, case: Case) -> list[JsonValue]:
        """The case's targets."""
        return targets_of(case, self.spec.target)

    async def compare(self, answer: JsonValue, targets: list[JsonValue]) -> Score:
        """Measure against every target, and keep the best."""
        metric = _METRICS[self.spec.metric]
        text = plain_text(answer)

        def nearest() -> tuple[float, JsonValue]:
            measured = [(metric(text, plain_text(target)), target) for target in targets]
            return max(measured, key=lambda pair: pair[0])

        value, target = await asyncio.to_thread(nearest)
        return self.scored(
            value,
            passed=None if self.spec.pass_at is None else value >= self.spec.pass_at,
            rationale=f"{self.spec.metric} {value:.3f} against {show(target)}",
        )

    def missed(self, rationale: str) -> Score:
        """No answer is as far from the target as can be."""
        passed = None if self.spec.pass_at is None else False
        return self.scored(0.0, passed=passed, rationale=rationale)


def f1(answer: str, target: str) -> float:
    """Overlap of words, as the harmonic mean of precision and recall.

    As in SQuAD (Rajpurkar et al. 2016): words of the normalised texts, with
    their multiplicity; without any words on one side, 1 if the other has none.
    """
    ours, theirs = normalise(answer).split(), normalise(target).split()
    shared = (Counter(ours) & Counter(theirs)).total()
    return _harmonic_mean(shared, len(ours), len(theirs))


def rouge_l(answer: str, target: str) -> float:
    """F-measure of the longest common subsequence of words.

    ROUGE-L of Lin (2004) with precision and recall weighing the same, without
    stemming; words are runs of letters and digits in lower case.
    """
    from rapidfuzz.distance import LCSseq

    ours, theirs = words_of(answer), words_of(target)
    return _harmonic_mean(LCSseq.similarity(ours, theirs), len(ours), len(theirs))


def levenshtein(answer: str, target: str) -> float:
    """1 - edit distance in characters / length of the longer text."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.normalized_similarity(answer, target)


def bleu(answer: str, target: str) -> float:
    """Sentence BLEU as sacreBLEU (Post 2018) computes it by default, over 100.

    That is: 4-grams, mteval-v13a words, exponential smoothing, effective order.
    """
    from sacrebleu import sentence_bleu

    return min(1.0, sentence_bleu(answer, [target]).score / 100)


def _harmonic_mean(shared: int, ours: int, theirs: int) -> float:
    """F1 of `shared` items of `ours` and `theirs`: 2PR / (P + R)."""
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * shared / (ours + theirs)


_METRICS: dict[str, Callable[[str, str], float]] = {
    "f1": f1,
    "rouge-l": rouge_l,
    "levenshtein": levenshtein,
    "bleu": bleu,
}
