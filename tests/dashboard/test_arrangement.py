"""How the dashboard is laid out: what is switched off, and what no page may use."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.dashboard.reading import APP

ROOT = APP.parent
SOURCES = sorted(ROOT.rglob("*.py"))


def test_nothing_is_sent_anywhere_and_nobody_else_is_let_in() -> None:
    config = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert config["browser"]["gatherUsageStats"] is False
    assert config["server"]["address"] == "127.0.0.1"
    assert config["client"]["showErrorDetails"] == "type"
    assert "enableAgentApi" not in config["server"]


def test_every_folder_of_the_dashboard_is_a_package_so_that_it_is_installed() -> None:
    folders = {source.parent for source in SOURCES}
    assert {folder.name for folder in folders} == {"dashboard", "parts", "views"}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_no_file_beside_the_entry_shadows_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = {path.stem for path in ROOT.iterdir() if path.name[0] not in "._"}
    searched = [place for place in sys.path if Path(place or ".").resolve() != ROOT]
    monkeypatch.setattr(sys, "path", searched)
    assert {name for name in beside if importlib.util.find_spec(name)} == set()


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"unsafe_allow", "text under test would become HTML"),
        (r"\bst\.(write|json|table|html|error|warning|info|success)\(", "it renders markdown"),
        (r":material/", "a page icon of this kind is loaded from the network"),
        (r"\bst\.image\(|https?://", "nothing is loaded from elsewhere"),
    ],
)
def test_no_page_uses_what_would_give_untrusted_text_power(pattern: str, why: str) -> None:
    found = [path.name for path in SOURCES if re.search(pattern, path.read_text())]
    assert found == [], why
