"""Tags that cost nothing."""

from __future__ import annotations

from contextvars import ContextVar

from prefect.context import TaskRunContext

labels: ContextVar[frozenset[str]] = ContextVar("labels", default=frozenset())
"""What all task runs of a run are tagged with; the flow sets it."""


def tag_task_run(*tags: str) -> None:
    """Tag the task run that is under way.

    Before Prefect starts a task run that has tags it asks the server for a slot of each
    tag's limit: a request of 30 to 60 ms on PostgreSQL, and of up to seconds on a busy
    SQLite server. Tags that are put on once it has started are recorded just the same.
    """
    context = TaskRunContext.get()
    if context is not None:
        context.task_run.tags = sorted({"weirbox", *tags, *labels.get()})
