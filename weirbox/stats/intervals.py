"""Confidence intervals; absent where there is nothing to estimate from."""

from __future__ import annotations

import math
from statistics import NormalDist

from weirbox.domain.base import Frozen


class Interval(Frozen):
    """A two-sided confidence interval.

    Attributes:
        low, high: In the unit of what is estimated; a rate's lie in 0 to 1.
        level: The confidence level, such as 0.95.
    """

    low: float
    high: float
    level: float


def wilson(successes: int, n: int, level: float = 0.95) -> Interval | None:
    """The Wilson score interval of a rate.

    With p = successes / n and z the normal quantile of (1 + level) / 2::

        (p + z²/2n ± z · sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)

    It stays inside 0 to 1 and keeps its coverage for small n and extreme rates.
    Source: E. B. Wilson, "Probable inference, the law of succession, and
    statistical inference", JASA 22 (1927), 209-212; recommended by Brown, Cai
    and DasGupta, Statistical Science 16 (2001), 101-133.

    Returns:
        None when n is 0: a rate over nothing has no interval.

    Raises:
        ValueError: When successes is not within 0 to n, or level not within 0 and 1.
    """
    _check_level(level)
    if not 0 <= successes <= n:
        raise ValueError(f"successes {successes!r} must lie between 0 and n {n!r}")
    if n == 0:
        return None
    z = NormalDist().inv_cdf((1 + level) / 2)
    p, z2 = successes / n, z * z / n
    centre = p + z2 / 2
    half = z * math.sqrt(p * (1 - p) / n + z2 / (4 * n))
    low = 0.0 if successes == 0 else max(0.0, (centre - half) / (1 + z2))
    high = 1.0 if successes == n else min(1.0, (centre + half) / (1 + z2))
    return Interval(low=low, high=high, level=level)


def t_interval(n: int, mean: float, std: float, level: float = 0.95) -> Interval | None:
    """Student's t interval of a mean: mean ± t · std / sqrt(n), with n - 1 degrees of freedom.

    Source: Student, "The probable error of a mean", Biometrika 6 (1908), 1-25.

    Args:
        n: How many values the mean is taken over.
        mean: Their mean.
        std: Their sample standard deviation (divisor n - 1).
        level: The confidence level.

    Returns:
        None when n < 2, where the spread is unknown.

    Raises:
        ValueError: When std is negative or not finite, or level not within 0 and 1.
    """
    _check_level(level)
    if n < 2:
        return None
    if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
        raise ValueError(f"mean {mean!r} and std {std!r} must be finite, and std not negative")
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, (1 + level) / 2)) * std / math.sqrt(n)
    return Interval(low=mean - half, high=mean + half, level=level)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level {level!r} must lie between 0 and 1, such as 0.95")
