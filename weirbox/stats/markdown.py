"""A scorecard as markdown, with untrusted text inert."""

from __future__ import annotations

import re
from typing import Any

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>~&])")


def inert(text: str) -> str:
    """Text that markdown shows as it is: no link, image or tag can come of it."""
    return _SPECIAL.sub(r"\\\1", text.replace("\n", " "))


def scorecard_markdown(body: dict[str, Any], *, url: str | None = None) -> str:
    """A scorecard for people, in GitHub's markdown.

    Args:
        body: As `weirbox.pipeline.finalizing.finalize` gives it.
        url: A link to the run in the dashboard.
    """
    progress, verdicts, rate = body["progress"], body["verdicts"], body["pass_rate"]
    lines = [f"# {inert(body['suite'])} · {body['kind']}", ""]
    if rate is None:
        lines.append(f"**no verdict** for {progress['planned']} planned trials")
    else:
        low, high = rate["interval"]["low"], rate["interval"]["high"]
        lines.append(
            f"**{100 * rate['rate']:.1f} % pass** ({rate['passed']} of {rate['of']}, "
            f"95 % interval {100 * low:.1f} to {100 * high:.1f})"
        )
    counts = ("planned", "scored", "unscored", "errored", "skipped", "pending")
    lines += ["", *_table(counts, [[str(progress[name]) for name in counts]])]
    dispositions = body["dispositions"]
    lines += ["", *_table(list(dispositions), [[str(n) for n in dispositions.values()]])]
    metrics = [[inert(name), inert(m["headline"])] for name, m in body["metrics"].items()]
    lines += ["", *_table(("metric", "result"), metrics)] if metrics else []
    lines += ["", f"Verdicts: {verdicts['pass']} pass, {verdicts['fail']} fail, "]
    lines[-1] += f"{verdicts['none']} none. Judges cost ${body['cost']['usd']:.4f}."
    errors = [
        [e["stage"], e["kind"], inert(e["message"]), str(e["trials"])] for e in body["errors"]
    ]
    lines += ["", *_table(("stage", "error", "message", "trials"), errors)] if errors else []
    gaps = [
        [inert(gap["name"]), gap["state"], gap["reason"], inert(gap["message"]), str(gap["scores"])]
        for gap in body.get("unmeasured", ())
    ]
    heads = ("why not measured", "state", "reason", "message", "scores")
    lines += ["", *_table(heads, gaps)] if gaps else []
    lines += ["", f"[Open in the dashboard]({url})"] if url else []
    return "\n".join(lines) + "\n"


def _table(head: Any, rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
