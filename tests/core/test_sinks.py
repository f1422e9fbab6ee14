"""The folder sinks: every trial once, in valid JSON, whatever is killed or full."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
import pytest

from tests.factories import no_secret
from weirbox.domain.exporting import JsonlSink, ParquetSink, SinkSpec
from weirbox.domain.score import Proposal, Score
from weirbox.domain.seams import RunHeader, Sink, TrialExport
from weirbox.domain.trace import Observation, Snapshot, TraceEvent, Usage
from weirbox.domain.words import (
    Disposition,
    EventKind,
    ExportStatus,
    ProposedAction,
    Reason,
    RuleOutcome,
    ScoreState,
    Source,
    Verdict,
)
from weirbox.errors import SinkError
from weirbox.sinks import build, parquet

HEADER = RunHeader(
    run_id="run-1",
    suite="answers",
    kind="full",
    dataset_digest="ab" * 32,
    created_at="2026-11-01T00:00:00+00:00",
)
SCORES = (
    Score(name="match", value=True, passed=True, rationale="equal"),
    Score(
        name="tone",
        state=ScoreState.UNSCORED,
        reason=Reason.REFUSAL,
        source=Source.JUDGE,
        rationale="I cannot help with that.",
    ),
)


def a_trial(case_id: str = "one", **changes: Any) -> TrialExport:
    trial = TrialExport(
        run_id="run-1",
        suite="answers",
        case_id=case_id,
        trial=1,
        entry_digest=f"digest of {case_id}",
        category="easy",
        input={"question": "2 + 2"},
        target="4",
        output="4",
        observation=Observation(
            output="4",
            duration=0.5,
            model="small",
            usage=Usage(input_tokens=10, output_tokens=2, cost_usd=0.001),
            trace=(TraceEvent(kind=EventKind.LLM_CALL, name="ask", data={"stop": None}),),
        ),
        state=ScoreState.SCORED,
        verdict=Verdict.PASS,
        disposition=Disposition.CLEAN,
        deciding="objective",
        scores=SCORES,
        proposals=(Proposal(check="x", action=ProposedAction.CORRECT, message="mend"),),
        cost_usd=0.001,
        error=None,
        executed_at="2026-11-01T00:00:01+00:00",
        judged_at=None,
    )
    return trial.model_copy(update=changes)


def jsonl(folder: Path) -> SinkSpec:
    return JsonlSink(kind="jsonl", path=str(folder))


def parquet_spec(folder: Path) -> SinkSpec:
    return ParquetSink(kind="parquet", path=str(folder))


async def ready(spec: SinkSpec, header: RunHeader = HEADER) -> Sink:
    sink = build(spec, no_secret)
    await sink.set_up(header)
    return sink


async def send_all(sink: Sink, *trials: TrialExport) -> list[ExportStatus]:
    return [(await sink.send(trial)).status for trial in trials]


def strict(text: str) -> Any:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """What a plain reader of the run's folder finds."""
    parts = sorted(folder.rglob("trials-*.jsonl"))
    return [strict(line) for part in parts for line in part.read_text("ascii").splitlines()]


def text_at(url: str) -> str:
    return Path(unquote(urlparse(url).path)).read_text()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def one_line(folder: Path, trial: TrialExport) -> dict[str, Any]:
    sink = await ready(jsonl(folder))
    assert await send_all(sink, trial) == [ExportStatus.SUCCEEDED]
    await sink.aclose()
    (line,) = lines_in(folder)
    return line


