"""Trace events as a program writes them: one JSON object on each line."""

from __future__ import annotations

import json

from pydantic import ValidationError

from weirbox.domain.trace import TraceEvent
from weirbox.domain.words import EventKind

_SHOWN = 200


def read_events(text: str, path: str) -> tuple[TraceEvent, ...]:
    """Read events; a malformed line becomes an error event in its place.

    Each line that is not blank gives one event, so that `TraceEvent.parent` counts right.
    """
    return tuple(
        _event(line, f"{path}, line {number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    )


def _event(line: str, place: str) -> TraceEvent:
    try:
        return TraceEvent.model_validate(json.loads(line))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where}: {first['msg']}" if where else first["msg"]
    except (ValueError, RecursionError) as error:
        reason = str(error)
    return TraceEvent(
        kind=EventKind.ERROR,
        name="malformed event",
        text=f"{place}: {reason}",
        data=line[:_SHOWN],
    )
