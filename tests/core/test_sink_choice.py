"""Which of a suite's sinks a run sends to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.factories import suite
from weirbox import api
from weirbox.cli.options import sinks_of
from weirbox.errors import NotPossible, SuiteError
from weirbox.runtime import open_runtime
from weirbox.settings import Settings
from weirbox.store import queries
from weirbox.suites import parse_suite, with_sinks

SINKS: tuple[dict[str, Any], ...] = (
    {"kind": "jsonl", "name": "lines", "path": "/out"},
    {"kind": "otel", "name": "traces", "url": "http://h", "headers": {"x": "secret:KEY"}},
)
OTHER = {"kind": "mlflow", "name": "other", "url": "http://mlflow"}


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (None, ["lines", "traces"]),
        ([], []),
        (["traces"], ["traces"]),
        (["traces", "lines", "traces"], ["lines", "traces"]),
        (["lines", OTHER], ["lines", "other"]),
        ([OTHER], ["other"]),
    ],
)
def test_a_run_sends_to_the_sinks_that_are_named(chosen: Any, names: list[str]) -> None:
    found = with_sinks(suite(sinks=SINKS), chosen)
    assert [sink.name for sink in found.sinks] == names
    assert found.graders == suite(sinks=SINKS).graders


def test_a_sink_that_the_suite_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(SuiteError, match=r"no sink 'nope' \(its sinks: lines, traces\)"):
        with_sinks(suite(sinks=SINKS), ["nope"])
    with pytest.raises(SuiteError, match="url"):
        with_sinks(suite(sinks=SINKS), [{"kind": "mlflow"}])


def test_options_that_contradict_each_other_are_refused() -> None:
    assert sinks_of(None, False) is None
    assert sinks_of(None, True) == []
    assert sinks_of(["a"], False) == ["a"]
    with pytest.raises(NotPossible, match="either --sink or --no-sinks"):
        sinks_of(["a"], True)


def test_the_plan_of_a_run_holds_the_sinks_that_were_chosen(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    run = api.plan(suite(sinks=SINKS), sinks=["traces"], settings=settings)
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        plan = queries.load_plan(connection, run.id)
    assert [sink.name for sink in plan.suite.sinks] == ["traces"]


def test_a_credential_in_a_suite_is_refused_without_being_repeated() -> None:
    for part in ({"headers": {"authorization": "Bearer sk-1"}}, {"url": "http://me:sk-1@h"}):
        broken = suite().model_dump() | {"sinks": [{"kind": "otel", "url": "http://h"} | part]}
        with pytest.raises(SuiteError) as raised:
            parse_suite(broken, place="x")
        assert "secret" in str(raised.value)
        assert "sk-1" not in str(raised.value)
