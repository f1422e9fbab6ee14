"""Intervals, streaming aggregates, and the sentence that shows their coverage."""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weirbox.domain.words import Reason, ScoreState
from weirbox.stats import aggregate
from weirbox.stats.aggregate import (
    Category,
    MetricAccumulator,
    MetricSummary,
    ScoreRow,
    ValueKind,
)
from weirbox.stats.headline import headline
from weirbox.stats.intervals import Interval, t_interval, wilson
from weirbox.stats.numeric import EXACT_VALUES

WILSON = {
    # successes, n, low, high: as scipy.stats.binomtest(...).proportion_ci(method="wilson") gives
    "none of ten": (0, 10, 0.0, 0.27753),
    "all of ten": (10, 10, 0.72247, 1.0),
    "half of ten": (5, 10, 0.23659, 0.76341),
    "one of one": (1, 1, 0.20655, 1.0),
    "135 of 164": (135, 164, 0.75758, 0.87397),
}

T_TABLE = {
    # n, t quantile at 97.5 % with n - 1 degrees of freedom, as printed in tables
    "two": (2, 12.706),
    "ten": (10, 2.262),
    "thirty": (30, 2.045),
    "thousand": (1001, 1.962),
}


def summary_of(*rows: ScoreRow, name: str = "metric") -> MetricSummary:
    accumulator = MetricAccumulator(name)
    accumulator.add_many(rows)
    return accumulator.summary()


def scored(value: Any, passed: bool | None = None, n: int = 1) -> ScoreRow:
    return ScoreRow("scored", None, value, passed, None, n)


@pytest.mark.parametrize("case", WILSON.values(), ids=WILSON.keys())
def test_wilson_agrees_with_published_values(case: tuple[int, int, float, float]) -> None:
    successes, n, low, high = case
    found = wilson(successes, n)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@given(st.integers(1, 10**9), st.floats(0, 1), st.floats(0.01, 0.999))
def test_wilson_contains_the_rate_and_stays_between_0_and_1(
    n: int, share: float, level: float
) -> None:
    successes = int(n * share)
    found = wilson(successes, n, level)
    assert found is not None
    assert 0 <= found.low <= successes / n <= found.high <= 1


def test_a_rate_over_nothing_has_no_interval() -> None:
    assert wilson(0, 0) is None


@pytest.mark.parametrize("arguments", [(3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0), (1, 2, 95)])
def test_wilson_refuses_impossible_arguments(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="must lie between"):
        wilson(*arguments)


@pytest.mark.parametrize("case", T_TABLE.values(), ids=T_TABLE.keys())
def test_t_interval_uses_the_quantile_of_the_tables(case: tuple[int, float]) -> None:
    n, quantile = case
    found = t_interval(n, 10.0, math.sqrt(n))
    assert found is not None
    assert (found.low, found.high) == (
        pytest.approx(10 - quantile, abs=5e-4),
        pytest.approx(10 + quantile, abs=5e-4),
    )


@pytest.mark.parametrize("n", [0, 1])
def test_t_interval_is_absent_below_two_values(n: int) -> None:
    assert t_interval(n, 1.0, 0.0) is None


def test_importing_the_statistics_does_not_import_scipy() -> None:
    code = "import sys, weirbox.stats.headline; print('scipy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@given(
    st.lists(
        st.tuples(st.sampled_from(list(ScoreState)), st.integers(1, 50), st.floats(0, 1)),
        max_size=30,
    )
)
def test_planned_is_the_sum_of_the_states_whatever_comes(
    rows: list[tuple[ScoreState, int, float]],
) -> None:
    accumulator = MetricAccumulator("metric")
    for state, count, value in rows:
        usable = state is ScoreState.SCORED
        accumulator.add(
            state=state,
            reason=None if usable else Reason.TIMEOUT,
            value=value if usable else None,
            count=count,
        )
    found = accumulator.summary()
    assert found.planned == sum(count for _, count, _ in rows) == sum(found.states.values())
    assert set(found.states) == set(ScoreState)
    assert (found.numbers is None) == (found.states[ScoreState.SCORED] == 0)


def test_a_summary_whose_counts_do_not_add_up_is_refused() -> None:
    with pytest.raises(ValueError, match="not the sum"):
        MetricSummary(name="metric", planned=3, states={ScoreState.SCORED: 2})


