"""The direction of dependencies, read from the source: nothing imports what stands above it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES = ("weirbox", "flows", "tasks", "dashboard", "deployments")
"""The code of the project; tests and examples stand outside."""

MOST_LINES = 400
"""The most lines of a module: what a person keeps in mind at a time."""

FAMILIES = (
    *("datasets", "compute", "harnesses", "graders", "rules", "judges", "traces", "sinks"),
    "stats",
)

BASE = {"weirbox.domain", "weirbox.errors", "weirbox.functions"}

ARROWS: dict[str, set[str]] = {
    "weirbox.domain": set(),
    "weirbox.errors": {"weirbox.domain"},
    "weirbox.functions": {"weirbox.domain", "weirbox.errors"},
    "weirbox.settings": set(),
    "weirbox.secrets": {"weirbox.errors"},
    "weirbox.limiter": BASE,
    **{f"weirbox.{family}": BASE for family in FAMILIES},
    "weirbox.store": BASE,
    "weirbox.budget": BASE | {"weirbox.store"},
    "weirbox.pipeline": BASE
    | {f"weirbox.{family}" for family in FAMILIES}
    | {"weirbox.store", "weirbox.budget", "weirbox.limiter", "weirbox.settings"},
    "tasks": {"weirbox"},
    "flows": {"weirbox", "tasks"},
    "dashboard": BASE
    | {"weirbox.stats", "weirbox.settings"}
    | {"weirbox.store.queries", "weirbox.store.views", "weirbox.store.engine"},
    "deployments": {"weirbox", "flows", "tasks"},
}
"""What a package may import of this project, besides itself. Packages that are not named
(`weirbox.api`, `weirbox.cli`, ...) are the top: only what they are imported by is limited."""

ENGINES = {"prefect", "streamlit"}
"""What the core library does without."""

UPWARDS = {"flows", "tasks", "dashboard", "deployments"}
"""What stands above the core library."""

LAUNCHERS = ("weirbox.api", "weirbox.cli", "weirbox.services", "weirbox.triggering")
"""The edges of the core library, which load an engine in the function that starts it."""

NOT_SQL = {"sqlalchemy.Connection", "sqlalchemy.engine.make_url"}
"""The type of what the store hands out, and the reading of a database's address: no SQL."""


class Import(NamedTuple):
    """One import in a module's source.

    Attributes:
        lazy: Whether it stands inside a function.
        typing: Whether it is for the type checker only.
    """

    target: str
    lazy: bool = False
    typing: bool = False


def _within(module: str, packages: set[str] | tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def imports_of(source: str) -> list[Import]:
    """The imports of a source; names of this project are resolved to the module they are in."""
    return list(_walk(ast.parse(source), lazy=False, typing=False))


def _walk(node: ast.AST, *, lazy: bool, typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, lazy, typing) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: a relative import"
            for alias in child.names:
                yield Import(_resolve(str(child.module), alias.name), lazy, typing)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            guarded = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            yield from _walk(child, lazy=lazy or inside, typing=typing or guarded)


def _resolve(package: str, name: str) -> str:
    if not _within(package, PACKAGES):
        return f"{package}.{name}"
    path = ROOT.joinpath(*package.split("."), name)
    is_module = path.with_suffix(".py").is_file() or path.is_dir()
    return f"{package}.{name}" if is_module else package


def _modules() -> dict[str, list[Import]]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = imports_of(path.read_text())
    return found


MODULES = _modules()


def _breaches(package: str) -> list[str]:
    allowed = ARROWS[package] | {package}
    return [
        f"{module} imports {one.target}"
        for module, imports in MODULES.items()
        if _within(module, (package,))
        for one in imports
        if _within(one.target, PACKAGES) and not _within(one.target, allowed)
    ]


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_imports_only_what_stands_below_it(package: str) -> None:
    assert _breaches(package) == []


def test_every_package_of_the_core_has_its_place_in_the_arrows_or_at_the_top() -> None:
    top = {
        "again",
        "api",
        "cli",
        "frames",
        "ingesting",
        "result_files",
        "runtime",
        "services",
        "suites",
        "testing",
        "triggering",
    }
    named = {name.removeprefix("weirbox.") for name in ARROWS if name.startswith("weirbox.")}

    found = {module.split(".")[1] for module in MODULES if module.startswith("weirbox.")}

    assert found <= named | top


def test_nothing_below_imports_the_command_line() -> None:
    assert [
        f"{module} imports {one.target}"
        for module, imports in MODULES.items()
        if not _within(module, ("weirbox.cli",))
        for one in imports
        if _within(one.target, ("weirbox.cli",))
    ] == []


def test_the_core_imports_neither_engine_but_lazily_at_its_edges() -> None:
    assert [
        f"{module} imports {one.target}"
        for module, imports in MODULES.items()
        if _within(module, ("weirbox",))
        for one in imports
        if _within(one.target, ENGINES | UPWARDS)
        and not (one.lazy and _within(module, LAUNCHERS))
        and not one.typing
    ] == []


def test_prefect_is_for_flows_and_tasks_and_streamlit_for_the_dashboard() -> None:
    homes = {"prefect": ("flows", "tasks", "deployments", *LAUNCHERS), "streamlit": ("dashboard",)}
    assert [
        f"{module} imports {one.target}"
        for module, imports in MODULES.items()
        for one in imports
        for engine, home in homes.items()
        if _within(one.target, (engine,)) and not _within(module, home)
    ] == []


def test_only_the_store_imports_sqlalchemy_sqlmodel_and_alembic() -> None:
    assert [
        f"{module} imports {one.target}"
        for module, imports in MODULES.items()
        if not _within(module, ("weirbox.store",))
        for one in imports
        if _within(one.target, {"sqlalchemy", "sqlmodel", "alembic"}) and one.target not in NOT_SQL
    ] == []


def test_modules_stay_short_enough_to_read() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }

    assert len(lengths) > 100
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_importing_the_core_loads_no_engine_and_no_heavy_library() -> None:
    heavy = ("prefect", "streamlit", "pandas", "pyarrow", "scipy", "alembic")
    script = f"import sys, weirbox.api\nprint(*[name for name in {heavy} if name in sys.modules])\n"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert done.stdout.strip() == ""


SOURCES = {
    "a name of another project": ("from prefect import flow", [Import("prefect.flow")]),
    "a module": ("import prefect.states", [Import("prefect.states")]),
    "a name of a module": ("from weirbox.errors import UserError", [Import("weirbox.errors")]),
    "a module of a package": ("from weirbox.store import views", [Import("weirbox.store.views")]),
    "a package": ("from weirbox import sinks", [Import("weirbox.sinks")]),
    "in a function": ("async def f():\n    import prefect", [Import("prefect", lazy=True)]),
    "in a method": (
        "class A:\n    def f(self):\n        if x:\n            from flows import views",
        [Import("flows.views", lazy=True)],
    ),
    "in a try": (
        "try:\n    import streamlit\nexcept ImportError:\n    pass",
        [Import("streamlit")],
    ),
    "for types": (
        "if TYPE_CHECKING:\n    from weirbox.api import Run",
        [Import("weirbox.api", typing=True)],
    ),
}


@pytest.mark.parametrize("case", SOURCES)
def test_imports_are_found_wherever_they_stand(case: str) -> None:
    source, expected = SOURCES[case]

    assert imports_of(source) == expected
