"""What README and docs show is what the code takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import yaml
from pydantic import BaseModel

from weirbox.domain.judging import Prompt
from weirbox.domain.run import RunSummary
from weirbox.domain.spec import Suite
from weirbox.suites import load_suite

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)?([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")

REST = {
    "suite": "shown",
    "dataset": '{records: [{id: "1", input: a, target: a}]}',
    "harness": "{kind: recorded, field: target}",
    "graders": "[{kind: answer-match, name: exact}]",
}
"""What a block that shows a part of a suite leaves out."""


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    label: str
    text: str


def _blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page, line, match[1] or "", match[2].strip(), match[3]))
    return found


BLOCKS = _blocks()


def _of(language: str, label: str = "") -> list[Any]:
    return [
        pytest.param(block, id=f"{block.page.relative_to(ROOT)}:{block.line}")
        for block in BLOCKS
        if (block.language, block.label) == (language, label)
    ]


def _suite_of(block: Block, folder: Path) -> Suite:
    given = set(re.findall(r"^(\w+):", block.text, re.MULTILINE))
    rest = [f"{key}: {value}" for key, value in REST.items() if key not in given]
    file = folder / "suite.yaml"
    file.write_text("\n".join([*rest, block.text]))
    return load_suite(file)


@pytest.mark.parametrize("block", _of("yaml"))
def test_every_yaml_block_is_a_suite_or_a_part_of_one(block: Block, tmp_path: Path) -> None:
    _suite_of(block, tmp_path)


@pytest.mark.parametrize("block", _of("yaml", "prompt"))
def test_every_prompt_shown_is_one(block: Block) -> None:
    Prompt.model_validate(yaml.safe_load(block.text))


def _models(annotation: Any, found: set[type[BaseModel]]) -> set[type[BaseModel]]:
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_model and annotation not in found:
        found.add(annotation)
        for field in annotation.model_fields.values():
            _models(field.annotation, found)
    for inner in get_args(annotation):
        _models(inner, found)
    return found


def _given(value: Any, found: set[tuple[type[BaseModel], str]]) -> None:
    if isinstance(value, BaseModel):
        for name in value.model_fields_set:
            found.update(
                (base, name)
                for base in type(value).__mro__
                if issubclass(base, BaseModel) and name in base.model_fields
            )
            _given(getattr(value, name), found)
    elif isinstance(value, dict):
        for item in value.values():
            _given(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _given(item, found)


COMMON = {"required", "authority", "on", "otherwise", "check", "propose", "when"}
"""Fields that all graders or all rules share, and that are shown once."""


SUITE_PAGES = {"suite.md", "sinks.md", "traces.md"}


def test_the_suite_pages_show_every_field_of_a_suite(tmp_path: Path) -> None:
    shown: set[tuple[type[BaseModel], str]] = set()
    for block in BLOCKS:
        if block.page.name in SUITE_PAGES and (block.language, block.label) == ("yaml", ""):
            _given(_suite_of(block, tmp_path), shown)
    shared = {name for _, name in shown} & COMMON

    missing = {
        f"{model.__name__}.{name}"
        for model in _models(Suite, set())
        for name in model.model_fields
        if (model, name) not in shown and name not in shared
    }

    assert missing == set()


@pytest.mark.parametrize("block", _of("python"))
def test_every_python_block_compiles(block: Block) -> None:
    compile(block.text, f"{block.page.name}:{block.line}", "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()
    ]

    assert missing == []


def test_the_documented_json_of_a_run_has_the_keys_of_the_real_one() -> None:
    (block,) = [block for block in BLOCKS if (block.language, block.label) == ("json", "run")]
    shown = json.loads(block.text)
    real = RunSummary.model_validate({**shown, "verdicts": {}}).to_json()

    assert list(shown) == list(real)
    for part in ("progress", "verdicts", "dispositions"):
        assert list(shown[part]) == list(real[part]), part


def test_the_readme_and_the_continuous_integration_run_the_same_tests() -> None:
    (command,) = [
        block.text.strip().rpartition("&& ")[2]
        for block in BLOCKS
        if block.page.name == "README.md" and "[dev]" in block.text
    ]

    assert command == ".venv/bin/python -m pytest"
    assert '"$venv/bin/python" -m pytest\n' in (ROOT / ".ci/run").read_text()


def test_the_pages_name_the_commands_that_there_are_and_no_others() -> None:
    from weirbox.cli.app import app

    known = {one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands}
    known |= {str(group.name) for group in app.registered_groups}

    named = {word for page in PAGES for word in re.findall(r"`weirbox ([a-z-]+)", page.read_text())}

    assert named == known
