"""Alerts: decided by thresholds, written once, told once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import update

from tests.factories import (
    FAILS,
    PASSES,
    Fakes,
    drive,
    go_on,
    judged,
    of_records,
    plan,
    suite,
    summary,
    timeline,
)
from tests.fakes import passing
from weirbox.domain.run import Alert
from weirbox.domain.seams import JudgeRequest
from weirbox.domain.words import AlertKind, Reason, RunKind, RunStatus
from weirbox.errors import ProviderError
from weirbox.pipeline import alerting, finalizing
from weirbox.pipeline.alerting import alerts_of
from weirbox.pipeline.planning import Selection
from weirbox.store import alerts
from weirbox.store.alerts import AlertFacts, PassRate
from weirbox.store.base import RUN
from weirbox.store.engine import Database
from weirbox.testing import ReplayJudge


def facts(**changes: Any) -> AlertFacts:
    """What a run without any cause for an alert looks like."""
    parts: dict[str, Any] = {
        **{"judged": 100, "review": 10, "quarantined": 10, "asked": 100, "failed": 1},
        **{"unreached": False, "spent_usd": 0.5, "budget_usd": None, "budget_calls": None},
        **{"stalls": 0, "calls": 100},
    }
    return AlertFacts(**(parts | changes))


K = AlertKind
CASES: dict[str, tuple[AlertFacts, list[tuple[AlertKind, float | None, float | None]]]] = {
    "nothing": (facts(), []),
    "nothing-yet": (facts(judged=0, review=0, quarantined=0, asked=0, failed=0), []),
    "half-in-review": (facts(review=50), []),
    "more-in-review": (facts(review=51), [(K.REVIEW_RATE, 0.51, 0.5)]),
    "two-fifths-quarantined": (facts(quarantined=40), []),
    "more-quarantined": (facts(quarantined=41), [(K.QUARANTINE_RATE, 0.41, 0.4)]),
    "a-fifth-failed": (facts(failed=20), []),
    "more-failed": (facts(failed=21), [(K.PROVIDER_FAILURES, 0.21, 0.2)]),
    "too-few-trials": (facts(judged=19, review=19, quarantined=19), []),
    "enough-trials": (facts(judged=20, review=20, quarantined=0), [(K.REVIEW_RATE, 1.0, 0.5)]),
    "too-few-scores": (facts(asked=19, failed=19), []),
    "enough-scores": (facts(asked=20, failed=5), [(K.PROVIDER_FAILURES, 0.25, 0.2)]),
    "a-budget-spent-to-the-end": (facts(budget_usd=0.5), []),
    "a-budget-exhausted": (
        facts(budget_usd=0.6, unreached=True),
        [(K.BUDGET_EXHAUSTED, 0.5, 0.6)],
    ),
    "calls-exhausted": (
        facts(budget_calls=100, unreached=True),
        [(K.BUDGET_EXHAUSTED, 100, 100)],
    ),
    "a-stall": (facts(stalls=2), [(K.STALLED, 2, 1)]),
    "better": (facts(pass_rate=PassRate("b", 90, 100), earlier=PassRate("a", 50, 100)), []),
    "a-little-worse": (
        facts(pass_rate=PassRate("b", 80, 100), earlier=PassRate("a", 90, 100)),
        [],
    ),
    "much-worse": (
        facts(pass_rate=PassRate("b", 60, 100), earlier=PassRate("a", 90, 100)),
        [(K.REGRESSION, 0.6, 0.8256343384950865)],
    ),
    "worse-on-too-few": (
        facts(pass_rate=PassRate("b", 2, 3), earlier=PassRate("a", 90, 100)),
        [],
    ),
    "nothing-to-compare-with": (facts(pass_rate=PassRate("b", 0, 100)), []),
    "all-at-once": (
        facts(review=60, quarantined=45, failed=50, stalls=1),
        [
            (K.REVIEW_RATE, 0.6, 0.5),
            (K.QUARANTINE_RATE, 0.45, 0.4),
            (K.PROVIDER_FAILURES, 0.5, 0.2),
            (K.STALLED, 1, 1),
        ],
    ),
}


@pytest.mark.parametrize(("given", "expected"), CASES.values(), ids=CASES)
def test_an_alert_is_what_has_passed_its_threshold(
    given: AlertFacts, expected: list[tuple[AlertKind, float | None, float | None]]
) -> None:
    found = alerts_of(given)

    assert [(a.kind, a.value, a.threshold) for a in found] == [
        (kind, value, pytest.approx(threshold)) for kind, value, threshold in expected
    ]


def test_an_alert_says_in_words_what_was_measured() -> None:
    found = alerts_of(
        facts(
            review=60,
            unreached=True,
            budget_usd=0.6,
            pass_rate=PassRate("b", 60, 100),
            earlier=PassRate("a", 90, 100),
        )
    )

    assert [alert.message for alert in found] == [
        "60 of 100 judged trials need a review (60%; alert above 50%)",
        "the budget of 0.6 USD is exhausted after 0.5 USD on 100 calls: scores are missing",
        "the pass rate is 60.0% (60 of 100, 95 % CI 50.2 to 69.1); "
        "it was 90.0% (90 of 100, 95 % CI 82.6 to 94.5) in run a",
    ]


# --- of runs ----------------------------------------------------------------------------


def kinds(database: Database, run_id: str) -> list[AlertKind]:
    """The kinds of a run's alerts."""
    return [alert.kind for alert in summary(database, run_id).alerts]


def regressions(database: Database, run_id: str) -> list[str]:
    """What a run's alerts say of its pass rate."""
    alerts = summary(database, run_id).alerts
    return [alert.message for alert in alerts if alert.kind is K.REGRESSION]


