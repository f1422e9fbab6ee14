"""Which thresholds a run has passed: a pure decision over the facts of its rows."""

from __future__ import annotations

from dataclasses import dataclass

from weirbox.domain.run import Alert
from weirbox.domain.words import AlertKind
from weirbox.stats.intervals import Interval, wilson
from weirbox.store.alerts import AlertFacts, PassRate, alert_facts, raise_alerts
from weirbox.store.engine import Connection


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Beyond what a person is told. A rate has to be greater than its threshold.

    Attributes:
        review: When people have to look at more than every second trial, the judges or the
            rules are off, rather than the trials.
        quarantined: Of a dataset that loses so much, the source is to be mended first.
        provider_failures: One score in five that is missing though the provider was asked
            again is an outage or a limit, and no matter of chance.
        least: Judged trials, or scores of judges, below which a rate says nothing: with 20,
            one more or less moves it by 5 points.
        stalls: How many times in a row nothing may have changed; more of them fail a run,
            so a person is told at the first.
    """

    review: float = 0.50
    quarantined: float = 0.40
    provider_failures: float = 0.20
    least: int = 20
    stalls: int = 1


THRESHOLDS = Thresholds()


def watch(connection: Connection, run_id: str) -> list[Alert]:
    """Raise the alerts that a run's rows give cause for; safe to run twice and at once.

    Returns:
        Those that were not there yet.
    """
    return raise_alerts(connection, run_id, alerts_of(alert_facts(connection, run_id)))


def alerts_of(facts: AlertFacts, thresholds: Thresholds = THRESHOLDS) -> list[Alert]:
    """Decide which thresholds a run has passed."""
    rates = (
        (
            *(AlertKind.REVIEW_RATE, "judged trials need a review"),
            *(facts.review, facts.judged, thresholds.review),
        ),
        (
            *(AlertKind.QUARANTINE_RATE, "judged trials are quarantined"),
            *(facts.quarantined, facts.judged, thresholds.quarantined),
        ),
        (
            *(AlertKind.PROVIDER_FAILURES, "scores of judges are missing as the provider failed"),
            *(facts.failed, facts.asked, thresholds.provider_failures),
        ),
    )
    found = [
        Alert(
            kind=kind,
            message=f"{part} of {whole} {what} ({part / whole:.0%}; alert above {most:.0%})",
            value=part / whole,
            threshold=most,
        )
        for kind, what, part, whole, most in rates
        if whole >= thresholds.least and part / whole > most
    ]
    others = (_budget(facts), _stalled(facts, thresholds.stalls), _regression(facts))
    return [*found, *(alert for alert in others if alert is not None)]


def _budget(facts: AlertFacts) -> Alert | None:
    """Whether the budget left scores out; one that was spent to the last cent did not."""
    if not facts.unreached:
        return None
    value: float = facts.spent_usd
    limit, named = facts.budget_usd, f"{facts.budget_usd} USD"
    if limit is None:
        value, limit, named = facts.calls, facts.budget_calls, f"{facts.budget_calls} calls"
    spent = f"{facts.spent_usd:g} USD on {facts.calls} calls"
    return Alert(
        kind=AlertKind.BUDGET_EXHAUSTED,
        message=f"the budget of {named} is exhausted after {spent}: scores are missing",
        value=value,
        threshold=limit,
    )


def _stalled(facts: AlertFacts, least: int) -> Alert | None:
    if facts.stalls < least:
        return None
    times = "once" if facts.stalls == 1 else f"{facts.stalls} times in a row"
    return Alert(
        kind=AlertKind.STALLED,
        message=f"nothing has changed for the stall time, {times}",
        value=facts.stalls,
        threshold=least,
    )


def _regression(facts: AlertFacts) -> Alert | None:
    """Whether the pass rate is below an earlier one, beyond what chance explains: their 95 %
    intervals do not overlap."""
    if facts.pass_rate is None or facts.earlier is None:
        return None
    now = wilson(facts.pass_rate.passed, facts.pass_rate.of)
    before = wilson(facts.earlier.passed, facts.earlier.of)
    if now is None or before is None or now.high >= before.low:
        return None
    return Alert(
        kind=AlertKind.REGRESSION,
        message=(
            f"the pass rate is {_shown(facts.pass_rate, now)}; "
            f"it was {_shown(facts.earlier, before)} in run {facts.earlier.run_id}"
        ),
        value=facts.pass_rate.passed / facts.pass_rate.of,
        threshold=before.low,
    )


def _shown(rate: PassRate, interval: Interval) -> str:
    return (
        f"{rate.passed / rate.of:.1%} ({rate.passed} of {rate.of}, "
        f"95 % CI {100 * interval.low:.1f} to {100 * interval.high:.1f})"
    )
