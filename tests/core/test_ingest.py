"""Results that were produced elsewhere: read, frozen, judged and exported as a run."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import weirbox
from tests import factories
from tests.factories import column, counts, go_on, scores, summary, timeline, trials
from weirbox import cli
from weirbox.domain.given import GivenScore
from weirbox.domain.recording import Recording
from weirbox.domain.run import RunSummary
from weirbox.domain.spec import DatasetSpec
from weirbox.domain.trace import Observation
from weirbox.domain.words import RunKind, RunStatus
from weirbox.errors import UserError
from weirbox.ingesting import plan_ingested
from weirbox.pipeline.growing import add_dataset
from weirbox.pipeline.planning import Planned
from weirbox.runtime import Runtime
from weirbox.settings import Settings
from weirbox.store import queries
from weirbox.store.engine import Database
from weirbox.store.rows import unpack_case, unpack_observation
from weirbox.testing import ReplayJudge


def planned(
    database: Database, results: Any, suite: Any = None, *, name: str | None = None
) -> Planned:
    runtime = Runtime(factories.settings(), database, factories.no_secret)
    return plan_ingested(runtime, results, suite, name=name)


def ingested(database: Database, results: Any, suite: Any = None, **options: Any) -> RunSummary:
    return go_on(database, planned(database, results, suite).run_id, **options)


def lines(file: Path, *records: Any) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def observation(database: Database, run_id: str, seq: int = 0) -> Observation:
    digest = trials(database, run_id)[seq].observation
    with database.read() as connection:
        return unpack_observation(queries.payload(connection, digest))


def record_of(database: Database, run_id: str, seq: int = 0) -> Any:
    digest = trials(database, run_id)[seq].case_digest
    with database.read() as connection:
        return unpack_case(queries.payload(connection, digest)).record


def warnings(database: Database, run_id: str) -> list[str]:
    return [message for kind, message in timeline(database, run_id) if kind == "warning"]


# --- scores -----------------------------------------------------------------------


def test_every_score_of_the_results_is_a_check_and_keeps_its_type(database: Database) -> None:
    given = {"yes": True, "one": 1, "half": 1.0, "text": "1", "no": False}

    run = ingested(database, [{"id": "a", "output": "x", "scores": given}])

    found = scores(database, run.run_id)
    assert {name: (score.value, type(score.value)) for name, score in found.items()} == {
        "yes": (True, bool),
        "one": (1, int),
        "half": (1.0, float),
        "text": ("1", str),
        "no": (False, bool),
    }
    assert {name: score.passed for name, score in found.items()} == {
        "yes": True,
        "no": False,
        "one": None,
        "half": None,
        "text": None,
    }
    assert {(score.source, score.authority) for score in found.values()} == {("grader", "other")}
    assert run.status is RunStatus.COMPLETED
    assert run.finalized_at is not None
    assert run.verdicts.failed == 1


GIVEN = {
    "null": (None, ("unscored", "empty", None, None)),
    "blank": ("  ", ("unscored", "empty", None, None)),
    "the word": ("unscored", ("unscored", "empty", None, None)),
    "not a number": (float("nan"), ("unscored", "out_of_range", None, None)),
    "infinity": (float("-inf"), ("unscored", "out_of_range", None, None)),
    "a number beyond floats": (10**400, ("unscored", "out_of_range", None, None)),
    "zero": (0, ("scored", None, 0, None)),
    "passed alone": ({"passed": True}, ("scored", None, True, True)),
    "passed against its value": ({"value": 0.9, "passed": False}, ("scored", None, 0.9, False)),
    "a known reason": ({"value": None, "reason": "refusal"}, ("unscored", "refusal", None, None)),
    "another reason": ({"value": None, "reason": "rained"}, ("unscored", "empty", None, None)),
    "a state over a value": ({"value": 0, "state": "unscored"}, ("unscored", "empty", None, None)),
    "errored": ({"state": "errored"}, ("errored", "grader_error", None, None)),
    "skipped": ({"state": "skipped"}, ("skipped", "policy_skip", None, None)),
    "NaN that passed": (
        {"value": float("nan"), "passed": True},
        ("unscored", "out_of_range") + 2 * (None,),
    ),
}


@pytest.mark.parametrize("case", GIVEN)
def test_what_is_no_value_is_never_a_number(case: str) -> None:
    raw, expected = GIVEN[case]

    score = GivenScore.model_validate(raw)

    assert (score.state, score.reason, score.value, score.passed) == expected
    assert GivenScore.model_validate(score.model_dump(mode="python")) == score


def test_what_a_score_says_besides_is_kept() -> None:
    score = GivenScore.model_validate(
        {"value": 2, "reason": "too long", "label": "bad", "by": "me"}
    )
    dropped = GivenScore.model_validate({"value": 0, "state": "errored"})

    assert score.rationale == "too long"
    assert score.detail == {"label": "bad", "by": "me"}
    assert dropped.detail == {"value": 0}


@pytest.mark.parametrize(
    "raw",
    [
        [1],
        {"value": [1]},
        {"vaule": 1},
        {"value": 1, "state": "fine"},
        {"state": "scored"},
        {"value": 1, "passed": 1},
    ],
    ids=["list", "list as value", "typo", "state", "scored without value", "passed as number"],
)
def test_what_is_no_score_is_refused(raw: Any) -> None:
    with pytest.raises(ValidationError):
        GivenScore.model_validate(raw)


def test_a_score_that_only_some_records_have_holds_none_of_the_others_up(
    sqlite: Database,
) -> None:
    everywhere = [{"id": n, "scores": {"all": n} | ({"some": 1} if n else {})} for n in range(3)]

    run = ingested(sqlite, everywhere)
    nulled = ingested(
        sqlite, [{"id": "a", "scores": {"all": 1}}, {"id": "b", "scores": {"all": None}}]
    )

    assert run.dispositions.clean == 3
    assert scores(sqlite, run.run_id)["some"].reason == "missing_evidence"
    assert column(sqlite, nulled.run_id, "disposition") == ["clean", "review"]


def test_a_trial_that_failed_elsewhere_is_errored_with_its_message(database: Database) -> None:
    records = [
        {
            "id": "a",
            "error": "out of memory",
            "trace": [{"kind": "log", "text": "t"}],
            "scores": {"s": 0},
        },
        {"id": "b", "error": {"message": "lost", "type": "Timeout"}, "scores": {"s": 0}},
        {"id": "c", "error": "", "output": 1, "scores": {"s": 1}},
    ]

    run = ingested(database, records)

    assert (run.progress.errored, run.progress.scored) == (2, 1)
    assert column(database, run.run_id, "error_message") == ["out of memory", "lost", None]
    assert scores(database, run.run_id)["s"].value is None
    assert [event.text for event in observation(database, run.run_id).trace] == ["t"]


# --- cases and trials ---------------------------------------------------------------


def test_repeats_are_the_highest_trial_and_pairs_without_a_record_are_errored(
    database: Database,
) -> None:
    records = [
        {"id": "a", "input": "q", "output": 1, "scores": {"ok": True}},
        {"id": "a", "trial": 3, "input": "q", "output": 3, "scores": {"ok": True}},
        {"id": "b", "trial": 2, "output": 2, "scores": {"ok": True}},
    ]

    run = ingested(database, records)

    rows = trials(database, run.run_id)
    assert [(row.case_id, row.trial, row.error_kind) for row in rows] == [
        ("a", 1, None),
        ("a", 2, "missing_recording"),
        ("a", 3, None),
        ("b", 1, "missing_recording"),
        ("b", 2, None),
        ("b", 3, "missing_recording"),
    ]
    assert observation(database, run.run_id, 2).output == 3
    assert rows[1].error_message == (
        "no recorded answer for case 'a': 'records' has no line for it (trial 2)"
    )
    assert warnings(database, run.run_id) == [
        "3 of 6 trials (3 of each case) have no record: they are errored (missing_recording)"
    ]


def test_a_record_without_an_id_gets_one_of_its_input(sqlite: Database) -> None:
    records = [{"input": {"q": n}, "output": n, "scores": {"s": n}} for n in range(2)]

    first = column(sqlite, ingested(sqlite, records).run_id, "case_id")
    again = column(sqlite, ingested(sqlite, records[::-1]).run_id, "case_id")

    assert first == again[::-1]
    assert len(set(first)) == 2


def test_what_else_a_record_says_is_in_the_case_and_of_later_trials_in_the_trace(
    sqlite: Database,
) -> None:
    records = [
        {"id": "a", "input": "q", "scores": {"s": 1}, "lang": "de", "ms": 1},
        {"id": "a", "trial": 2, "scores": {"s": 1}, "lang": "de", "ms": 2},
    ]

    run = ingested(sqlite, records)

    assert record_of(sqlite, run.run_id) == {"id": "a", "input": "q", "lang": "de", "ms": 1}
    assert observation(sqlite, run.run_id, 0).trace == ()
    (event,) = observation(sqlite, run.run_id, 1).trace
    assert (event.kind, event.name, event.data) == ("log", "record", {"lang": "de", "ms": 2})


def test_the_same_results_give_the_same_dataset_and_recordings(
    sqlite: Database, tmp_path: Path
) -> None:
    file = lines(tmp_path / "r.jsonl", {"id": "a", "output": 1, "scores": {"s": 1}})

    plans = []
    for _ in range(2):
        run_id = planned(sqlite, file).run_id
        with sqlite.read() as connection:
            plans.append(queries.load_plan(connection, run_id))

    one, other = plans
    assert one.dataset == other.dataset
    assert one.dataset.name == "r.jsonl"
    assert [file.digest for file in one.files] == [file.digest for file in other.files]
    assert one.suite.suite == "r"


def test_nothing_is_read_once_the_run_is_planned(database: Database, tmp_path: Path) -> None:
    file = lines(tmp_path / "r.jsonl", {"id": "a", "output": "kept", "scores": {"ok": True}})
    run_id = planned(database, file).run_id
    with database.read() as connection:
        plan = queries.load_plan(connection, run_id)
    file.unlink()

    run = go_on(database, run_id)

    assert not any(Path(frozen.path).exists() for frozen in plan.files)
    assert run.verdicts.passed == 1
    assert observation(database, run_id).output == "kept"
    assert ("ingested", "1 trials of 1 cases from r.jsonl, 0 of them failed") in timeline(
        database, run_id
    )


# --- with a suite -------------------------------------------------------------------


def test_with_a_suite_its_judges_budget_and_sinks_apply_to_what_was_pushed(
    database: Database, tmp_path: Path
) -> None:
    suite = factories.judged(
        5,
        budget={"calls": 2},
        sinks=[{"kind": "jsonl", "path": str(tmp_path / "out")}],
        repeats=4,
    )
    records = [{"id": f"case-{n}", "output": f"in {n}", "scores": {"own": n}} for n in (1, 2, 4)]

    run = ingested(
        database,
        records,
        suite,
        fakes=factories.Fakes(provider=ReplayJudge(lambda request: factories.PASSES)),
    )

    assert run.kind is RunKind.DELTA
    assert column(database, run.run_id, "case_id") == ["case-1", "case-2", "case-4"]
    assert run.calls == 2
    found = scores(database, run.run_id)
    assert {name: score.value for name, score in found.items() if name != "quality"} == {
        "match": True,
        "own": 1,
    }
    states = [scores(database, run.run_id, seq)["quality"].state for seq in range(3)]
    assert sorted(states) == ["scored", "scored", "unscored"]
    sent = [
        json.loads(line) for file in (tmp_path / "out").rglob("*.jsonl") for line in file.open()
    ]
    assert {trial["case_id"] for trial in sent} == {"case-1", "case-2", "case-4"}
    assert warnings(database, run.run_id) == [
        "cases of the dataset that are not among the results, and not in this run: 2"
    ]


def test_results_for_every_case_make_a_full_run_whatever_their_order(sqlite: Database) -> None:
    suite = factories.suite(3)

    run = ingested(sqlite, [{"id": f"case-{n}", "output": "x"} for n in (2, 0, 1)], suite)

    assert run.kind is RunKind.FULL
    assert column(sqlite, run.run_id, "case_id") == ["case-0", "case-1", "case-2"]
    assert run.verdicts.failed == 3
    assert warnings(sqlite, run.run_id) == []


def test_a_given_grader_of_the_suite_sets_threshold_authority_and_need(sqlite: Database) -> None:
    given = {"kind": "given", "name": "quality", "pass_at": 0.5, "authority": "ground_truth"}
    suite = factories.suite(3, graders=[given, {"kind": "answer-match", "name": "match"}])
    records = [
        {"id": "case-0", "output": "wrong", "scores": {"quality": 0.5, "match": False}},
        {"id": "case-1", "output": "in 1", "scores": {"quality": 0.4, "match": False}},
        {"id": "case-2", "output": "in 2", "scores": {"quality": {"value": 0.1, "passed": True}}},
    ]

    run = ingested(sqlite, records, suite)

    assert column(sqlite, run.run_id, "verdict") == ["pass", "fail", "pass"]
    assert [scores(sqlite, run.run_id, seq)["match"].value for seq in range(3)] == [
        False,
        True,
        True,
    ]
    assert warnings(sqlite, run.run_id) == [
        "scores that are not taken over, as checks of the suite have their names: 'match'"
    ]


def test_an_input_that_is_not_the_datasets_is_told(sqlite: Database) -> None:
    records = [
        {"id": "case-0", "input": "in 0", "output": "x"},
        {"id": "case-1", "input": "other", "output": "x"},
    ]

    run = ingested(sqlite, records, factories.suite(2))

    assert warnings(sqlite, run.run_id) == [
        "cases whose input in the results is not the dataset's, which counts: 1: 'case-1'"
    ]


def test_ids_that_the_dataset_does_not_have_are_refused_with_the_first_five(
    database: Database, tmp_path: Path
) -> None:
    records = [{"id": "case-0", "output": 1}] + [{"id": f"x{n}", "output": 1} for n in range(7)]
    file = lines(tmp_path / "r.jsonl", *records)
    before = counts(database)

    with pytest.raises(UserError) as caught:
        planned(database, file, factories.suite(2))

    assert str(caught.value) == (
        f"results {str(file)!r}: cases that the dataset of suite 'tested' does not have: 7: "
        "'x0' (line 2), 'x1' (line 3), 'x2' (line 4), 'x3' (line 5), 'x4' (line 6) and 2 more: "
        "give the ids of the dataset, or leave the suite out"
    )
    assert counts(database) == before


def test_a_suite_may_take_its_cases_from_the_store(database: Database) -> None:
    inline = DatasetSpec(records=tuple(factories.records(3)))
    add_dataset(database, inline, folder="/", name="kept")
    suite = factories.suite(dataset={"name": "kept"})

    run = ingested(database, [{"id": "case-1", "output": "in 1"}], suite)

    assert (run.kind, run.verdicts.passed) == (RunKind.DELTA, 1)
    assert column(database, run.run_id, "case_id") == ["case-1"]


def test_a_suite_needs_the_ids_of_its_cases(sqlite: Database) -> None:
    with pytest.raises(UserError, match="record 0: a record needs the 'id'"):
        planned(sqlite, [{"input": "in 0", "output": 1}], factories.suite(1))


# --- hostile results ----------------------------------------------------------------


def test_hostile_texts_come_through_whole(database: Database, tmp_path: Path) -> None:
    records = [
        {"id": "A", "output": "x" * 2**20, "scores": {"s": 1}},
        {"id": "a", "output": "line\u2028sep\u2029para\x85nel", "scores": {"s": 1}},
        {"id": "n" * 10_000, "output": "nul \0 and \ud800", "scores": {"s": {"value": "\0\udfff"}}},
        {"id": "nul\0id", "input": "\ud800", "output": float("nan"), "scores": {"s": 1}},
        {"id": 1, "output": True, "scores": {"s": 1}},
        {"id": 1.0, "output": 1, "scores": {"s": 1}},
    ]
    text = "\ufeff" + "\r\n\r\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    file = tmp_path / "r.jsonl.gz"
    file.write_bytes(gzip.compress(text.encode("utf-8", "replace")))
    plain = lines(tmp_path / "plain.jsonl", *records)

    packed = ingested(database, file)
    run = ingested(database, plain)

    assert packed.progress.scored == run.progress.scored == 6
    assert packed.dataset == "r.jsonl"
    ids = column(database, run.run_id, "case_id")
    assert ids == ["A", "a", "n" * 10_000, "nul\\x00id", "1", "1.0"]
    outputs = [observation(database, run.run_id, seq).output for seq in range(6)]
    assert outputs[:3] == [record["output"] for record in records[:3]]
    assert outputs[3] != outputs[3]
    assert outputs[4] is True
    assert outputs[5] == 1
    assert outputs[5] is not True
    assert observation(database, packed.run_id, 1).output == records[1]["output"]


def test_scores_may_be_called_as_columns_are(sqlite: Database) -> None:
    given = {"case_id": 1, "state": 2, "a": 3, "a.state": 4, "a.b": 5, "nul\0": 6, "A": 7}

    run = ingested(sqlite, [{"id": "x", "scores": given}])

    assert {n: s.value for n, s in scores(sqlite, run.run_id).items()} == {
        "case_id": 1, "state": 2, "a": 3, "a.state": 4, "a.b": 5, "nul\\x00": 6, "A": 7
    }  # fmt: skip


GOOD = '{"id": "a", "output": 1, "scores": {"s": 1}}\n'

BAD = {
    "no JSON": (GOOD + "{", "line 2: not JSON: expecting property name"),
    "no object": (GOOD + "[1]", "line 2: a record is an object, not a list"),
    "twice": (GOOD + "\n" + GOOD, "line 3: trial 1 of case 'a' is there twice; line 1 has it too"),
    "NUL alike": (
        '{"id": "a\\u0000", "output": 1}\n{"id": "a\\\\x00", "output": 1}',
        "line 2: trial 1 of case 'a\\\\x00' is there twice",
    ),
    "trial 0": ('{"id": "a", "trial": 0, "output": 1}', "line 1: 'trial' is 0"),
    "trial true": ('{"id": "a", "trial": true, "output": 1}', "line 1: 'trial' is True"),
    "trial 1001": ('{"id": "a", "trial": 1001, "output": 1}', "line 1: 'trial' is 1001"),
    "neither id nor input": ('{"output": 1}', "line 1: there is neither an 'id' nor an 'input'"),
    "id of another kind": ('{"id": [1], "output": 1}', "line 1: the id is a list"),
    "nothing recorded": ('{"id": "a"}', "line 1: needs at least one of 'output', 'trace'"),
    "no scores": ('{"id": "a", "output": 1}', "no record has scores, and there is no suite"),
    "scores as a list": ('{"id": "a", "scores": [1]}', "line 1: 'scores' is a list"),
    "score of another kind": ('{"id": "a", "scores": {"s": [1]}}', "line 1: scores.s: a score's"),
    "a long score name": (
        json.dumps({"id": "a", "scores": {"s" * 101: 1}}),
        "line 1: the score name 'ssss",
    ),
    "a blank score name": ('{"id": "a", "scores": {" ": 1}}', "line 1: the score name ' ' has 1"),
    "score names alike": (
        '{"id": "a", "scores": {"s\\u0000": 1, "s\\\\x00": 2}}',
        "line 1: two score names are kept alike",
    ),
    "usage": ('{"id": "a", "output": 1, "usage": {"tokens": 1}}', "line 1: usage.tokens: Extra"),
    "trace": ('{"id": "a", "trace": [{"kind": "x"}]}', "line 1: trace.0.kind: Input should be"),
    "error": ('{"id": "a", "error": [1]}', "line 1: error: Input should be a valid string"),
    "another input": (
        '{"id": "a", "input": 1, "output": 1}\n{"id": "a", "trial": 2, "input": 2, "output": 1}',
        "line 2: the input of case 'a' is another than in line 1",
    ),
    "deep": ('{"id": "a", "output": ' + "[" * 400 + "]" * 400 + "}", "line 1: nested too deeply"),
    "very deep": ('{"id": "a", "output": ' + "[" * 10**5, "line 1: not JSON: nested too deeply"),
    "a long number": ('{"id": "a", "output": ' + "1" * 5000 + "}", "line 1: not JSON: Exceeds"),
    "empty": ("", "nothing to ingest: there are no records"),
    "blank": ("\n \n\ufeff"[:3], "nothing to ingest"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_message_with_its_place_and_nothing_is_written(
    shared_sqlite: Database, tmp_path: Path, case: str
) -> None:
    text, message = BAD[case]
    file = tmp_path / "r.jsonl"
    file.write_text(text)
    before = counts(shared_sqlite)

    with pytest.raises(UserError) as caught:
        planned(shared_sqlite, file)

    said = str(caught.value)
    assert said.startswith(f"results {str(file)!r}")
    assert message in said
    assert "\n" not in said
    assert len(said) < 600 + len(str(file))
    assert counts(shared_sqlite) == before


def test_what_cannot_be_opened_is_refused(sqlite: Database, tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "\xe9"}')
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b"x" * 10_000)[:20])

    for results, message in (
        (tmp_path / "none.jsonl", "there is no such file"),
        (tmp_path, "is a folder"),
        (tmp_path / "latin.jsonl", "is not utf-8: byte 0xe9 at offset 8"),
        (tmp_path / "torn.jsonl.gz", "cannot be read"),
        ("nul\0", "there is no such file|cannot be read"),
        ({"id": "a"}, "put a single record into a list"),
        (7, "results are a file or a list of records, not int"),
        (["a"], "the given records, record 0: a record is an object, not a string"),
        ([{"id": "a", "output": object()}], "record 0: 'output' is not JSON"),
    ):
        with pytest.raises(UserError, match=message):
            planned(sqlite, results)
    assert counts(sqlite)[:2] == [0, 0]


def test_names_of_scores_that_differ_in_every_record_are_refused(sqlite: Database) -> None:
    records = ({"id": n, "scores": {f"s{n}": 1}} for n in range(501))

    with pytest.raises(UserError, match="record 500: more than 500 different names of scores"):
        planned(sqlite, records)


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        ("my results (1).jsonl", None, "my-results-1-"),
        ("...jsonl", None, "ingested"),
        ("r.jsonl", "given", "given"),
    ],
)
def test_the_suite_is_named_after_the_file(
    sqlite: Database, tmp_path: Path, file: str, name: str | None, expected: str
) -> None:
    results = lines(tmp_path / file, {"id": "a", "scores": {"s": 1}})

    run_id = planned(sqlite, results, name=name).run_id

    assert summary(sqlite, run_id).suite == expected


def test_a_name_that_no_suite_can_have_is_refused(sqlite: Database) -> None:
    with pytest.raises(UserError, match="the name 'a b' is none for a suite"):
        planned(sqlite, [{"id": "a", "scores": {"s": 1}}], name="a b")


# --- chats --------------------------------------------------------------------------


def test_a_chat_becomes_events_and_its_last_answer_the_output() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    chat = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "1+?"}, {"type": "image", "url": "u"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "assistant", "content": "two", "tool_calls": [{"id": "c2", "name": "end"}]},
    ]

    found = Recording.model_validate({"id": "a", "trace": chat})

    assert found.output == "two"
    assert [(e.kind, e.name, e.text, e.parent) for e in found.trace] == [
        ("message", "user", "1+?\n[image]", None),
        ("tool_call", "add", "", None),
        ("tool_result", "add", "2", 1),
        ("message", "assistant", "two", None),
        ("tool_call", "end", "", 3),
    ]
    assert found.trace[1].data == {"x": 1}
    assert found.trace[0].data == chat[0]["content"]


def test_an_output_that_is_given_stands_beside_a_chat() -> None:
    chat = [{"role": "assistant", "content": "said"}]

    assert Recording.model_validate({"id": "a", "trace": chat, "output": None}).output is None


@pytest.mark.parametrize(
    "chat",
    [
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": ["text"]}],
        [{"role": "assistant", "tool_calls": ["x"]}],
        [{"role": "assistant", "tool_calls": 7}],
        [{"role": "user", "content": "a"}, {"kind": "log"}],
    ],
)
def test_a_malformed_chat_is_refused(chat: Any) -> None:
    with pytest.raises(ValidationError):
        Recording.model_validate({"id": "a", "trace": chat})


# --- the edges ----------------------------------------------------------------------


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("WEIRBOX_DATABASE_URL", raising=False)
    monkeypatch.setenv("WEIRBOX_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Settings()


def test_python_ingests_records_in_one_call(at_home: Settings) -> None:
    run = weirbox.ingest([{"id": "a", "scores": {"ok": True}}], engine="direct", settings=at_home)

    frame = run.results()
    assert frame["ok"].tolist() == [True]
    assert run.summary().finalized_at is not None


async def test_python_ingests_with_a_suite_file_in_an_event_loop(
    at_home: Settings, tmp_path: Path
) -> None:
    (tmp_path / "suite.yaml").write_text(
        "suite: mine\n"
        "dataset: { path: cases.jsonl }\n"
        "harness: { kind: python, function: 'absent:f' }\n"
        "graders: [{ kind: answer-match, name: match }]\n"
    )
    lines(tmp_path / "cases.jsonl", {"id": "a", "input": "q", "target": "t"})
    results = lines(tmp_path / "r.jsonl", {"id": "a", "output": "t"})

    run = await weirbox.aingest(results, tmp_path / "suite.yaml", engine="direct", settings=at_home)

    assert run.summary().suite == "mine"
    assert run.summary().verdicts.passed == 1


def test_the_command_ingests_a_file_and_gives_the_run_as_json(
    at_home: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    lines(tmp_path / "r.jsonl", {"id": "a", "scores": {"ok": False}}, {"id": "b", "error": "boom"})
    run = _command(monkeypatch, capfd)

    done, out, _ = run("ingest", "r.jsonl", "--engine", "direct", "--name", "nightly", "--json")
    found = json.loads(out)
    (tmp_path / "r.jsonl").write_text("{")
    refused, nothing, error = run("ingest", "r.jsonl", "--engine", "direct", "--json")

    assert (done, found["suite"], found["status"]) == (0, "nightly", "completed")
    assert found["verdicts"] == {"pass": 0, "fail": 1, "none": 1}
    assert (refused, nothing) == (2, "")
    assert error.startswith("error: results 'r.jsonl', line 1: not JSON")


def _command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["weirbox", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return run
