"""Aggregates of one metric, streamed: one row of the store at a time, in bounded memory.

Memory per metric, however many scores come: `EXACT_VALUES` distinct numbers and a
digest of the rest, and `TEXTS` distinct texts of at most `TEXT_LENGTH` characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from weirbox.domain.base import Frozen
from weirbox.domain.score import Value
from weirbox.domain.words import Reason, ScoreState
from weirbox.stats.intervals import Interval, wilson
from weirbox.stats.numeric import EXACT_VALUES, NumberStream, NumberSummary

TEXTS = 10_000
"""Distinct texts kept at most; when there are more, the rarer half joins 'other'."""

TEXT_LENGTH = 200
"""Characters of a text value that tell it from others; longer texts are cut."""

SHOWN = 50
"""Values a distribution lists; the rest is 'other'."""

USABLE = 1e140
"""Numbers beyond this size are left out: a float cannot hold the sum of their squares."""


class ValueKind(StrEnum):
    """What type the values of a metric have."""

    BOOL = "bool"
    NUMBER = "number"  # int and float
    TEXT = "text"
    MIXED = "mixed"  # more than one of these: no mean is computed


KINDS: dict[type, ValueKind] = {
    bool: ValueKind.BOOL,
    int: ValueKind.NUMBER,
    float: ValueKind.NUMBER,
    str: ValueKind.TEXT,
}


class ScoreRow(NamedTuple):
    """What an aggregate needs of a score, or of `n` equal scores."""

    state: str
    reason: str | None = None
    value: Value | None = None
    passed: bool | None = None
    duration: float | None = None
    n: int = 1


Row = tuple[str, str | None, Value | None, bool | None, float | None, int]
"""A `ScoreRow`, or a plain tuple laid out like one, which is faster to make."""


class PassRate(Frozen):
    """The share of passes among the scored values that pass or fail.

    Attributes:
        passed: How many passed.
        of: How many passed or failed; at least 1.
        rate: passed / of.
        interval: The Wilson interval of the rate.
    """

    passed: int
    of: int
    rate: float
    interval: Interval


class Category(Frozen):
    """A value, typed as it was scored (True, 1, 1.0 and "1" differ), and how often it came."""

    value: Value
    count: int


class MetricSummary(Frozen):
    """What all scores of one metric came to.

    Attributes:
        name: The metric's name.
        planned: All scores; the sum of `states`.
        states: How many scores are in each of the five states.
        reasons: For each state that has reasons: how many scores gave which.
        kind: The type of the values; None when nothing was scored.
        passes: None when no score bears on pass or fail.
        numbers: For metrics of kind number only; None over nothing, never 0.
        distribution: The most frequent values of bool, text and mixed metrics.
        other: Scored values that the distribution does not list.
        distribution_exact: False when there were too many distinct values to
            count each; the listed counts are then lower bounds.
        unusable: Scored numbers left out of everything but the counts: NaN,
            infinite, or beyond `USABLE`.
        duration: Seconds per score, where it is known.
        message: Why there is no mean, for a metric of mixed types.
    """

    name: str
    planned: int
    states: dict[ScoreState, int]
    reasons: dict[ScoreState, dict[Reason, int]] = Field(default_factory=dict)
    kind: ValueKind | None = None
    passes: PassRate | None = None
    numbers: NumberSummary | None = None
    distribution: tuple[Category, ...] = ()
    other: int = 0
    distribution_exact: bool = True
    unusable: int = 0
    duration: NumberSummary | None = None
    message: str = ""

    @model_validator(mode="after")
    def _counts_add_up(self) -> Self:
        if self.planned != sum(self.states.values()):
            raise ValueError(
                f"metric {self.name!r}: planned {self.planned} is not the sum of {self.states}"
            )
        return self


class MetricAccumulator:
    """Takes the scores of one metric in any order and tells what they come to.

    Up to the exact limits the summary does not depend on the order of the rows,
    so finalizing a run again gives the same aggregates.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._states: Counter[tuple[str, str | None]] = Counter()
        self._passes = 0
        self._fails = 0
        self._values: dict[type, dict[Value, int]] = {bool: {}, int: {}, float: {}, str: {}}
        self._seen: Counter[type] = Counter()
        self._numbers = NumberStream()
        self._durations = NumberStream()
        self._fresh_durations: dict[float, int] = {}
        self._unusable = 0
        self._pruned = False

    def add(
        self,
        *,
        state: str,
        reason: str | None = None,
        value: Value | None = None,
        passed: bool | None = None,
        duration: float | None = None,
        count: int = 1,
    ) -> None:
        """Take in `count` equal scores.

        Raises:
            TypeError: When the value is not a bool, int, float or str.
            ValueError: When count is below 1.
        """
        self.add_many((ScoreRow(state, reason, value, passed, duration, count),))

    def add_many(self, rows: Iterable[Row]) -> None:
        """Take in rows in the order of the fields of `ScoreRow`.

        Raises:
            TypeError: When a value is not a bool, int, float or str.
            ValueError: When a count is below 1.
        """
        states, durations = self._states, self._fresh_durations
        for state, reason, value, passed, duration, count in rows:
            if count < 1:
                raise ValueError(f"metric {self.name!r}: a count of {count!r} scores is below 1")
            states[state, reason] += count
            if duration is not None and -USABLE <= duration <= USABLE:
                durations[duration] = durations.get(duration, 0) + count
                if len(durations) > EXACT_VALUES:
                    self._durations.fold(durations.items())
                    durations.clear()
            if state != ScoreState.SCORED:
                continue
            if passed is not None:
                if passed:
                    self._passes += count
                else:
                    self._fails += count
            if value is not None:
                self._take(value, count)

    def _take(self, value: Value, count: int) -> None:
        kind = type(value)
        if kind not in KINDS:
            value = _plain(self.name, value)
            kind = type(value)
        self._seen[kind] += count
        if isinstance(value, str):
            value = _cut(value)
        elif not -USABLE <= value <= USABLE:
            self._unusable += count
            return
        counts = self._values[kind]
        counts[value] = counts.get(value, 0) + count
        if len(counts) > (TEXTS if kind is str else EXACT_VALUES):
            self._make_room(kind)

    def _make_room(self, kind: type) -> None:
        counts = self._values[kind]
        self._pruned = True
        if kind is str:
            self._values[str] = dict(nsmallest(TEXTS // 2, counts.items(), key=_by_count))
        else:
            self._numbers.fold((float(value), count) for value, count in counts.items())
            counts.clear()

    def summary(self, *, level: float = 0.95) -> MetricSummary:
        """What all scores so far come to; more may be added afterwards.

        Raises:
            ValueError: When a row had a state or reason outside the vocabulary.
        """
        kind = self._kind()
        numeric = kind is ValueKind.NUMBER
        distribution = () if numeric else self._distribution()
        listed = sum(category.count for category in distribution)
        return MetricSummary(
            name=self.name,
            planned=sum(self._states.values()),
            states=self._by_state(),
            reasons=self._by_reason(),
            kind=kind,
            passes=self._pass_rate(level),
            numbers=self._numbers.summary(self._fresh_numbers(), level) if numeric else None,
            distribution=distribution,
            other=0 if numeric else sum(self._seen.values()) - self._unusable - listed,
            distribution_exact=numeric or not self._pruned,
            unusable=self._unusable,
            duration=self._durations.summary(self._fresh_durations.items(), level),
            message=self._refusal() if kind is ValueKind.MIXED else "",
        )

    def _kind(self) -> ValueKind | None:
        kinds = {KINDS[kind] for kind in self._seen}
        if len(kinds) > 1:
            return ValueKind.MIXED
        return next(iter(kinds), None)

    def _by_state(self) -> dict[ScoreState, int]:
        states = dict.fromkeys(ScoreState, 0)
        for (state, _), count in self._states.items():
            states[ScoreState(state)] += count
        return states

    def _by_reason(self) -> dict[ScoreState, dict[Reason, int]]:
        reasons: dict[ScoreState, dict[Reason, int]] = {}
        for (state, reason), count in sorted(self._states.items(), key=_by_count):
            if reason is not None:
                reasons.setdefault(ScoreState(state), {})[Reason(reason)] = count
        return reasons

    def _pass_rate(self, level: float) -> PassRate | None:
        of = self._passes + self._fails
        interval = wilson(self._passes, of, level)
        if interval is None:
            return None
        return PassRate(passed=self._passes, of=of, rate=self._passes / of, interval=interval)

    def _fresh_numbers(self) -> Iterator[tuple[float, int]]:
        for kind in (int, float):
            for value, count in self._values[kind].items():
                yield float(value), count

    def _distribution(self) -> tuple[Category, ...]:
        counted = chain.from_iterable(counts.items() for counts in self._values.values())
        return tuple(
            Category(value=value, count=count)
            for value, count in nsmallest(SHOWN, counted, key=_by_count)
        )

    def _refusal(self) -> str:
        counts: Counter[ValueKind] = Counter()
        for kind, count in self._seen.items():
            counts[KINDS[kind]] += count
        types = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        return (
            f"metric {self.name!r} has values of mixed types ({types}): no mean is computed; "
            "give the values of each type a metric of their own"
        )


def _by_count(item: tuple[object, int]) -> tuple[int, str]:
    """The most frequent first; equals in the order of their text."""
    return -item[1], str(item[0])


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH else text[: TEXT_LENGTH - 1] + "…"


def _plain(name: str, value: object) -> Value:
    """The builtin value of an instance of a subclass, such as a StrEnum's member."""
    for kind in (int, float, str):
        if isinstance(value, kind):
            plain: Value = kind(value)
            return plain
    raise TypeError(
        f"metric {name!r}: a value of type {type(value).__name__!r} is no bool, int, float or str"
    )