@given(st.lists(st.floats(-1e9, 1e9) | st.integers(-(10**6), 10**6), min_size=2, max_size=60))
def test_mean_std_and_median_agree_with_the_exact_library(values: list[float]) -> None:
    found = summary_of(*map(scored, values)).numbers
    assert found is not None
    floats = [float(value) for value in values]
    scale = max(map(abs, floats)) + 1e-300
    assert found.mean == pytest.approx(statistics.mean(floats), rel=1e-12, abs=1e-12 * scale)
    smallest = 1e-150  # below it squares are no longer told from 0
    tolerance = max(1e-9 * scale, smallest)
    assert found.std == pytest.approx(statistics.stdev(floats), rel=1e-9, abs=tolerance)
    assert found.median == pytest.approx(statistics.median(floats), rel=1e-12, abs=1e-12 * scale)
    assert (found.n, found.min, found.max) == (len(values), min(floats), max(floats))
    assert found.median_exact


@given(st.permutations([0.1, 0.2, 0.3, 1e8, 7, True, "a", "b", "a", 1, 1.0]))
def test_the_order_of_the_rows_does_not_change_the_summary(values: list[Any]) -> None:
    straight = [0.1, 0.2, 0.3, 1e8, 7, True, "a", "b", "a", 1, 1.0]
    assert summary_of(*map(scored, values)) == summary_of(*map(scored, straight))


def test_a_large_offset_does_not_swallow_a_small_spread() -> None:
    noise = random.Random(4)
    values = [1e8 + noise.gauss(0, 1e-3) for _ in range(3 * EXACT_VALUES)]
    found = summary_of(*map(scored, values)).numbers
    assert found is not None
    assert found.std == pytest.approx(statistics.stdev(values), rel=1e-6)
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-15)
    assert not found.median_exact


def test_equal_values_have_exactly_their_value_as_mean_and_no_spread() -> None:
    found = summary_of(scored(0.1, n=3)).numbers
    assert found is not None
    assert (found.mean, found.std, found.median) == (0.1, 0.0, 0.1)
    assert found.interval == Interval(low=0.1, high=0.1, level=0.95)


def test_one_value_has_a_mean_but_neither_spread_nor_interval() -> None:
    found = summary_of(scored(3)).numbers
    assert found is not None
    assert (found.mean, found.std, found.interval) == (3.0, None, None)


def test_the_median_stays_exact_up_to_the_limit_of_distinct_values_only() -> None:
    at_limit = [scored(i) for i in range(EXACT_VALUES)]
    exact = summary_of(*at_limit, *at_limit).numbers
    assert exact is not None
    assert (exact.median, exact.median_exact) == ((EXACT_VALUES - 1) / 2, True)
    beyond = summary_of(*at_limit, scored(-1)).numbers
    assert beyond is not None
    assert not beyond.median_exact


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled", "skewed"])
def test_beyond_the_limit_the_rank_of_the_median_is_off_by_under_one_percent(order: str) -> None:
    n = 60_000
    values = [float(i) for i in range(n)]
    if order == "falling":
        values.reverse()
    elif order == "shuffled":
        random.Random(3).shuffle(values)
    elif order == "skewed":
        values = [math.exp(i / 1000) for i in range(n)]
    found = summary_of(*map(scored, values)).numbers
    assert found is not None
    rank = sum(value < found.median for value in values)
    assert abs(rank - n / 2) < 0.01 * n
    assert (found.min, found.max) == (min(values), max(values))


def test_weighted_rows_count_as_many_single_rows() -> None:
    singles = [scored(0.5, True)] * 3 + [scored(0.25, False)] * 2
    assert summary_of(scored(0.5, True, 3), scored(0.25, False, 2)) == summary_of(*singles)


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="below 1"):
        MetricAccumulator("metric").add(state="scored", value=1, count=count)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e200, 10**400])
def test_numbers_without_a_usable_size_never_enter_the_mean(value: float) -> None:
    found = summary_of(scored(1.0), scored(value), scored(3.0))
    assert found.numbers is not None
    assert (found.numbers.mean, found.numbers.n, found.unusable) == (2.0, 2, 1)
    assert found.planned == found.states[ScoreState.SCORED] == 3
    alone = summary_of(scored(value))
    assert (alone.kind, alone.numbers, alone.unusable) == (ValueKind.NUMBER, None, 1)
    assert headline(alone) == "no usable number; 1 scored with an unusable number"


def test_a_mean_over_mixed_types_is_refused_by_name() -> None:
    found = summary_of(
        scored(True), scored(1), scored(1.0), scored("1"), scored(True), name="agree"
    )
    assert (found.kind, found.numbers) == (ValueKind.MIXED, None)
    assert "'agree'" in found.message
    assert "2 bool, 2 number, 1 text" in found.message
    listed = {(type(item.value), item.value): item.count for item in found.distribution}
    assert listed == {(bool, True): 2, (int, 1): 1, (float, 1.0): 1, (str, "1"): 1}


def test_typed_categories_survive_json() -> None:
    found = summary_of(scored(True), scored(1), scored(1.0), scored("1"))
    again = MetricSummary.model_validate_json(found.model_dump_json())
    assert again == found
    assert [type(item.value) for item in again.distribution] == [
        type(item.value) for item in found.distribution
    ]