async def test_a_line_holds_the_whole_trial(tmp_path: Path) -> None:
    line = await one_line(tmp_path, a_trial())
    observation = line.pop("observation")
    scores = line.pop("scores")
    assert line == {
        "run_id": "run-1",
        "suite": "answers",
        "case_id": "one",
        "trial": 1,
        "entry_digest": "digest of one",
        "round": 1,
        "category": "easy",
        "input": {"question": "2 + 2"},
        "target": "4",
        "output": "4",
        "state": "scored",
        "verdict": "pass",
        "disposition": "clean",
        "deciding": "objective",
        "proposals": [{"check": "x", "action": "correct", "message": "mend"}],
        "cost_usd": 0.001,
        "error": None,
        "executed_at": "2026-11-01T00:00:01+00:00",
        "judged_at": None,
    }
    assert observation == {
        "duration": 0.5,
        "model": "small",
        "usage": {"input_tokens": 10, "output_tokens": 2, "cost_usd": 0.001},
        "trace": [{"kind": "llm_call", "name": "ask", "data": {"stop": None}}],
    }
    assert [(s["name"], s["state"], s["source"], s["rationale"]) for s in scores] == [
        ("match", "scored", "grader", "equal"),
        ("tone", "unscored", "judge", "I cannot help with that."),
    ]


async def test_a_score_that_was_not_measured_has_a_reason_and_no_value(tmp_path: Path) -> None:
    tone = (await one_line(tmp_path, a_trial()))["scores"][1]
    assert (tone["state"], tone["reason"]) == ("unscored", "refusal")
    assert not {"value", "passed"} & set(tone)


async def test_values_keep_their_types(tmp_path: Path) -> None:
    values = [True, 1, 1.0, "1"]
    scores = tuple(Score(name=f"s{i}", value=value) for i, value in enumerate(values))
    line = await one_line(tmp_path, a_trial(scores=scores))
    found = [score["value"] for score in line["scores"]]
    assert [(type(value), value) for value in found] == [(type(value), value) for value in values]


async def test_what_json_cannot_write_is_marked_and_the_line_stays_valid(tmp_path: Path) -> None:
    trial = a_trial(
        "nul \0 line \u2028 \x85 end",
        input=[math.nan, {"up": math.inf, "down": -math.inf}],
    )
    line = await one_line(tmp_path, trial)
    assert line["case_id"] == "nul \0 line \u2028 \x85 end"
    assert line["input"] == ["float:NaN", {"up": "float:Infinity", "down": "float:-Infinity"}]


async def test_lone_surrogates_are_escaped_and_pairs_stay(tmp_path: Path) -> None:
    trial = a_trial(
        output="lone \ud800 pair \U0001f600",
        observation=Observation(snapshot=Snapshot(stdout="\udcff")),
    )
    line = await one_line(tmp_path, trial)
    assert line["output"] == "lone \\ud800 pair \U0001f600"
    assert line["observation"] == {"snapshot": {"stdout": "\\udcff"}}


async def test_the_header_stands_beside_the_parts(tmp_path: Path) -> None:
    await ready(jsonl(tmp_path))
    assert strict((tmp_path / "run-1" / "run.json").read_text()) == HEADER.model_dump()


async def test_the_url_is_the_part_that_holds_the_trial(tmp_path: Path) -> None:
    sink = await ready(jsonl(tmp_path / "with space"))
    outcome = await sink.send(a_trial())
    assert outcome.url is not None
    assert "digest of one" in text_at(outcome.url)
    again = await ready(jsonl(tmp_path / "with space"))
    assert (await again.send(a_trial())).url == outcome.url


async def test_sending_a_trial_again_changes_no_count(tmp_path: Path) -> None:
    sink = await ready(jsonl(tmp_path))
    await send_all(sink, a_trial("a"), a_trial("b"), a_trial("a"))
    await sink.set_up(HEADER)
    await send_all(sink, a_trial("b"), a_trial("c"))
    restarted = await ready(jsonl(tmp_path))
    await send_all(restarted, a_trial("a"), a_trial("c"), a_trial("d"))
    assert sorted(line["case_id"] for line in lines_in(tmp_path)) == ["a", "b", "c", "d"]


