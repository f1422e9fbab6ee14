"""One sentence about a metric that always shows its coverage."""

from __future__ import annotations

from weirbox.domain.words import ScoreState
from weirbox.stats.aggregate import MetricSummary, ValueKind
from weirbox.stats.intervals import Interval

_LISTED = 3
"""Values of a distribution that fit into a sentence."""


def headline(summary: MetricSummary) -> str:
    """Say what a metric came to, and over what.

    Such as ``82.3 % pass (135 of 164, 95 % CI 75.7 to 87.4)``,
    ``mean 0.71 (40 scores, 95 % CI 0.65 to 0.77); 2 errored: 2 timeout``, or
    ``no score (50 unscored: 48 parse_error, 2 refusal)``.
    """
    gaps = _gaps(summary)
    if summary.states[ScoreState.SCORED] == 0:
        return f"no score ({'; '.join(gaps) or 'nothing planned'})"
    return "; ".join([_finding(summary), *gaps])


def _finding(summary: MetricSummary) -> str:
    scored = summary.states[ScoreState.SCORED]
    if summary.passes is not None:
        passes = summary.passes
        counts = f"{passes.passed} of {passes.of}, {_interval(passes.interval, 100, '.1f')}"
        rest = scored - passes.of
        unbearing = f"; {rest} scored without pass or fail" if rest else ""
        return f"{passes.rate * 100:.1f} % pass ({counts}){unbearing}"
    if summary.kind is ValueKind.MIXED:
        return summary.message
    if summary.numbers is not None:
        numbers = summary.numbers
        counts = f"{numbers.n} score{'' if numbers.n == 1 else 's'}"
        if numbers.interval is not None:
            counts += f", {_interval(numbers.interval, 1, '.4g')}"
        return f"mean {numbers.mean:.4g} ({counts})"
    if summary.distribution:
        shown = summary.distribution[:_LISTED]
        listed = [f"{category.value!r} {category.count}" for category in shown]
        rest = scored - summary.unusable - sum(category.count for category in shown)
        return ", ".join([*listed, f"other {rest}"] if rest else listed)
    return "no usable number"


def _interval(interval: Interval, factor: float, shape: str) -> str:
    low, high = interval.low * factor, interval.high * factor
    return f"{interval.level * 100:.4g} % CI {low:{shape}} to {high:{shape}}"


def _gaps(summary: MetricSummary) -> list[str]:
    """What is missing of the planned scores, state by state."""
    gaps = []
    for state, count in summary.states.items():
        if count and state is not ScoreState.SCORED:
            reasons = summary.reasons.get(state, {})
            listed = ", ".join(f"{given} {reason}" for reason, given in reasons.items())
            gaps.append(f"{count} {state}: {listed}" if listed else f"{count} {state}")
    if summary.unusable:
        gaps.append(f"{summary.unusable} scored with an unusable number")
    return gaps
