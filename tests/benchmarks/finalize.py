"""Time finalize: 1,000,000 scores, by default 250,000 trials with 4 checks each.

The rows are made by SQL: a check that passes or fails, one whose numbers are all different,
a rule, and a judge with a call per trial; one score in 32 could not be measured. Each
measurement is a fresh process, whose peak of memory is its own. For PostgreSQL a server is
started, where its programs are installed.

    python -m tests.benchmarks.finalize --trials 250000 --json
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, func, select, text, update

from tests import postgres
from tests.factories import plan, suite
from weirbox.domain.words import RunStatus
from weirbox.pipeline.finalizing import finalize
from weirbox.store.base import CALL, RUN, SCORE, SCORE_TEXT, TRIAL
from weirbox.store.engine import Database, open_database
from weirbox.store.writes import change_status

ROOT = Path(__file__).parents[2]

MOST_S, MOST_MIB = 15.0, 250.0
"""What finalizing 1,000,000 scores may take."""

CHECKS = ("match", "rank", "shape", "tone")

TIMES = 2
"""Measurements; the faster one counts, as a machine has other things to do, too."""

BATCH = 50_000
"""Trials made by one statement."""

_TRIAL = {
    "seq": "n",
    "case_id": "'case-' || n",
    "case_key": "'key-' || n",
    "entry_digest": "'entry-' || n",
    "stage": "'done'",
    "state": "'scored'",
    "category": "'category ' || (n % 7)",
    "verdict": "CASE WHEN n % 3 = 0 THEN 'fail' ELSE 'pass' END",
    "disposition": "CASE WHEN n % 5 = 0 THEN 'review' ELSE 'clean' END",
    "deciding": "'objective'",
    "compute_s": "(n * 7919 % 60000) / 1000.0",
}
"""What tells one trial from another; the rest is as in the one that was planned."""

_SPANS = (
    ("execute_started_at", "executed_at", 60_000),
    ("judge_started_at", "judged_at", 9_000),
    ("export_started_at", "exported_at", 300),
)

_MISSED = "(n + c) % 32 = 0"

_NAME = f"CASE c {' '.join(f'WHEN {c} THEN {name!r}' for c, name in enumerate(CHECKS))} END"

_SCORE = {
    "run_id": ":run",
    "seq": "n",
    "name": _NAME,
    "state": f"CASE WHEN {_MISSED} THEN 'unscored' ELSE 'scored' END",
    "reason": f"CASE WHEN {_MISSED} THEN 'timeout' END",
    "value_kind": f"CASE WHEN {_MISSED} THEN NULL WHEN c = 1 THEN 'float' ELSE 'bool' END",
    "value_number": f"CASE WHEN {_MISSED} THEN NULL WHEN c = 1"
    " THEN (n * 7919 % 1000003) / 1000003.0 ELSE n % 2 END",
    "passed": f"CASE WHEN {_MISSED} OR c = 1 THEN NULL ELSE n % 2 = 0 END",
    "authority": "'objective'",
    "source": "'grader'",
    "required": "n >= 0",
}

_TEXT = {
    "run_id": ":run",
    "seq": "n",
    "name": _NAME,
    "rationale": "'no answer within ' || (n % 9) || ' s'",
}

_CALL = {
    "run_id": ":run",
    "seq": "n",
    "check_name": "'tone'",
    "tier": "'primary'",
    "model": "'small'",
    "provider": "'account'",
    "request_digest": "'request-' || n",
    "input_tokens": "900",
    "output_tokens": "40",
    "cost_nusd": "1200 + n % 100",
    "cached": "n < 0",
    "ok": "n % 50 <> 0",
    "message": "''",
    "duration": "0.5",
    "at": "CURRENT_TIMESTAMP",
}


def completed_run(database: Database, trials: int) -> str:
    """A completed run of so many trials; its rows are made by SQL."""
    run_id = plan(database, suite(1))
    ends = {"run": run_id, "first": 0, "last": 0, "c": 0}
    for first in range(1, trials + 1, BATCH):
        ends |= {"first": first, "last": min(first + BATCH - 1, trials)}
        with database.write() as connection:
            _fill(connection, TRIAL, _trial_columns(database.sqlite), ends)
            for number in range(len(CHECKS)):
                _fill(connection, SCORE, _SCORE, ends | {"c": number})
                _fill(connection, SCORE_TEXT, _TEXT, ends | {"c": number}, where=_MISSED)
            _fill(connection, CALL, _CALL, ends)
    with database.write() as connection:
        connection.execute(TRIAL.delete().where(TRIAL.c.run_id == run_id, TRIAL.c.seq == 0))
        connection.execute(
            update(RUN).where(RUN.c.id == run_id).values(planned=trials, calls=trials)
        )
        change_status(connection, run_id, to=RunStatus.RUNNING)
        change_status(connection, run_id, to=RunStatus.COMPLETED)
        connection.execute(text("ANALYZE"))
    return run_id


def _trial_columns(sqlite: bool) -> dict[str, str]:
    """SQL for every column of a trial."""
    columns = {column.name: f"t.{column.name}" for column in TRIAL.columns} | _TRIAL
    start = "2026-11-01 12:00:00"
    for begin, end, most in _SPANS:
        took = f"(n * 7919 % {most})"
        if sqlite:
            columns[begin] = f"'{start}.000000'"
            moment = f"strftime('%Y-%m-%d %H:%M:%f', '{start}', ({took} / 1000.0) || ' seconds')"
            columns[end] = f"{moment} || '000'"
        else:
            columns[begin] = f"TIMESTAMPTZ '{start}+00'"
            columns[end] = f"TIMESTAMPTZ '{start}+00' + {took} * INTERVAL '1 millisecond'"
    return columns


def _fill(
    connection: Connection,
    table: Table,
    columns: dict[str, str],
    ends: dict[str, Any],
    *,
    where: str = "n > 0",
) -> None:
    """Insert one row for each number, whose columns are SQL over ``n`` and ``c``."""
    series = (
        "WITH RECURSIVE series(n, c) AS (SELECT CAST(:first AS BIGINT), CAST(:c AS INTEGER)"
        " UNION ALL SELECT n + 1, c FROM series WHERE n < :last) "
    )
    template = ", trial t WHERE t.run_id = :run AND t.seq = 0 AND" if table is TRIAL else " WHERE"
    sql = (
        f"INSERT INTO {table.name} ({', '.join(columns)}) {series}"
        f"SELECT {', '.join(columns.values())} FROM series{template} {where}"
    )
    connection.execute(text(sql), ends)


def measured(url: str, run_id: str) -> dict[str, Any]:
    """Finalize in a fresh process: seconds, and the peak of its memory in MiB."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.finalize", "--measure", url, run_id],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(url: str, run_id: str) -> None:
    database = open_database(url)
    started = time.perf_counter()
    finalize(database, run_id)
    seconds = time.perf_counter() - started
    with database.read() as connection:
        statement = select(func.count()).select_from(SCORE).where(SCORE.c.run_id == run_id)
        scores = connection.execute(statement).scalar_one()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"scores": scores, "seconds": round(seconds, 2), "mib": round(peak, 1)}))