async def test_a_trial_that_another_driver_sent_meanwhile_is_not_written_again(
    tmp_path: Path,
) -> None:
    one, two = await ready(jsonl(tmp_path)), await ready(jsonl(tmp_path))
    await send_all(one, a_trial("a"))
    assert await send_all(two, a_trial("a"), a_trial("b")) == [ExportStatus.SUCCEEDED] * 2
    await send_all(one, a_trial("b"))
    assert [line["case_id"] for line in lines_in(tmp_path)].count("a") == 1
    assert len(lines_in(tmp_path)) == 2


async def test_drivers_that_send_the_same_trials_at_once_write_each_once(tmp_path: Path) -> None:
    sinks = [await ready(jsonl(tmp_path)) for _ in range(3)]
    trials = [a_trial(f"case {i}") for i in range(40)]
    outcomes = await asyncio.gather(*(sink.send(trial) for trial in trials for sink in sinks))
    assert {outcome.status for outcome in outcomes} == {ExportStatus.SUCCEEDED}
    assert sorted(line["case_id"] for line in lines_in(tmp_path)) == sorted(
        trial.case_id for trial in trials
    )


async def test_the_torn_last_line_of_a_killed_driver_is_no_trial(tmp_path: Path) -> None:
    killed = await ready(jsonl(tmp_path))
    await send_all(killed, a_trial("a"), a_trial("b"))
    (part,) = (tmp_path / "run-1").glob("trials-*.jsonl")
    part.write_bytes(part.read_bytes()[:-40])
    sink = await ready(jsonl(tmp_path))
    await send_all(sink, a_trial("a"), a_trial("b"))
    await sink.complete()
    (own,) = set((tmp_path / "run-1").glob("trials-*.jsonl")) - {part}
    assert [strict(line)["case_id"] for line in own.read_text().splitlines()] == ["b"]
    assert strict((tmp_path / "run-1" / "complete.json").read_text())["trials"] == 2


async def test_two_runs_share_a_folder_but_no_trials(tmp_path: Path) -> None:
    other = HEADER.model_copy(update={"run_id": "run-2"})
    sink = await ready(jsonl(tmp_path))
    await send_all(sink, a_trial())
    await sink.set_up(other)
    assert await send_all(sink, a_trial(run_id="run-2")) == [ExportStatus.SUCCEEDED]
    assert len(lines_in(tmp_path / "run-1")) == len(lines_in(tmp_path / "run-2")) == 1


async def test_a_trial_of_another_run_is_refused(tmp_path: Path) -> None:
    outcome = await (await ready(jsonl(tmp_path))).send(a_trial(run_id="run-2"))
    assert outcome.status is ExportStatus.FAILED
    assert "run 'run-2'" in outcome.message
    assert lines_in(tmp_path) == []


@pytest.mark.parametrize("run_id", ["../up", "a/b", "", ".", "..", "a\0b", "x" * 101])
async def test_a_run_id_that_is_no_folder_name_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(SinkError, match="no safe folder name"):
        await ready(jsonl(tmp_path / "out"), HEADER.model_copy(update={"run_id": run_id}))
    assert names_in(tmp_path) == []


async def test_a_sink_that_was_not_set_up_says_so(tmp_path: Path) -> None:
    sink = build(jsonl(tmp_path), no_secret)
    outcome = await sink.send(a_trial())
    assert outcome.status is ExportStatus.FAILED
    assert "has not been set up" in outcome.message
    with pytest.raises(SinkError, match="has not been set up"):
        await sink.complete()


