"""Moments and median of a stream of numbers, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from weirbox.domain.base import Frozen
from weirbox.stats.intervals import Interval, t_interval

EXACT_VALUES = 10_000
"""Distinct values kept as they are; up to here the median is exact. About 1 MB."""

CENTROIDS = 5_000
"""Distinct values beyond that are merged to at most about this many neighbours."""


class NumberSummary(Frozen):
    """What a stream of numbers came to.

    Attributes:
        n: How many numbers; at least 1.
        mean: Their arithmetic mean.
        interval: Student's t interval of the mean; None for fewer than 2.
        std: The sample standard deviation (divisor n - 1); None for fewer than 2.
        median: The middle value, or the middle of the middle two.
        median_exact: False when there were more than `EXACT_VALUES` distinct
            values, and the median is that of a digest.
    """

    n: int
    mean: float
    interval: Interval | None
    std: float | None
    min: float
    max: float
    median: float
    median_exact: bool


class _Moments(NamedTuple):
    n: int
    mean: float
    squares: float
    min: float
    max: float


class NumberStream:
    """Collects numbers; the caller owns `fresh` values and folds them in when they are many.

    Memory: `EXACT_VALUES` distinct values and `CENTROIDS` centroids, however many
    numbers come. Sums are taken per fold with `math.fsum` around the smallest
    value and merged pairwise (Chan, Golub and LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances", 1979), so a large offset
    does not swallow a small spread.

    The digest merges neighbours of equal weight (a t-digest with a uniform scale,
    Dunning and Ertl, arXiv:1902.04023): deterministic, no sampling; its median's
    rank is off by well under 1 % of n.
    """

    def __init__(self) -> None:
        self._moments: _Moments | None = None
        self._centroids: list[tuple[float, int]] = []

    def fold(self, fresh: Iterable[tuple[float, int]]) -> None:
        """Take in (value, count) pairs of finite values, and forget which they were."""
        values = sorted(fresh)
        if values:
            self._moments = _merged(self._moments, _moments_of(values))
            self._centroids = _compressed(sorted(chain(self._centroids, values)))

    def summary(self, fresh: Iterable[tuple[float, int]], level: float) -> NumberSummary | None:
        """What was folded in together with the pairs not folded in yet; None for nothing."""
        values = sorted(fresh)
        moments = _merged(self._moments, _moments_of(values)) if values else self._moments
        if moments is None:
            return None
        n, mean = moments.n, min(max(moments.mean, moments.min), moments.max)
        std = math.sqrt(moments.squares / (n - 1)) if n > 1 else None
        return NumberSummary(
            n=n,
            mean=mean,
            interval=None if std is None else t_interval(n, mean, std, level),
            std=std,
            min=moments.min,
            max=moments.max,
            median=_median(sorted(chain(self._centroids, values)), n),
            median_exact=not self._centroids,
        )


def _moments_of(values: list[tuple[float, int]]) -> _Moments:
    """The moments of a sorted, non-empty list of (value, count) pairs."""
    n = sum(count for _, count in values)
    low = values[0][0]
    mean = low + math.fsum((value - low) * count for value, count in values) / n
    squares = math.fsum((value - mean) ** 2 * count for value, count in values)
    return _Moments(n, mean, squares, low, values[-1][0])


def _merged(one: _Moments | None, two: _Moments) -> _Moments:
    if one is None:
        return two
    n = one.n + two.n
    step = two.mean - one.mean
    return _Moments(
        n,
        one.mean + step * (two.n / n),
        one.squares + two.squares + step * step * (one.n * (two.n / n)),
        min(one.min, two.min),
        max(one.max, two.max),
    )


def _compressed(values: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Merge sorted neighbours while their joint weight stays under 2 / `CENTROIDS` of all.

    Any two neighbours of the result weigh more than that together, so there are
    at most `CENTROIDS` + 1 of them.
    """
    limit = 2 * sum(count for _, count in values) / CENTROIDS
    merged: list[tuple[float, int]] = []
    mean, weight = values[0]
    for value, count in values[1:]:
        if weight + count <= limit:
            weight += count
            mean += (value - mean) * (count / weight)
        else:
            merged.append((mean, weight))
            mean, weight = value, count
    merged.append((mean, weight))
    return merged


def _median(values: list[tuple[float, int]], n: int) -> float:
    lower, upper = _at_ranks(values, (n - 1) // 2, n // 2)
    return lower + (upper - lower) / 2


def _at_ranks(values: list[tuple[float, int]], *ranks: int) -> Iterator[float]:
    """The values at ascending ranks, counted from 0, of a sorted list with counts."""
    wanted = iter(ranks)
    rank = next(wanted)
    seen = 0
    for value, count in values:
        seen += count
        while rank < seen:
            yield value
            following = next(wanted, None)
            if following is None:
                return
            rank = following
