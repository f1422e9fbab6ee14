"""Suite files that do not hold together: what is said about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weirbox.errors import SuiteError
from weirbox.suites import LARGEST, load_suite, parse_suite

GOOD = """\
suite: a
dataset: { records: [{ id: x, input: hi, target: hi }] }
harness: { kind: command, argv: [cat] }
graders: [{ kind: answer-match, name: same }]
"""


def said(tmp_path: Path, content: str | bytes) -> str:
    """What is said about a suite file of this content."""
    file = tmp_path / "suite.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SuiteError) as refused:
        load_suite(file)
    assert str(file) in str(refused.value)
    return str(refused.value)


def bomb(levels: int) -> str:
    lines = ["b0: &b0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        lines.append(f"b{level}: &b{level} [{', '.join([f'*b{level - 1}'] * 10)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param(bomb(10), "more than 1000000 values, aliases written out", id="alias-bomb"),
        pytest.param("tags: &t [*t]", "an alias is part of what it stands for", id="cycle"),
        pytest.param("suite: b", "line 5, column 1: the key 'suite' is given twice", id="twice"),
        pytest.param("budget: { usd: 1, usd: 2 }", "the key 'usd' is given twice", id="twice-deep"),
        pytest.param("seed: " + "9" * 100_000, "cannot be read as int", id="100000-digits"),
        pytest.param("seed: !!int abc", "'abc' cannot be read as int", id="tag-int"),
        pytest.param("reuse: !!bool abc", "'abc' cannot be read as bool", id="tag-bool"),
        pytest.param("tags: !!timestamp a", "'a' cannot be read as timestamp", id="tag-date"),
        pytest.param("tags: !!python/name:os.system", "could not determine a", id="tag-python"),
        pytest.param("tags: " + "[" * 5000, "nested too deeply", id="deep"),
        pytest.param("tags:\n\t- a", "line 6, column 1", id="tab"),
        pytest.param("---\nsuite: b", "another document", id="two-documents"),
        pytest.param("5: 1", "[5]: Keys should be strings", id="number-as-key"),
        pytest.param("budget: { usd: .inf }", "budget.usd: Input should be", id="infinite-budget"),
        pytest.param("budget: { usd: .nan }", "budget.usd: Input should be", id="nan-budget"),
        pytest.param("budget: { usd: -1 }", "(found -1)", id="negative-budget"),
        pytest.param("budget: { calls: 9999999999 }", "budget.calls: Input", id="calls-overflow"),
        pytest.param("seed: 9223372036854775808", "seed: Input should be less", id="seed-overflow"),
        pytest.param("preview: 9999999999", "preview: Input should be less", id="preview-overflow"),
        pytest.param("compute: { timeout_s: .inf }", "compute.timeout_s: Input", id="endless"),
        pytest.param("compute: { memory_mb: 9999999999 }", "compute.memory_mb", id="memory"),
        pytest.param("concurrency: { judge: 9999999999 }", "concurrency.judge", id="concurrency"),
        pytest.param(
            "sinks: [{ kind: jsonl, name: ../x, path: out }]",
            "sinks[0].name: a name is 1 to 100 letters",
            id="path-without-the-model-step",
        ),
        pytest.param(
            "sinks: [{ kind: jsonl, pfad: out, path: out }]",
            "sinks[0].pfad: is not a known field; known: kind, name, path",
            id="unknown-field-deep",
        ),
        pytest.param(
            "compute: { memory: 5 }",
            "compute.memory: is not a known field; did you mean 'memory_mb'?",
            id="misspelt-field-deep",
        ),
        pytest.param("tags: x", "tags: should be a list (found 'x')", id="no-list"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_is_allowed(
    tmp_path: Path, more: str, expected: str
) -> None:
    assert expected in said(tmp_path, GOOD + more + "\n")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"\x7fELF\x00\xd0", "is not UTF-8 text: byte 0xd0 at offset 5", id="binary"),
        pytest.param(GOOD.encode("utf-16"), "is not UTF-8 text", id="utf-16"),
        pytest.param(b"a\0b", "not valid YAML", id="nul"),
        pytest.param(b"", "holds None; a suite is a mapping", id="empty"),
        pytest.param(b"- a", "holds ['a']; a suite is a mapping", id="list"),
        pytest.param(b"#" * (LARGEST + 1), "is larger than 10 MiB", id="large"),
    ],
)
def test_what_is_no_suite_file_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in said(tmp_path, content)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="is a folder"):
        load_suite(tmp_path)


def test_an_endless_device_is_refused() -> None:
    with pytest.raises(SuiteError, match="larger than 10 MiB"):
        load_suite("/dev/zero")


def test_thousands_of_mistakes_are_summed_up(tmp_path: Path) -> None:
    graders = "".join(f"  - {{ kind: nope, name: g{n} }}\n" for n in range(1000))
    message = said(tmp_path, GOOD.replace("graders: ", "rules: ") + "graders:\n" + graders)

    assert len(message.splitlines()) == 22
    assert message.endswith("and 981 mistakes more")


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_suite(tmp_path / "suite.yaml").suite == "a"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("007", "007"),
        ("12:30", "12:30"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("no", "no"),
        ("-5", -5),
        ("1e3", 1000.0),
        ("0.5", 0.5),
        ("-.inf", float("-inf")),
        ("true", True),
        ("~", None),
    ],
)
def test_values_of_records_are_read_as_people_mean_them(
    tmp_path: Path, written: str, meant: Any
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(GOOD.replace("input: hi", f"input: {written}"))
    records = load_suite(file).dataset.records
    assert records is not None
    assert records[0] == {"id": "x", "input": meant, "target": "hi"}


def test_a_number_too_long_to_show_is_a_mistake_all_the_same() -> None:
    with pytest.raises(SuiteError, match="a number too long to show"):
        parse_suite({"suite": 10**5000}, place="given as data")
