"""Reads what pytest-reportlog writes: one JSON object per line.

Unlike pytest's exit status it tells whether the tests ran to their end, and it
keeps exact ids and survives a killed process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """What became of the tests.

    Attributes:
        failing: Message by test id, in order. A file that could not be imported
            counts under its own id: mostly it is the answer that does not import.
        exit_status: What pytest itself concluded; None when it did not come to that.
    """

    passing: set[str] = field(default_factory=set)
    skipping: set[str] = field(default_factory=set)
    failing: dict[str, str] = field(default_factory=dict)
    exit_status: int | None = None

    @property
    def passed(self) -> int:
        """Tests that passed in every phase."""
        return len(self.passing - self.failing.keys())

    @property
    def skipped(self) -> int:
        """Tests that were skipped, or failed as they were expected to.

        Neither counts as a pass: code under test can call for both.
        """
        return len(self.skipping - self.failing.keys())

    @property
    def total(self) -> int:
        """All tests that are known of."""
        return len(self.passing | self.skipping | self.failing.keys())


def read_report(report: bytes) -> Tally:
    """Count the tests of a report; a line that was cut off by a kill is left out."""
    tally = Tally()
    for line in report.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            _count(tally, entry)
    return tally


def _count(tally: Tally, entry: dict[str, Any]) -> None:
    kind, outcome = entry.get("$report_type"), entry.get("outcome")
    test = str(entry.get("nodeid", ""))
    if kind == "SessionFinish":
        tally.exit_status = entry.get("exitstatus")
    elif outcome == "failed":
        tally.failing.setdefault(test, _message(entry.get("longrepr")))
    elif outcome == "skipped" and kind == "TestReport":
        tally.skipping.add(test)
    elif outcome == "passed" and kind == "TestReport" and entry.get("when") == "call":
        tally.passing.add(test)


def _message(failure: Any) -> str:
    """The line of a failure that says most."""
    if isinstance(failure, dict):
        crash = failure.get("reprcrash")
        failure = crash.get("message") if isinstance(crash, dict) else None
        lines = str(failure or "").strip().splitlines()
        return lines[0] if lines else "failed"
    lines = str(failure or "").strip().splitlines()
    return lines[-1].removeprefix("E").strip() if lines else "failed"
