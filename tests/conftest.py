"""What all tests share: a fresh, migrated database on each back end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests import postgres
from weirbox.store.engine import Database, open_database

_numbers = count()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """A PostgreSQL server with a migrated database ``template`` to copy."""
    programs = postgres.server_programs()
    if programs is None:
        pytest.skip("PostgreSQL's initdb is neither in /usr/lib/postgresql/*/bin nor on the PATH")
    with postgres.server(programs) as place:
        postgres.create(place, "template")
        open_database(postgres.url(place, "template")).close()
        yield place


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A fresh, migrated database, once on each back end."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "weirbox.db")
        opened = Database(f"sqlite:///{tmp_path}/weirbox.db")
        yield opened
        opened.close()
        return
    place = request.getfixturevalue("postgres_server")
    name = f"test_{next(_numbers)}"
    postgres.create(place, name, template="template")
    opened = Database(postgres.url(place, name))
    yield opened
    opened.close()
    postgres.drop(place, name)


@pytest.fixture
def sqlite(sqlite_template: Path, tmp_path: Path) -> Iterator[Database]:
    """A fresh, migrated SQLite database, where the back end makes no difference."""
    shutil.copy(sqlite_template, tmp_path / "weirbox.db")
    opened = Database(f"sqlite:///{tmp_path}/weirbox.db")
    yield opened
    opened.close()
