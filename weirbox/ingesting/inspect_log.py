"""Inspect's evaluation logs, as the records that everything else is read of.

Inspect AI (https://inspect.aisi.org.uk) writes one log per task, as ``.eval`` (a zip archive,
read sample by sample) or ``.json`` (one document, read whole). A sample's epoch is our trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weirbox.datasets.entries import Entry
from weirbox.domain.base import storable
from weirbox.domain.trace import Usage
from weirbox.domain.words import EventKind, Reason
from weirbox.errors import UserError

if TYPE_CHECKING:
    from inspect_ai.event import Event
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ModelUsage
    from inspect_ai.scorer import Score

LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""What Inspect's `value_to_float` makes of its grades: correct, partial, incorrect, no answer."""

WORDS = {"yes": True, "true": True, "no": False, "false": False}
"""What it makes of words, in any case of letters."""

REASONS = {
    "invalid_response_format": Reason.PARSE_ERROR,
    "refusal": Reason.REFUSAL,
    "no_response": Reason.EMPTY,
    "grader_failed": Reason.GRADER_ERROR,
    "scoring_failed": Reason.GRADER_ERROR,
}
"""Inspect's reasons for a score without a value."""

SCORERS = "scorers"
"""The span in which Inspect runs scorers, whose own model calls are none of the trial's."""


@dataclass(frozen=True)
class InspectLog:
    """A log that was opened.

    Attributes:
        task: The task's name.
        entries: One record per sample and epoch, each read as it is asked for.
    """

    task: str
    entries: Callable[[], Iterator[Entry]]
    warnings: tuple[str, ...]


def open_log(file: Path, where: str) -> InspectLog:
    """Read a log's header.

    Raises:
        UserError: When inspect-ai is not installed, or cannot read the file.
    """
    try:
        from inspect_ai.log import read_eval_log
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "inspect_ai":
            raise
        raise UserError(
            f"{where} is read as an Inspect log, which needs the package inspect-ai: "
            "pip install 'weirbox[inspect]'"
        ) from None
    try:
        header = read_eval_log(str(file), header_only=True)
    except Exception as error:  # noqa: BLE001 - a file that is no log fails in many ways
        raise _unreadable(where, error) from None
    return InspectLog(
        task=header.eval.task.rpartition("/")[2],
        entries=lambda: _entries(file, where),
        warnings=tuple(_warnings(header)),
    )


def _unreadable(where: str, error: Exception) -> UserError:
    from inspect_ai import __version__

    said = storable(f"{type(error).__name__}: {error}")[:300]
    return UserError(
        f"{where} is no log that inspect-ai {__version__} can read: {said} (results in JSON lines "
        "have a name that ends in .jsonl)"
    )


def _warnings(header: EvalLog) -> Iterator[str]:
    if header.status != "success":
        said = f": {header.error.message}" if header.error else ""
        yield storable(
            f"the log's status is {header.status!r}{said[:300]}; only the samples it has are taken"
        )


def _entries(file: Path, where: str) -> Iterator[Entry]:
    try:
        for number, sample in enumerate(_samples(file), 1):
            yield Entry(number, _record(sample))
    except Exception as error:  # noqa: BLE001 - a damaged log fails in many ways
        raise _unreadable(where, error) from None


def _samples(file: Path) -> Iterator[EvalSample]:
    from inspect_ai.log import (
        read_eval_log,
        read_eval_log_sample,
        read_eval_log_sample_summaries,
    )

    if file.suffix.lower() == ".json":
        yield from read_eval_log(str(file), resolve_attachments=True).samples or ()
        return
    for summary in read_eval_log_sample_summaries(str(file)):
        yield read_eval_log_sample(
            str(file), summary.id, summary.epoch, resolve_attachments=True, exclude_fields={"store"}
        )


def _record(sample: EvalSample) -> dict[str, Any]:
    """A sample as a record of results."""
    events = list(_events(sample))
    record: dict[str, Any] = {
        "id": sample.id,
        "trial": sample.epoch,
        "input": _input(sample),
        "target": sample.target if sample.target not in ("", []) else None,
        "output": sample.output.completion if sample.output.choices else None,
        "trace": events or [_plain(message) for message in sample.messages],
        "usage": _total(events, sample.model_usage.values()),
        "model": sample.output.model or next(iter(sample.model_usage), None),
        "duration": sample.total_time,
        "error": sample.error.message or "the sample failed" if sample.error else None,
        "scores": dict(_scores(sample.scores or {})),
    }
    if sample.choices:
        record["choices"] = list(sample.choices)
    if sample.metadata:
        record["metadata"] = _plain(sample.metadata)
    return record


def _input(sample: EvalSample) -> Any:
    """The input; messages without their ids, which are others in each epoch."""
    if isinstance(sample.input, str):
        return sample.input
    return [_plain(message.model_dump(exclude={"id"})) for message in sample.input]


