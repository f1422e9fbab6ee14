"""A finalized run's scorecard on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weirbox.cli.wording import cut, grid, plural, span, text, usd, word

if TYPE_CHECKING:
    from rich.console import RenderableType

MESSAGE = 160
"""Characters of an error message that are shown."""


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
    yield _counts("trials", body["progress"], ("scored", "unscored", "errored", "skipped"))
    yield _counts("verdicts", body["verdicts"], ("pass", "fail", "none"))
    yield _counts("dispositions", body["dispositions"], ("clean", "review", "quarantined"))
    yield from _cost(body["cost"])
    if body["seconds"]:
        listed = (f"{name} {span(s['median'])}" for name, s in body["seconds"].items())
        yield text(f"median      {', '.join(listed)}")
    yield from _categories(body["categories"])
    if body["errors"]:
        rows = [
            (word(e["stage"]), e["kind"], cut(e["message"], MESSAGE), str(e["trials"]))
            for e in body["errors"]
        ]
        yield grid(("stage", "error", "message", "trials"), rows, right=1)
    yield from _exports(body["exports"])


def _headline(body: dict[str, Any]) -> RenderableType:
    rate = body["pass_rate"]
    if rate is None:
        return text(f"no verdict on {plural(body['progress']['planned'], 'trial')}")
    low, high = rate["interval"]["low"], rate["interval"]["high"]
    return text(
        f"{100 * rate['rate']:.1f} % pass ({rate['passed']} of {rate['of']}, "
        f"95 % interval {100 * low:.1f} to {100 * high:.1f})"
    )


def _counts(what: str, counts: dict[str, int], names: tuple[str, ...]) -> RenderableType:
    from rich.text import Text

    line = Text(f"{what:<12}")
    for number, name in enumerate(names):
        line.append(", " if number else "")
        if counts[name]:
            line.append_text(Text.assemble(f"{counts[name]} ", word(name)))
        else:
            line.append(f"0 {name}", style="dim")
    return line


def _cost(cost: dict[str, Any]) -> Iterator[RenderableType]:
    if not cost["calls"]:
        return
    calls = plural(cost["calls"], "judge call")
    yield text(f"{'cost':<12}{usd(cost['usd'], cost['unpriced_calls'])} for {calls}")
    rows = [
        (
            *(tier["tier"], f"{tier['provider']}/{tier['model']}"),
            *(str(tier[name]) for name in ("calls", "cached", "failed")),
            usd(tier["usd"], tier["unpriced"]),
        )
        for tier in cost["by_tier_and_model"]
    ]
    yield grid(("tier", "model", "calls", "cached", "failed", "cost"), rows, right=4)


def _categories(categories: dict[str, dict[str, int]]) -> Iterator[RenderableType]:
    if categories:
        rows = [
            (name, *(str(counts[verdict]) for verdict in ("pass", "fail", "none")))
            for name, counts in categories.items()
        ]
        yield grid(("category", "pass", "fail", "none"), rows, right=3)


def _exports(exports: dict[str, dict[str, int]]) -> Iterator[RenderableType]:
    for sink, counts in exports.items():
        listed = ", ".join(f"{n} {status}" for status, n in counts.items())
        yield text(f"{'sink':<12}{sink}: {listed}")
