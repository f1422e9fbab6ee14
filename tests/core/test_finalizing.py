"""Finalize: aggregates from rows, all of them or none, the same however often."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import delete, event, func, select, update

from tests.benchmarks.finalize import MOST_MIB, MOST_S
from tests.factories import (
    PASSES,
    Fakes,
    drive,
    driving,
    go_on,
    judged,
    no_secret,
    of_records,
    plan,
    settings,
    suite,
    summary,
    timeline,
)
from tests.fakes import SINK, Harness, number
from tests.results import NOW, claimed, executed, paid, write
from weirbox import runtime
from weirbox.domain.case import Case
from weirbox.domain.score import Score, Value
from weirbox.domain.seams import RunHeader
from weirbox.domain.trace import Observation
from weirbox.domain.words import Reason, RunStatus, ScoreState
from weirbox.errors import HarnessError, NotPossible
from weirbox.pipeline import finalizing
from weirbox.store import queries
from weirbox.store.aggregates import durations
from weirbox.store.base import METRIC, PAYLOAD, RUN, SCORE, SCORECARD, TRIAL
from weirbox.store.engine import Database
from weirbox.store.rows import pack, unpack
from weirbox.store.spending import Booking, book_calls
from weirbox.store.types import utc_now
from weirbox.store.writes import change_status
from weirbox.testing import MemorySink, ReplayJudge


class Giving:
    """A grader whose score is what a function says of the case."""

    name, needs_compute = "match", False

    def __init__(self, score: Callable[[Case], Score]) -> None:
        self._score = score

    async def grade(self, case: Case, observation: Observation, *, handle: Any) -> list[Score]:
        return [self._score(case)]


def valued(*values: Value, passed: bool | None = None) -> Giving:
    """A grader that gives each case the next of these values."""
    return Giving(lambda case: Score(name="match", value=values[number(case)], passed=passed))


def card(database: Database, run_id: str) -> dict[str, Any]:
    """A run's scorecard."""
    with database.read() as connection:
        found = queries.scorecard(connection, run_id)
    assert found is not None
    return found


def aggregates(database: Database) -> list[int]:
    """How many scorecards and metrics there are."""
    with database.read() as connection:
        return [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (SCORECARD, METRIC)
        ]


def completed(database: Database, run_id: str, judge: ReplayJudge | None = None) -> str:
    """Bring a run to completed, without finalizing it."""
    with patch.object(finalizing, "finalize"):
        asyncio.run(driving(database, run_id, fakes=Fakes(provider=judge)))
    return run_id


# --- once, and all of it ------------------------------------------------------------


def test_finalizing_twice_gives_the_same_scorecard_and_one_stamp(database: Database) -> None:
    run = drive(database, judged(5), fakes=Fakes(provider=ReplayJudge(lambda request: PASSES)))
    first, stamp, counted = card(database, run.run_id), run.finalized_at, aggregates(database)

    again = finalizing.finalize(database, run.run_id)

    assert json.loads(json.dumps(again)) == first == card(database, run.run_id)
    assert summary(database, run.run_id).finalized_at == stamp
    assert aggregates(database) == counted == [1, 2]
    assert [kind for kind, _ in timeline(database, run.run_id)].count("finalized") == 1


def test_two_that_finalize_at_once_agree(database: Database) -> None:
    run_id = completed(database, plan(database, suite(5)))

    with ThreadPoolExecutor(2) as pool:
        bodies = list(pool.map(lambda _: finalizing.finalize(database, run_id), range(2)))

    assert bodies[0] == bodies[1]
    assert [kind for kind, _ in timeline(database, run_id)].count("finalized") == 1
    assert aggregates(database) == [1, 1]