def _plain(value: Any) -> Any:
    """A value as JSON, as Inspect itself writes it; NaN stays NaN."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, exclude_none=True, inf_nan_mode="constants", fallback=str)


# --- scores -----------------------------------------------------------------------


def _scores(scores: dict[str, Score]) -> Iterator[tuple[str, Any]]:
    """Each score by its scorer's name; of several values, each by its key besides."""
    for name, score in scores.items():
        if isinstance(score.value, dict):
            for key, value in score.value.items():
                yield f"{name}.{key}", _score(score, value)
        elif isinstance(score.value, list | tuple):
            for number, value in enumerate(score.value):
                yield f"{name}.{number}", _score(score, value)
        else:
            yield name, _score(score, score.value)


def _score(score: Score, value: Any) -> dict[str, Any]:
    read, passed = _value(value)
    found: dict[str, Any] = {"value": read, "passed": passed, "rationale": score.explanation or ""}
    if read is None:
        found["reason"] = REASONS.get(score.reason or "")
    detail = {
        "answer": score.answer,
        "value": value if isinstance(value, str) and read is not value else None,
        "reason": score.reason,
        "metadata": _plain(score.metadata) if score.metadata else None,
    }
    kept = {name: item for name, item in detail.items() if item is not None}
    return found | ({"detail": kept} if kept else {})


def _value(value: Any) -> tuple[Any, bool | None]:
    """A value with Inspect's own meaning, and whether it passes; other texts stay texts.

    NaN is how Inspect writes that there is none.
    """
    if not isinstance(value, str):
        return (None if value != value else value), None
    if value in LETTERS:
        return LETTERS[value], LETTERS[value] == 1.0
    if value.lower() in WORDS:
        return WORDS[value.lower()], None
    try:
        number = float(value)
    except ValueError:
        return value, None
    return (number if number == number and abs(number) != float("inf") else value), None


# --- the trace --------------------------------------------------------------------


def _events(sample: EvalSample) -> Iterator[dict[str, Any]]:
    """What the sample's solvers did, as events of ours; what its scorers did is left out."""
    scoring: set[str] = set()
    begun = sample.events[0].timestamp if sample.events else None
    count = 0
    for event in sample.events:
        if event.event == "span_begin" and (
            event.name == SCORERS or event.type == SCORERS or event.parent_id in scoring
        ):
            scoring.add(event.id)
        if event.span_id in scoring:
            continue
        at = None if begun is None else max(0.0, (event.timestamp - begun).total_seconds())
        for one in _of_event(event, count):
            yield {"at": at} | one
            count += 1


def _of_event(event: Event, index: int) -> Iterable[dict[str, Any]]:
    match event.event:
        case "model":
            call = {
                "kind": EventKind.LLM_CALL,
                "name": event.role or "",
                "text": event.output.completion if event.output.choices else "",
                "model": event.model,
                "duration": event.working_time,
                "usage": _usage(event.output.usage) if event.output.usage else None,
            }
            return [call, *_error(event.error, "model", index)]
        case "tool":
            made = {
                "kind": EventKind.TOOL_CALL,
                "name": event.function,
                "data": _plain(event.arguments),
            }
            gave = {
                "kind": EventKind.TOOL_RESULT,
                "name": event.function,
                **_result(event.result),
                "duration": event.working_time,
                "parent": index,
            }
            failed = event.error.message if event.error else None
            return [made, gave, *_error(failed, event.function, index)]
        case "error":
            return _error(event.error.message, "", None)
        case "logger":
            message = event.message
            return [{"kind": EventKind.LOG, "name": message.level, "text": message.message}]
        case "info":
            return [{"kind": EventKind.LOG, "name": event.source or "", "data": _plain(event.data)}]
        case _:
            return []


def _result(result: Any) -> dict[str, Any]:
    plain = _plain(result)
    return {"text": plain} if isinstance(plain, str) else {"data": plain}


def _error(message: str | None, name: str, parent: int | None) -> list[dict[str, Any]]:
    if message is None:
        return []
    return [{"kind": EventKind.ERROR, "name": name, "text": message, "parent": parent}]


def _total(
    events: Iterable[dict[str, Any]], of_models: Iterable[ModelUsage]
) -> dict[str, Any] | None:
    """The usage of the trial's own model calls; of all models where no events are kept."""
    used = [event["usage"] for event in events if event.get("usage")]
    used = used or [_usage(usage) for usage in of_models]
    total: dict[str, Any] = {}
    for name in Usage.model_fields:
        known = [usage[name] for usage in used if usage[name] is not None]
        if known and (name != "cost_usd" or len(known) == len(used)):
            total[name] = sum(known)
    return total or None


def _usage(usage: ModelUsage) -> dict[str, Any]:
    """Inspect counts cached input beside the input tokens; here it is a part of them."""
    read, write = usage.input_tokens_cache_read, usage.input_tokens_cache_write
    return {
        "input_tokens": usage.input_tokens + (read or 0) + (write or 0),
        "cached_tokens": read,
        "cache_write_tokens": write,
        "output_tokens": usage.output_tokens,
        "cost_usd": usage.total_cost,
    }