async def test_a_folder_that_cannot_be_written_fails_each_trial_until_it_is_mended(
    tmp_path: Path,
) -> None:
    blocked = tmp_path / "out"
    blocked.write_text("a file where a folder should be")
    sink = build(jsonl(blocked), no_secret)
    with pytest.raises(SinkError, match="sink 'jsonl' cannot be set up"):
        await sink.set_up(HEADER)
    outcome = await sink.send(a_trial())
    assert outcome.status is ExportStatus.FAILED
    assert outcome.message.startswith("sink 'jsonl', case 'one', trial 1: ")
    blocked.unlink()
    assert await send_all(sink, a_trial()) == [ExportStatus.SUCCEEDED]
    await sink.complete()
    assert strict((blocked / "run-1" / "run.json").read_text())["run_id"] == "run-1"


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_a_value_that_no_json_can_hold_fails_its_trial_only(tmp_path: Path) -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    sink = await ready(jsonl(tmp_path))
    bad = a_trial("deep", output=nested)
    assert await send_all(sink, bad, a_trial("fine")) == [
        ExportStatus.FAILED,
        ExportStatus.SUCCEEDED,
    ]
    assert [line["case_id"] for line in lines_in(tmp_path)] == ["fine"]


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from tests.core.test_sinks import a_trial, jsonl, ready