@contextmanager
def databases() -> Iterator[dict[str, str]]:
    """The address of an empty database of each kind that is to be had here."""
    with tempfile.TemporaryDirectory() as folder:
        urls = {"sqlite": f"sqlite:///{folder}/weirbox.db"}
        programs = postgres.server_programs()
        if programs is None:
            yield urls
            return
        with postgres.server(programs) as place:
            postgres.create(place, "finalize")
            yield urls | {"postgresql": postgres.url(place, "finalize")}


def main() -> None:
    """Measure on both databases, and print the table."""
    parser = argparse.ArgumentParser(description="Time finalize on both databases.")
    parser.add_argument("--trials", type=int, default=1_000_000 // len(CHECKS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("URL", "RUN"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        _measure(*given.measure)
        return
    found = {}
    with databases() as urls:
        for name, url in urls.items():
            database = open_database(url)
            run_id = completed_run(database, given.trials)
            database.close()
            runs = [measured(url, run_id) for _ in range(TIMES)]
            found[name] = min(runs, key=lambda row: row["seconds"])
    if given.json:
        print(json.dumps(found))
        return
    print(f"{'database':12} {'scores':>10} {'seconds':>8} {'MiB':>7}")
    for name, row in found.items():
        print(f"{name:12} {row['scores']:>10,} {row['seconds']:>8} {row['mib']:>7}")
    print(f"{'bound':12} {1_000_000:>10,} {MOST_S:>8} {MOST_MIB:>7}")


if __name__ == "__main__":
    main()