def test_a_finalize_that_dies_in_between_leaves_nothing_half(database: Database) -> None:
    run_id = completed(database, plan(database, suite(5)))
    assert summary(database, run_id).finalizing

    with (
        patch.object(finalizing, "note", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        finalizing.finalize(database, run_id)

    found = summary(database, run_id)
    assert (aggregates(database), found.finalized_at, found.metrics) == ([0, 0], None, {})
    assert found.finalizing
    finalizing.finalize(database, run_id)
    found = summary(database, run_id)
    assert (aggregates(database), found.finalizing) == ([1, 1], False)
    assert set(found.metrics) == {"match"}


STATUSES = [status for status in RunStatus if status is not RunStatus.COMPLETED]


@pytest.mark.parametrize("status", STATUSES)
def test_a_run_that_is_not_completed_is_refused_by_name(
    status: RunStatus, shared_database: Database
) -> None:
    run_id = plan(shared_database, suite(2))
    if status is not RunStatus.PENDING:
        with shared_database.write() as connection:
            change_status(connection, run_id, to=status)
    before = aggregates(shared_database)

    with pytest.raises(NotPossible, match=f"run {run_id} is {status}"):
        finalizing.finalize(shared_database, run_id)

    assert aggregates(shared_database) == before
    assert summary(shared_database, run_id).finalized_at is None


def test_a_run_that_stopped_being_completed_meanwhile_is_left_alone(sqlite: Database) -> None:
    run_id = completed(sqlite, plan(sqlite, suite(2)))
    original = finalizing._scorecard

    def slow(*arguments: Any) -> dict[str, Any]:
        body = original(*arguments)
        with sqlite.write() as connection:
            connection.execute(RUN.update().values(status=RunStatus.RUNNING, completed_at=None))
        return body

    with patch.object(finalizing, "_scorecard", slow), pytest.raises(NotPossible):
        finalizing.finalize(sqlite, run_id)

    assert aggregates(sqlite) == [0, 0]


def test_a_finalize_that_is_killed_anywhere_is_simply_run_again(database: Database) -> None:
    planned = judged(6, category="kind", concurrency={"execute": 1})
    run_id = completed(database, plan(database, planned), ReplayJudge(lambda request: PASSES))
    expected = finalizing.finalize(database, run_id)
    with database.write() as connection:
        connection.execute(delete(SCORECARD))
        connection.execute(delete(METRIC))
        connection.execute(update(RUN).values(finalized_at=None))

    statements = _statements_of(database, run_id)
    for killed in range(statements):
        with _killed_at(database, killed), pytest.raises(KeyboardInterrupt):
            finalizing.finalize(database, run_id)
        assert (aggregates(database), summary(database, run_id).finalizing) == ([0, 0], True)

    assert statements > 15
    assert json.dumps(finalizing.finalize(database, run_id)) == json.dumps(expected)
    assert (aggregates(database), summary(database, run_id).finalizing) == ([1, 2], False)


def _statements_of(database: Database, run_id: str) -> int:
    """How many statements finalize executes; it is killed before its commit."""
    with _killed_at(database, -1) as executed, pytest.raises(KeyboardInterrupt):
        finalizing.finalize(database, run_id)
    return len(executed)


@contextmanager
def _killed_at(database: Database, number: int) -> Iterator[list[str]]:
    """Die at the statement of this number, or at the commit of what is written."""
    executed: list[str] = []

    def before_statement(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        executed.append(statement)
        if len(executed) == number + 1:
            raise KeyboardInterrupt

    def before_commit(connection: Any) -> None:
        if any(statement.startswith(("INSERT", "UPDATE")) for statement in executed):
            raise KeyboardInterrupt

    event.listen(database.engine, "before_cursor_execute", before_statement)
    event.listen(database.engine, "commit", before_commit)
    try:
        yield executed
    finally:
        event.remove(database.engine, "before_cursor_execute", before_statement)
        event.remove(database.engine, "commit", before_commit)


def test_a_run_that_was_opened_and_completed_meanwhile_is_computed_anew(sqlite: Database) -> None:
    run_id = completed(sqlite, plan(sqlite, suite(2)))
    original, bodies = finalizing._scorecard, []

    def slow(*arguments: Any) -> dict[str, Any]:
        bodies.append(original(*arguments))
        if len(bodies) == 1:
            with sqlite.write() as connection:
                connection.execute(update(TRIAL).where(TRIAL.c.seq == 0).values(verdict="fail"))
                connection.execute(update(RUN).values(completed_at=utc_now()))
        return bodies[-1]

    with patch.object(finalizing, "_scorecard", slow):
        found = finalizing.finalize(sqlite, run_id)

    assert [body["verdicts"]["fail"] for body in bodies] == [0, 1]
    assert (
        card(sqlite, run_id)["verdicts"] == found["verdicts"] == {"pass": 1, "fail": 1, "none": 0}
    )


def test_a_metric_that_is_no_more_is_not_left_behind(sqlite: Database) -> None:
    run = drive(sqlite, suite(2))
    with sqlite.write() as connection:
        connection.execute(update(SCORE).values(name="renamed"))

    finalizing.finalize(sqlite, run.run_id)

    with sqlite.read() as connection:
        assert list(connection.execute(select(METRIC.c.name)).scalars()) == ["renamed"]


def test_a_finalized_run_is_shown_with_the_numbers_of_its_rows(shared_database: Database) -> None:
    judge = ReplayJudge(lambda request: PASSES, cost_usd=0.5)
    planned = judged(6, sinks=SINK)
    run = drive(shared_database, planned, fakes=Fakes(provider=judge, sink=MemorySink()))

    with shared_database.read() as connection:
        counted = queries.summary(connection, run.run_id, from_rows=True)

    assert run.finalized_at is not None
    assert counted.exports == {}
    assert counted.model_copy(update={"exports": run.exports}) == run
    assert run.exports == {"memory": {"succeeded": 6}}
    assert (run.progress.scored, run.verdicts.passed, run.calls) == (6, 6, 6)


def test_a_call_that_was_booked_after_the_scorecard_is_counted(sqlite: Database) -> None:
    run_id = plan(sqlite, judged(1))
    [ticket] = claimed(sqlite, run_id)
    with sqlite.write() as connection:
        connection.execute(update(RUN).values(status=RunStatus.COMPLETED))
    finalizing.finalize(sqlite, run_id)
    with sqlite.write() as connection:
        book_calls(connection, [Booking(ticket, paid(None), NOW)])

    found = summary(sqlite, run_id)

    assert (found.calls, found.unpriced_calls) == (1, 1)


def test_durations_are_rounded_to_the_millisecond_on_both_databases(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(4))
    tickets = claimed(shared_database, run_id)
    spans = (1_499, 1_500, 86_400_000_499, 0)
    ends = [NOW + timedelta(microseconds=999_999 + span) for span in spans]
    started = NOW + timedelta(microseconds=999_999)
    write(
        shared_database,
        *(
            executed(t, started_at=started, ended_at=end, compute_s=0.0125)
            for t, end in zip(tickets, ends, strict=True)
        ),
    )

    with shared_database.read() as connection:
        [columns] = list(durations(connection, run_id))

    assert [tuple(column) for column in columns] == [
        *((1, 2, 86_400_000, 0), (None,) * 4, (None,) * 4, (13,) * 4)
    ]


@pytest.mark.slow
def test_a_million_scores_take_15_seconds_and_250_mib() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.finalize", "--json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )

    for row in json.loads(done.stdout).values():
        assert row["scores"] == 1_000_000
        assert row["seconds"] <= MOST_S
        assert row["mib"] <= MOST_MIB


# --- what is in it ------------------------------------------------------------------


def outcome(case: Case) -> Score:
    """A state for each case, in turn."""
    match number(case) % 5:
        case 0 | 1:
            return Score(name="match", value=1.0, passed=number(case) % 2 == 0)
        case 2:
            return Score(name="match", state=ScoreState.UNSCORED, reason=Reason.REFUSAL)
        case 3:
            return Score(name="match", state=ScoreState.ERRORED, reason=Reason.GRADER_ERROR)
        case _:
            return Score(name="match", state=ScoreState.SKIPPED, reason=Reason.POLICY_SKIP)


def test_every_count_of_a_scorecard_covers_every_planned_trial(shared_database: Database) -> None:
    run = drive(shared_database, suite(20, repeats=2), fakes=Fakes(grader=Giving(outcome)))

    body = card(shared_database, run.run_id)
    states = ("scored", "unscored", "errored", "skipped", "pending")
    progress = body["progress"]
    assert progress["planned"] == 40 == sum(progress[state] for state in states)
    assert [progress[state] for state in states] == [16, 8, 8, 8, 0]
    assert sum(body["verdicts"].values()) == sum(body["dispositions"].values()) == 40
    for metric in body["metrics"].values():
        assert metric["planned"] == 40 == sum(metric["states"].values())
    assert body["metrics"]["match"]["states"] == {state: progress[state] for state in states}
    assert body["metrics"]["match"]["reasons"] == {
        "unscored": {"refusal": 8},
        "errored": {"grader_error": 8},
        "skipped": {"policy_skip": 8},
    }
    assert {name: span["n"] for name, span in body["seconds"].items()} == {
        "execute": 40,
        "judge": 40,
    }


def test_a_rate_counts_what_was_measured_and_gives_its_interval(sqlite: Database) -> None:
    run = drive(sqlite, suite(20), fakes=Fakes(grader=Giving(outcome)))

    body = card(sqlite, run.run_id)
    rate = body["pass_rate"]
    assert (rate["passed"], rate["of"], rate["rate"]) == (4, 8, 0.5)
    assert rate["interval"]["low"] == pytest.approx(0.2152, abs=1e-4)
    assert rate["interval"]["high"] == pytest.approx(0.7848, abs=1e-4)
    assert body["metrics"]["match"]["passes"]["rate"] == 0.5


def test_a_rate_over_nothing_is_absent_and_says_why(database: Database) -> None:
    def nothing(case: Case) -> Score:
        reason = Reason.REFUSAL if number(case) < 2 else Reason.PARSE_ERROR
        return Score(name="match", state=ScoreState.UNSCORED, reason=reason)

    run = drive(database, suite(50), fakes=Fakes(grader=Giving(nothing)))

    body = card(database, run.run_id)
    metric = body["metrics"]["match"]
    assert (body["pass_rate"], metric["passes"], metric["numbers"]) == (None, None, None)
    assert metric["headline"] == "no score (50 unscored: 48 parse_error, 2 refusal)"
    with database.read() as connection:
        [row] = connection.execute(select(METRIC.c.rate, METRIC.c.mean, METRIC.c.scored)).all()
    assert tuple(row) == (None, None, 0)


def test_values_of_mixed_types_are_kept_as_they_are_and_have_no_mean(
    shared_database: Database,
) -> None:
    run = drive(shared_database, suite(4), fakes=Fakes(grader=valued(True, 1, 1.0, "1")))

    metric = card(shared_database, run.run_id)["metrics"]["match"]
    assert (metric["kind"], metric["numbers"]) == ("mixed", None)
    assert "metric 'match' has values of mixed types" in metric["message"]
    listed = {repr(entry["value"]): entry["count"] for entry in metric["distribution"]}
    assert listed == {"True": 1, "1": 1, "1.0": 1, "'1'": 1}


def test_numbers_have_mean_median_spread_and_range(shared_database: Database) -> None:
    run = drive(shared_database, suite(5), fakes=Fakes(grader=valued(1, 2.0, 3, 4, 10)))

    found = card(shared_database, run.run_id)["metrics"]["match"]["numbers"]
    assert [found[name] for name in ("n", "mean", "median", "min", "max")] == [5, 4.0, 3, 1, 10]
    assert found["std"] == pytest.approx(math.sqrt(12.5))


def test_numbers_that_are_none_are_counted_and_left_out(shared_database: Database) -> None:
    grader = valued(1.0, 3.0, math.nan, math.inf, -math.inf)

    run = drive(shared_database, suite(5), fakes=Fakes(grader=grader))

    metric = card(shared_database, run.run_id)["metrics"]["match"]
    assert (metric["unusable"], metric["numbers"]["mean"]) == (3, 2.0)
    assert metric["states"]["scored"] == 5


def test_texts_are_counted_by_how_often_they_came(sqlite: Database) -> None:
    run = drive(sqlite, suite(4), fakes=Fakes(grader=valued("b", "a", "b", "\0")))

    found = card(sqlite, run.run_id)["metrics"]["match"]["distribution"]
    assert [(entry["value"], entry["count"]) for entry in found] == [
        ("b", 2),
        ("\\x00", 1),
        ("a", 1),
    ]


def test_errors_are_grouped_by_what_they_say(shared_database: Database) -> None:
    def raising(case: Case) -> str:
        raise HarnessError("even\0" if number(case) % 2 == 0 else "odd " * 1000)

    run = drive(shared_database, suite(5), fakes=Fakes(harness=Harness(answer=raising)))

    found = card(shared_database, run.run_id)["errors"]
    assert [(e["stage"], e["kind"], e["message"][:8], e["trials"]) for e in found] == [
        ("execute", "harness_error", "even\\x00", 3),
        ("execute", "harness_error", "odd odd ", 2),
    ]


def test_scores_without_a_value_are_grouped_by_why(shared_database: Database) -> None:
    def odd(case: Case) -> Score:
        if number(case) == 0:
            return Score(name="match", value=1.0)
        if number(case) == 1:
            state, reason, why = ScoreState.UNSCORED, Reason.MISSING_EVIDENCE, ""
        else:
            state, reason, why = ScoreState.ERRORED, Reason.GRADER_ERROR, "KeyError: " * 100
        return Score(name="match", state=state, reason=reason, rationale=why)

    run = drive(shared_database, suite(4), fakes=Fakes(grader=Giving(odd)))

    assert card(shared_database, run.run_id)["unmeasured"] == [
        {
            **{"name": "match", "state": "errored", "reason": "grader_error"},
            **{"message": ("KeyError: " * 100)[:300], "scores": 2},
        },
        {
            **{"name": "match", "state": "unscored", "reason": "missing_evidence"},
            **{"message": "", "scores": 1},
        },
    ]


def test_a_scorecard_lists_the_twenty_largest_groups_without_a_value(
    shared_sqlite: Database,
) -> None:
    def each(case: Case) -> Score:
        why = f"why {min(number(case), 24):02}"
        return Score(
            name="match", state=ScoreState.ERRORED, reason=Reason.GRADER_ERROR, rationale=why
        )

    run = drive(shared_sqlite, suite(30), fakes=Fakes(grader=Giving(each)))

    found = card(shared_sqlite, run.run_id)["unmeasured"]
    assert [(gap["message"], gap["scores"]) for gap in found] == [
        ("why 24", 6),
        *((f"why {n:02}", 1) for n in range(19)),
    ]


def test_verdicts_are_counted_by_category(shared_database: Database) -> None:
    given = [
        {"id": f"case-{n}", "input": "x", "target": "x" if n < 3 else "y", "kind": "ab"[n % 2]}
        for n in range(4)
    ]

    run = drive(shared_database, of_records(given, category="kind"))

    assert card(shared_database, run.run_id)["categories"] == {
        "a": {"pass": 2, "fail": 0, "none": 0},
        "b": {"pass": 1, "fail": 1, "none": 0},
    }


def test_a_run_of_nothing_new_has_a_scorecard_of_nothing(sqlite: Database) -> None:
    from weirbox.domain.words import RunKind
    from weirbox.pipeline.planning import Selection

    base = plan(sqlite, suite(2))

    run_id = plan(sqlite, suite(2), Selection(kind=RunKind.DELTA, since=base))

    body = card(sqlite, run_id)
    assert (body["progress"]["planned"], body["metrics"], body["pass_rate"]) == (0, {}, None)


# --- sinks --------------------------------------------------------------------------


def test_a_sink_is_completed_once_after_the_last_trial(shared_database: Database) -> None:
    class Sink(MemorySink):
        sent_at_completion = -1
        closed = 0

        async def complete(self) -> None:
            self.sent_at_completion = len(self.sent)
            await super().complete()

        async def aclose(self) -> None:
            self.closed += 1

    sink = Sink()

    run = drive(shared_database, suite(6, sinks=SINK), fakes=Fakes(sink=sink))

    assert (run.status, sink.completed, sink.sent_at_completion) == (RunStatus.COMPLETED, 1, 6)
    assert sink.closed == 2  # the driver's, and finalize's own
    assert card(shared_database, run.run_id)["exports"] == {"memory": {"succeeded": 6}}


@pytest.mark.parametrize("method", ["set_up", "complete"])
def test_a_sink_that_cannot_be_completed_is_a_warning_and_no_failure(
    method: str, sqlite: Database
) -> None:
    run_id = plan(sqlite, suite(2, sinks=SINK))
    sink = MemorySink()
    with patch.object(finalizing, "complete_sinks"), patch.object(finalizing, "finalize"):
        go_on(sqlite, run_id, fakes=Fakes(sink=sink))

    with (
        Fakes(sink=sink).in_place(),
        patch.object(sink, method, side_effect=PermissionError("read-only")),
    ):
        asyncio.run(finalizing.complete_sinks(sqlite, run_id))

    warnings = [message for kind, message in timeline(sqlite, run_id) if kind == "warning"]
    assert warnings == ["sink 'memory' is not complete: PermissionError: read-only"]
    assert finalizing.finalize(sqlite, run_id)["verdicts"]["pass"] == 2


@pytest.mark.parametrize("method", ["set_up", "complete", "aclose"])
def test_a_sink_that_hangs_is_given_up_with_a_warning(method: str, sqlite: Database) -> None:
    async def hanging(*arguments: Any) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05 if stop else 3600)
            if stop:
                return

    stop: list[bool] = []
    run_id = completed(sqlite, plan(sqlite, suite(2)))
    with sqlite.write() as connection:
        digest = connection.execute(select(RUN.c.plan)).scalar_one()
        body = unpack(queries.payload(connection, digest))
        body["suite"]["sinks"] = list(SINK)
        connection.execute(
            update(PAYLOAD).where(PAYLOAD.c.digest == digest).values(body=pack(body)[1])
        )
    sink = MemorySink()

    async def completing() -> None:
        await finalizing.complete_sinks(sqlite, run_id)
        stop.append(True)

    with (
        Fakes(sink=sink).in_place(),
        patch.object(sink, method, hanging),
        patch.object(finalizing, "COMPLETE_S", 0.1),
    ):
        asyncio.run(asyncio.wait_for(completing(), 20))

    warnings = [message for kind, message in timeline(sqlite, run_id) if kind == "warning"]
    assert warnings == ["sink 'memory' is not complete: TimeoutError: it takes longer than 0.104 s"]
    assert finalizing.finalize(sqlite, run_id)["verdicts"]["pass"] == 2


def test_finalizing_leaves_what_sinks_know_of_the_run_as_it_was(sqlite: Database) -> None:
    class Sink(MemorySink):
        def __init__(self) -> None:
            super().__init__()
            self.headers: list[RunHeader] = []

        async def set_up(self, run: RunHeader) -> None:
            self.headers.append(run)

    sink = Sink()
    run_id = plan(sqlite, suite(2, sinks=SINK))
    opened = runtime.Runtime(settings(), sqlite, no_secret)

    with Fakes(sink=sink).in_place():
        asyncio.run(driving(sqlite, run_id))
        asyncio.run(runtime.finalize(opened, run_id))

    assert sink.headers[0].dashboard_url == f"http://127.0.0.1:8501/run?run={run_id}"
    assert sink.headers[-1] == sink.headers[0]


def test_a_folder_that_is_finalized_twice_has_every_trial_once(
    sqlite: Database, tmp_path: Path
) -> None:
    run = drive(sqlite, suite(4, sinks=[{"kind": "jsonl", "path": str(tmp_path / "out")}]))
    asyncio.run(finalizing.complete_sinks(sqlite, run.run_id))

    folder = tmp_path / "out" / run.run_id
    lines = [line for part in folder.glob("trials-*.jsonl") for line in part.open()]
    assert sorted(json.loads(line)["case_id"] for line in lines) == [f"case-{n}" for n in range(4)]
    assert json.loads((folder / "complete.json").read_text())["trials"] == 4