async def main():
    sink = await ready(jsonl(Path(sys.argv[1])))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    full = [await sink.send(a_trial(f"case {i}", output="x" * 1000)) for i in range(5)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    roomy = [await sink.send(a_trial(f"case {i}", output="x" * 1000)) for i in range(5)]
    print(*(outcome.status for outcome in full + roomy))
    print(next(outcome.message for outcome in full if outcome.message))

asyncio.run(main())
"""


def test_a_full_disk_fails_trials_and_tears_no_line(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    statuses, message = ran.stdout.splitlines()
    assert statuses.split().count("failed") >= 1
    assert statuses.split()[5:] == ["succeeded"] * 5
    assert "OSError" in message
    assert sorted(line["case_id"] for line in lines_in(tmp_path)) == [f"case {i}" for i in range(5)]


async def test_completing_again_gives_the_same_count(tmp_path: Path) -> None:
    sink = await ready(jsonl(tmp_path))
    await send_all(sink, a_trial("a"), a_trial("b"))
    await sink.complete()
    finalizer = await ready(jsonl(tmp_path))
    file = tmp_path / "run-1" / "complete.json"
    first = file.read_bytes()
    await finalizer.complete()
    assert file.read_bytes() == first
    found = strict(first.decode())
    assert (found["run_id"], found["trials"], len(found["parts"])) == ("run-1", 2, 1)


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "run-1" / f"{name}.parquet").to_pylist()
    return rows


async def test_completing_makes_one_row_per_trial_and_per_score(tmp_path: Path) -> None:
    sink = await ready(parquet_spec(tmp_path))
    await send_all(sink, a_trial("a"), a_trial("b", output={"n": 4}))
    await sink.complete()
    trials = table(tmp_path, "trials")
    assert list(trials[0]) == list(parquet.TRIALS)
    columns = ("case_id", "output", "input", "verdict", "cost_usd", "model", "input_tokens")
    assert [[row[column] for column in columns] for row in trials] == [
        ["a", "4", '{"question":"2 + 2"}', "pass", 0.001, "small", 10],
        ["b", '{"n":4}', '{"question":"2 + 2"}', "pass", 0.001, "small", 10],
    ]
    scores = table(tmp_path, "scores")
    assert list(scores[0]) == list(parquet.SCORES)
    columns = ("case_id", "name", "state", "reason", "value", "value_bool", "passed", "source")
    assert [[row[column] for column in columns] for row in scores] == [
        ["a", "match", "scored", None, "true", True, True, "grader"],
        ["a", "tone", "unscored", "refusal", None, None, None, "judge"],
        ["b", "match", "scored", None, "true", True, True, "grader"],
        ["b", "tone", "unscored", "refusal", None, None, None, "judge"],
    ]


VALUES = {
    "bool": (False, ("false", "bool", None, False)),
    "int": (1, ("1", "int", 1.0, None)),
    "float": (1.0, ("1.0", "float", 1.0, None)),
    "text": ("1", ("1", "text", None, None)),
    "nan": (math.nan, ("float:NaN", "float", None, None)),
    "huge": (10**400, (str(10**400), "int", None, None)),
}


@pytest.mark.parametrize(("value", "expected"), VALUES.values(), ids=VALUES.keys())
async def test_a_value_stands_as_text_and_typed(
    tmp_path: Path, value: Any, expected: tuple[Any, ...]
) -> None:
    sink = await ready(parquet_spec(tmp_path))
    await send_all(sink, a_trial(scores=(Score(name="s", value=value),)))
    await sink.complete()
    (row,) = table(tmp_path, "scores")
    assert (row["value"], row["value_type"], row["value_number"], row["value_bool"]) == expected


async def test_a_rule_score_keeps_its_outcome(tmp_path: Path) -> None:
    rule = Score(name="r", value="review", source=Source.RULE, outcome=RuleOutcome.REVIEW)
    sink = await ready(parquet_spec(tmp_path))
    await send_all(sink, a_trial(scores=(rule,)))
    await sink.complete()
    (row,) = table(tmp_path, "scores")
    assert (row["outcome"], row["source"], row["value"]) == ("review", "rule", "review")


async def test_tables_have_every_trial_once_though_parts_repeat_it(tmp_path: Path) -> None:
    sink = await ready(parquet_spec(tmp_path))
    await send_all(sink, a_trial("a"), a_trial("b"))
    staging = tmp_path / "run-1" / "_staging"
    (part,) = staging.glob("trials-*.jsonl")
    torn = part.read_bytes() + part.read_bytes()[:100]
    (staging / "trials-copied.jsonl").write_bytes(torn)
    await sink.complete()
    assert [row["case_id"] for row in table(tmp_path, "trials")] == ["a", "b"]
    assert len(table(tmp_path, "scores")) == 4


async def test_completing_again_takes_in_trials_sent_later(tmp_path: Path) -> None:
    sink = await ready(parquet_spec(tmp_path))
    await send_all(sink, a_trial("a"))
    await sink.complete()
    restarted = await ready(parquet_spec(tmp_path))
    await send_all(restarted, a_trial("a"), a_trial("b"))
    await restarted.complete()
    await sink.complete()
    assert sorted(row["case_id"] for row in table(tmp_path, "trials")) == ["a", "b"]
    assert names_in(tmp_path / "run-1") == [
        "_staging",
        "run.json",
        "scores.parquet",
        "trials.parquet",
    ]


async def test_a_run_without_trials_has_empty_tables(tmp_path: Path) -> None:
    sink = await ready(parquet_spec(tmp_path))
    await sink.complete()
    assert table(tmp_path, "trials") == table(tmp_path, "scores") == []


async def test_tables_are_made_in_batches_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "BATCH_BYTES", 200_000)
    sink = await ready(parquet_spec(tmp_path))
    await send_all(sink, *(a_trial(f"case {i}", output="x" * 100_000) for i in range(60)))
    tracemalloc.start()
    await sink.complete()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(table(tmp_path, "trials")) == 60
    assert peak < 60 * 100_000 / 2


def test_building_sinks_does_not_import_pyarrow() -> None:
    code = "import sys, weirbox.sinks; print('pyarrow' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_building_a_sink_writes_nothing(tmp_path: Path, kind: str) -> None:
    spec = jsonl(tmp_path / "out") if kind == "jsonl" else parquet_spec(tmp_path / "out")
    sink = build(spec, no_secret)
    await sink.aclose()
    assert sink.name == kind
    assert names_in(tmp_path) == []


async def test_trials_that_are_sent_together_are_each_written_once(tmp_path: Path) -> None:
    sink = await ready(jsonl(tmp_path))
    trials = [a_trial(f"case-{n}", entry_digest=f"{n:064x}") for n in range(50)]

    outcomes = await asyncio.gather(*(sink.send(one) for one in (*trials, *trials)))
    await sink.aclose()

    assert {outcome.status for outcome in outcomes} == {ExportStatus.SUCCEEDED}
    assert sorted(line["case_id"] for line in lines_in(tmp_path)) == sorted(
        one.case_id for one in trials
    )
