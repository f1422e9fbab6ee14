"""A finalized run's scorecard on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weirbox.cli.wording import counted, cut, facts, grid, plural, span, text, usd, word

if TYPE_CHECKING:
    from rich.console import RenderableType

MESSAGE = 160
"""Characters of a message that are shown."""


def scorecard(body: dict[str, Any]) -> Iterator[RenderableType]:
    """The parts of a scorecard, from top to bottom.

    Args:
        body: As `weirbox.pipeline.finalizing.finalize` gives it.
    """
    from rich.text import Text

    yield Text.assemble((f"{body['suite']} · {body['kind']}", "bold"), "  ", body["run_id"])
    yield _headline(body)
    if body["metrics"]:
        metrics = [(name, metric["headline"]) for name, metric in body["metrics"].items()]
        yield grid(("metric", "result"), metrics)
    yield facts(_facts(body))
    yield from _tiers(body["cost"])
    yield from _categories(body["categories"], body["verdicts"])
    if body["errors"]:
        rows = [
            (word(e["stage"]), e["kind"], cut(e["message"], MESSAGE), str(e["trials"]))
            for e in body["errors"]
        ]
        yield grid(("stage", "error", "message", "trials"), rows, right=1)
    if body.get("unmeasured"):  # scorecards of before do not have it
        gaps = [
            (
                *(gap["name"], word(gap["state"]), gap["reason"]),
                *(cut(gap["message"], MESSAGE), str(gap["scores"])),
            )
            for gap in body["unmeasured"]
        ]
        yield grid(("why not measured", "state", "reason", "message", "scores"), gaps, right=1)


def _headline(body: dict[str, Any]) -> RenderableType:
    rate = body["pass_rate"]
    if rate is None:
        return text(f"no verdict on {plural(body['progress']['planned'], 'trial')}")
    low, high = rate["interval"]["low"], rate["interval"]["high"]
    return text(
        f"{100 * rate['rate']:.1f} % pass ({rate['passed']} of {rate['of']}, "
        f"95 % CI {100 * low:.1f} to {100 * high:.1f}){_without(body['verdicts']['none'])}"
    )


def _without(trials: int) -> str:
    return f"; {plural(trials, 'trial')} without a verdict" if trials else ""


def _facts(body: dict[str, Any]) -> Iterator[tuple[str, object]]:
    states = ("scored", "unscored", "errored", "skipped")
    yield "trials", counted(body["progress"], states)
    yield "verdicts", counted(body["verdicts"], ("pass", "fail", "none"))
    yield "dispositions", counted(body["dispositions"], ("clean", "review", "quarantined"))
    cost = body["cost"]
    if cost["calls"]:
        calls = plural(cost["calls"], "judge call")
        yield "cost", f"{usd(cost['usd'], cost['unpriced_calls'])} for {calls}"
    if body["seconds"]:
        yield "median time", _medians(body["seconds"])
    for sink, counts in body["exports"].items():
        yield "exports", f"{sink}: {', '.join(f'{n} {status}' for status, n in counts.items())}"
    for error in body.get("export_errors", {}).values():
        yield "", f"the first error: {cut(error, MESSAGE)}"


def _medians(seconds: dict[str, Any]) -> str:
    """Median times; computing is left out where it is all there is to executing."""
    medians = {name: summary["median"] for name, summary in seconds.items()}
    if {"compute", "execute"} <= set(medians):
        compute, execute = (f"{medians[name]:.2g}" for name in ("compute", "execute"))
        if compute == execute:
            del medians["compute"]
    return ", ".join(f"{name} {span(median)}" for name, median in medians.items())


def _tiers(cost: dict[str, Any]) -> Iterator[RenderableType]:
    if cost["calls"]:
        rows = [
            (
                *(tier["tier"], f"{tier['provider']}/{tier['model']}"),
                *(str(tier[name]) for name in ("calls", "cached", "failed")),
                usd(tier["usd"], tier["unpriced"]),
            )
            for tier in cost["by_tier_and_model"]
        ]
        heads = ("tier", "model", "calls", "replayed\nor reused", "failed", "cost")
        yield grid(heads, rows, right=4)


def _categories(
    categories: dict[str, dict[str, int]], verdicts: dict[str, int]
) -> Iterator[RenderableType]:
    """Verdicts by category; the trials that have none stand last."""
    if not categories:
        return
    words = ("pass", "fail", "none")
    rows = [(name, *(str(counts[w]) for w in words)) for name, counts in categories.items()]
    rest = [verdicts[w] - sum(counts[w] for counts in categories.values()) for w in words]
    if any(rest):
        rows.append(("(without)", *map(str, rest)))
    yield grid(("category", *words), rows, right=3)
