"""One case of a run, with everything its trials left: as JSON values and on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from weirbox.cli.wording import cut, facts, grid, moment, span, text, usd, word
from weirbox.domain.base import canonical_json
from weirbox.domain.score import Score
from weirbox.errors import NotPossible
from weirbox.result_files import jsonable
from weirbox.store import history, queries

if TYPE_CHECKING:
    from rich.console import RenderableType
    from sqlalchemy import Connection

LONG = 2_000
"""Characters of a long text that are shown; the JSON has all of it."""

SHORT = 300
"""Characters of a rationale or a message that are shown."""

_TRIAL = (
    *("seq", "trial", "category", "stage", "round", "attempt", "state", "verdict"),
    *("disposition", "deciding", "cached", "compute_s"),
    *("error_stage", "error_kind", "error_message"),
    *("execute_started_at", "executed_at", "judge_started_at", "judged_at"),
    *("export_started_at", "exported_at"),
)
_ATTEMPT = (
    *("round", "stage", "attempt", "started_at", "ended_at", "error_kind", "error_message"),
    "observation",
)


def case_detail(connection: Connection, run_id: str, case_id: str) -> dict[str, Any]:
    """A case and its trials as JSON values.

    Returns:
        ``run_id``, ``case`` (id, input, target, record, parse_error) and ``trials``: each
        with its state, ``observation``, ``scores``, ``calls``, ``proposals``, ``exports``,
        and what no longer stands: ``attempts`` and ``replaced_scores``.

    Raises:
        NotPossible: When the run has no such case.
    """
    rows = queries.trials_of_case(connection, run_id, case_id)
    if not rows:
        raise NotPossible(
            f"run {run_id} has no case {case_id!r}; its cases: weirbox export {run_id}"
        )
    case = queries.load_case(connection, rows[0].case_digest)
    detail: dict[str, Any] = jsonable(
        {
            "run_id": run_id,
            "case": case.model_dump(exclude={"place"}),
            "trials": [_trial(connection, run_id, row) for row in rows],
        }
    )
    return detail


def _trial(connection: Connection, run_id: str, row: Any) -> dict[str, Any]:
    observation = None
    if row.observation is not None:
        observation = queries.load_observation(connection, row.observation).model_dump()
    return {
        **{name: getattr(row, name) for name in _TRIAL},
        "observation": observation,
        "scores": [s.model_dump() for s in queries.load_scores(connection, run_id, row.seq)],
        "calls": [c.model_dump() for c in queries.load_calls(connection, run_id, row.seq)],
        "proposals": [
            queries.proposal_from(proposal).model_dump()
            for proposal in queries.proposals_of(connection, run_id, row.seq)
        ],
        "exports": [
            {name: getattr(export, name) for name in ("sink", "status", "url", "message", "at")}
            for export in queries.exports_of(connection, run_id, row.seq)
        ],
        "attempts": [
            {name: getattr(attempt, name) for name in _ATTEMPT}
            for attempt in history.attempts_of(connection, run_id, row.seq)
        ],
        "replaced_scores": [
            {
                **{name: getattr(old, name) for name in ("round", "why", "replaced_at")},
                "score": Score.model_validate(old.body).model_dump(),
            }
            for old in history.replaced_scores(connection, run_id, row.seq)
        ],
    }


def case_page(detail: dict[str, Any]) -> Iterator[RenderableType]:
    """A case for a person."""
    from rich.text import Text

    case = detail["case"]
    title = text(cut(case["id"], SHORT))
    title.stylize("bold")
    yield title.append(f"  {detail['run_id']}", style="not bold")
    if case["parse_error"] is not None:
        yield from _block("malformed", case["parse_error"]["message"])
        yield from _block("raw", case["parse_error"]["raw"])
    yield from _block("input", case["input"])
    yield from _block("target", case["target"])
    for trial in detail["trials"]:
        yield Text()
        yield from _trial_page(trial)


def _trial_page(trial: dict[str, Any]) -> Iterator[RenderableType]:
    from rich.text import Text

    title = Text.assemble((f"trial {trial['trial']}", "bold"), "  ", word(trial["verdict"]))
    if trial["disposition"] is not None:
        title.append_text(Text.assemble(", ", word(trial["disposition"])))
    title.append_text(Text.assemble(", ", word(trial["state"])))
    title.append_text(text(f" ({trial['deciding']})" if trial["deciding"] else ""))
    title.append(", cached" if trial["cached"] else "")
    yield title
    if trial["error_kind"] is not None:
        yield from _block(f"{trial['error_stage']}: {trial['error_kind']}", trial["error_message"])
    if trial["observation"] is not None:
        yield from _observation(trial["observation"])
    if trial["scores"]:
        yield grid(("check", "state", "value", "why"), [_score(s) for s in trial["scores"]])
    if trial["calls"]:
        heads = ("judge", "tier", "model", "tokens", "cost", "took")
        yield grid(heads, [_call(call) for call in trial["calls"]], right=3)
    if trial["proposals"]:
        rows = [(p["check"], p["action"], cut(p["message"], SHORT)) for p in trial["proposals"]]
        yield grid(("check", "proposal", ""), rows)
    if trial["exports"]:
        rows = [
            (e["sink"], word(e["status"]), f"{e['url'] or ''}\n{e['message']}".strip())
            for e in trial["exports"]
        ]
        yield grid(("sink", "export", ""), rows)
    yield from _history(trial)


def _history(trial: dict[str, Any]) -> Iterator[RenderableType]:
    """What no longer stands of a trial."""
    if trial["attempts"]:
        rows = [
            (
                *(str(attempt["attempt"]), str(attempt["round"]), attempt["stage"]),
                moment(datetime.fromisoformat(attempt["ended_at"])),
                *(attempt["error_kind"] or "", cut(attempt["error_message"] or "", SHORT)),
            )
            for attempt in trial["attempts"]
        ]
        yield grid(("earlier attempt", "round", "stage", "ended", "error", ""), rows)
    if trial["replaced_scores"]:
        rows = [
            (*_score(old["score"]), str(old["round"]), old["why"])
            for old in trial["replaced_scores"]
        ]
        yield grid(("replaced score", "state", "value", "why", "round", "replaced by"), rows)


def _observation(observation: dict[str, Any]) -> Iterator[RenderableType]:
    snapshot = observation["snapshot"]
    yield from _block("output", observation["output"])
    if snapshot["stderr"]:
        yield from _block("stderr", snapshot["stderr"])
    facts = [f"took {span(observation['duration'])}"]
    if snapshot["exit_code"] is not None:
        facts.append(f"exit status {snapshot['exit_code']}")
    if snapshot["timed_out"]:
        facts.append("timed out")
    if snapshot["files"]:
        facts.append(f"left {', '.join(file['path'] for file in snapshot['files'])}")
    if observation["trace"]:
        facts.append(f"{len(observation['trace'])} events in its trace")
    yield text(", ".join(facts))


def _score(score: dict[str, Any]) -> tuple[object, ...]:
    value = score["value"]
    shown = "" if value is None else value if isinstance(value, str) else canonical_json(value)
    state = score["state"]
    if score["passed"] is not None:
        state = "pass" if score["passed"] else "fail"
    why = score["rationale"] or (score["reason"] or "")
    if score["reason"] and score["rationale"]:
        why = f"{score['reason']}: {score['rationale']}"
    return score["name"], word(state), cut(shown, SHORT), cut(why, SHORT)


def _call(call: dict[str, Any]) -> tuple[object, ...]:
    usage = call["usage"]
    tokens = [usage["input_tokens"], usage["output_tokens"]]
    cost = "cached" if call["cached"] else "unknown"
    if usage["cost_usd"] is not None and not call["cached"]:
        cost = usd(usage["cost_usd"])
    return (
        *(call["check"], call["tier"], f"{call['provider']}/{call['model']}"),
        "+".join("?" if count is None else str(count) for count in tokens),
        *(cost, span(call["duration"]) if call["ok"] else "failed"),
    )


def _block(name: str, value: Any) -> Iterator[RenderableType]:
    """A value under its name; a short one beside it."""
    from rich.padding import Padding
    from rich.text import Text

    if value is None:
        return
    shown = cut(value if isinstance(value, str) else canonical_json(value), LONG)
    if "\n" in shown or len(shown) > 60:
        yield Text(name, style="dim")
        yield Padding(text(shown), (0, 0, 0, 2))
    else:
        yield facts([(name, shown)])