def rated(
    database: Database, right: int, *, of: int = 40, name: str = "tested", **options: Any
) -> str:
    """A run of a suite of which so many trials pass."""
    given = [
        {"id": f"case-{n}", "input": "x", "target": "x" if n < right else "y"} for n in range(of)
    ]
    return drive(database, of_records(given, suite=name), **options).run_id


def test_finalizing_raises_what_a_run_gives_cause_for_once(database: Database) -> None:
    planned = judged(20, dataset={"records": _unlike(20)})
    run = drive(database, planned, fakes=Fakes(provider=ReplayJudge(lambda request: FAILS)))

    finalizing.finalize(database, run.run_id)

    assert kinds(database, run.run_id) == [K.QUARANTINE_RATE]
    told = [message for kind, message in timeline(database, run.run_id) if kind == "alert"]
    assert told == ["20 of 20 judged trials are quarantined (100%; alert above 40%)"]
    assert summary(database, run.run_id).to_json()["alerts"] == [
        {"kind": "quarantine_rate", "message": told[0], "value": 1.0, "threshold": 0.4}
    ]


def _unlike(count: int) -> list[dict[str, Any]]:
    return [{"id": f"case-{n}", "input": f"in {n}", "target": "other"} for n in range(count)]


def test_a_provider_that_fails_is_told_of_while_the_run_goes(sqlite: Database) -> None:
    def failing(request: JudgeRequest) -> str:
        raise ProviderError("down", reason=Reason.PROVIDER_ERROR)

    run_id = plan(sqlite, judged(20))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(finalizing, "raise_alerts", lambda *arguments: [])
        go_on(sqlite, run_id, fakes=Fakes(provider=ReplayJudge(failing)))
    assert kinds(sqlite, run_id) == []

    with sqlite.write() as connection:
        first = alerting.watch(connection, run_id)
        again = alerting.watch(connection, run_id)

    assert [alert.kind for alert in first] == [K.REVIEW_RATE, K.PROVIDER_FAILURES]
    assert again == []


def test_a_budget_that_leaves_scores_out_is_told_of(database: Database) -> None:
    free = passing()
    free.cost_usd = 0.25
    run = drive(database, judged(6, budget={"usd": 1.0}), fakes=Fakes(provider=free))

    assert (run.cost_usd, kinds(database, run.run_id)) == (1.0, [K.BUDGET_EXHAUSTED])

    other = ReplayJudge(lambda request: PASSES, cost_usd=0.25)
    enough = drive(database, judged(4, budget={"usd": 1.0}), fakes=Fakes(provider=other))
    assert (enough.cost_usd, kinds(database, enough.run_id)) == (1.0, [])


def test_a_pass_rate_that_fell_is_a_regression(database: Database) -> None:
    before = rated(database, 38)

    after, still = rated(database, 20), rated(database, 18)

    [message] = regressions(database, after)
    assert message.endswith(f"in run {before}")
    assert (regressions(database, before), regressions(database, still)) == ([], [])


def test_only_a_finalized_run_of_the_same_suite_and_kind_is_compared_with(
    sqlite: Database,
) -> None:
    better = rated(sqlite, 40)
    assert regressions(sqlite, rated(sqlite, 10, name="other")) == []
    preview = Selection(kind=RunKind.PREVIEW, size=40)
    other_kind = rated(sqlite, 10, selection=preview)
    assert regressions(sqlite, other_kind) == []
    for status in RunStatus:
        if status is not RunStatus.COMPLETED:
            with sqlite.write() as connection:
                statement = update(RUN).where(RUN.c.id == better)
                connection.execute(statement.values(status=status))
            assert regressions(sqlite, rated(sqlite, 10)) == []


def test_a_run_of_nothing_new_is_none_to_compare_with(sqlite: Database) -> None:
    base = drive(sqlite, suite(30)).run_id
    since = Selection(kind=RunKind.DELTA, since=base)
    good = drive(sqlite, suite(60), selection=since).run_id
    nothing = plan(sqlite, suite(30), since)

    bad = drive(sqlite, of_records(_unlike(30)), selection=since).run_id

    assert summary(sqlite, nothing).progress.planned == 0
    [message] = regressions(sqlite, bad)
    assert message.endswith(f"in run {good}")


# --- told -------------------------------------------------------------------------------


def test_an_alert_is_written_once_by_however_many_raise_it(database: Database) -> None:
    run_id = plan(database, suite(1))

    def raising(number: int) -> list[Alert]:
        with database.write() as connection:
            found = Alert(kind=K.STALLED, message=f"by {number}")
            return alerts.raise_alerts(connection, run_id, [found])

    with ThreadPoolExecutor(4) as pool:
        raised = [one for found in pool.map(raising, range(4)) for one in found]

    assert len(raised) == 1
    assert summary(database, run_id).alerts == tuple(raised)
    assert [kind for kind, _ in timeline(database, run_id)] == ["planned", "alert"]


def test_what_was_told_is_not_told_again(database: Database) -> None:
    first, second = plan(database, suite(1)), plan(database, suite(1, suite="other"))
    with database.write() as connection:
        for run_id in (first, second):
            found = Alert(kind=K.STALLED, message=f"of {run_id}", value=1, threshold=1)
            alerts.raise_alerts(connection, run_id, [found])

    with database.write() as connection:
        one, other = alerts.unsent(connection)
        assert alerts.unsent(connection, limit=1) == [one]
        sent = [alerts.sent(connection, first, K.STALLED) for _ in range(2)]
        left = alerts.unsent(connection)

    assert (one.run_id, one.suite, one.run_kind, one.kind) == (first, "tested", "full", K.STALLED)
    assert (one.message, one.value, one.threshold) == (f"of {first}", 1.0, 1.0)
    assert (sent, left) == ([True, False], [other])
    assert len(summary(database, first).alerts) == 1