def test_integers_and_floats_are_one_kind() -> None:
    found = summary_of(scored(1), scored(0.5))
    assert (found.kind, found.message) == (ValueKind.NUMBER, "")
    assert found.numbers is not None
    assert found.numbers.mean == 0.75


def test_a_distribution_lists_fifty_and_counts_the_others() -> None:
    rows = [scored(f"label {i:03d}", n=100 - i) for i in range(60)]
    found = summary_of(*rows)
    assert len(found.distribution) == 50
    assert found.distribution[0] == Category(value="label 000", count=100)
    assert found.other == sum(100 - i for i in range(50, 60))
    assert found.distribution_exact


def test_many_distinct_texts_do_not_drown_a_frequent_one() -> None:
    accumulator = MetricAccumulator("answer")
    accumulator.add_many(scored(f"text {i}") for i in range(aggregate.TEXTS))
    accumulator.add_many(scored("common") for _ in range(500))
    accumulator.add_many(scored(f"late {i}") for i in range(aggregate.TEXTS))
    found = accumulator.summary()
    assert found.distribution[0] == Category(value="common", count=500)
    assert found.other + sum(item.count for item in found.distribution) == found.planned
    assert not found.distribution_exact


def test_memory_does_not_grow_with_distinct_values() -> None:
    def peak(n: int) -> int:
        tracemalloc.start()
        accumulator = MetricAccumulator("metric")
        accumulator.add_many(
            ("scored", None, f"{i} " * 300 if i % 2 else i / 7, None, i / 3, 1) for i in range(n)
        )
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(60_000) < 1.5 * peak(30_000)


def test_members_of_enumerations_count_as_their_text() -> None:
    found = summary_of(scored(Reason.EMPTY), scored("empty"))
    assert found.distribution == (Category(value="empty", count=2),)
    assert type(found.distribution[0].value) is str


def test_a_value_of_another_type_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="metric 'm': a value of type 'list'"):
        MetricAccumulator("m").add(state="scored", value=[1])  # type: ignore[arg-type]


def test_durations_are_summarised_for_every_state() -> None:
    found = summary_of(
        ScoreRow("scored", None, 1, None, 2.0),
        ScoreRow("errored", "timeout", None, None, 4.0),
        ScoreRow("scored", None, 1, None, math.nan),
        ScoreRow("skipped", "policy_skip"),
    ).duration
    assert found is not None
    assert (found.n, found.mean) == (2, 3.0)


HEADLINES = {
    "rate": (
        [scored(True, True, 135), scored(False, False, 29)],
        "82.3 % pass (135 of 164, 95 % CI 75.8 to 87.4)",
    ),
    "none scored": (
        [
            ScoreRow("unscored", "refusal", n=2),
            ScoreRow("unscored", "parse_error", n=48),
        ],
        "no score (50 unscored: 48 parse_error, 2 refusal)",
    ),
    "nothing planned": ([], "no score (nothing planned)"),
    "rate with gaps": (
        [
            scored(1.0, True),
            scored(0.0, False),
            scored(0.5, None),
            ScoreRow("errored", "provider_error", n=3),
            ScoreRow("skipped", "policy_skip", n=4),
            ScoreRow("pending", n=5),
        ],
        "50.0 % pass (1 of 2, 95 % CI 9.5 to 90.5); 1 scored without pass or fail; "
        "3 errored: 3 provider_error; 4 skipped: 4 policy_skip; 5 pending",
    ),
    "zero passes": (
        [scored(False, False, 10)],
        "0.0 % pass (0 of 10, 95 % CI 0.0 to 27.8)",
    ),
    "mean": (
        [scored(1, n=2), scored(3, n=2)],
        "mean 2 (4 scores, 95 % CI 0.1626 to 3.837)",
    ),
    "one number": ([scored(0.5)], "mean 0.5 (1 score)"),
    "bool": ([scored(True, n=5), scored(False, n=2)], "True 5, False 2"),
    "text": (
        [scored("a", n=4), scored("b", n=3), scored("c", n=2), scored("d")],
        "'a' 4, 'b' 3, 'c' 2, other 1",
    ),
    "mixed": (
        [scored(True), scored(2)],
        "metric 'metric' has values of mixed types (1 bool, 1 number): no mean is computed; "
        "give the values of each type a metric of their own",
    ),
}


@pytest.mark.parametrize(("rows", "expected"), HEADLINES.values(), ids=HEADLINES.keys())
def test_headlines_show_their_coverage(rows: list[ScoreRow], expected: str) -> None:
    assert headline(summary_of(*rows)) == expected
