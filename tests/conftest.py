"""What all tests share: a fresh, migrated database on each back end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests import postgres
from weirbox.services import START_S, Service, Services
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
    with _fresh(request, tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """The same for a module, whose tests then each look at runs of their own only."""
    with _fresh(request, tmp_path_factory.mktemp("shared")) as opened:
        yield opened


@pytest.fixture
def sqlite(sqlite_template: Path, tmp_path: Path) -> Iterator[Database]:
    """A fresh, migrated SQLite database, where the back end makes no difference."""
    with _fresh_sqlite(sqlite_template, tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_sqlite(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """The same for a module, whose tests then each look at runs of their own only."""
    with _fresh_sqlite(sqlite_template, tmp_path_factory.mktemp("shared")) as opened:
        yield opened


@contextmanager
def _fresh(request: pytest.FixtureRequest, folder: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        with _fresh_sqlite(request.getfixturevalue("sqlite_template"), folder) as opened:
            yield opened
        return
    place = request.getfixturevalue("postgres_server")
    name = f"test_{next(_numbers)}"
    postgres.create(place, name, template="template")
    opened = Database(postgres.url(place, name))
    yield opened
    opened.close()
    postgres.drop(place, name)


@contextmanager
def _fresh_sqlite(template: Path, folder: Path) -> Iterator[Database]:
    shutil.copy(template, folder / "weirbox.db")
    opened = Database(f"sqlite:///{folder}/weirbox.db")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A real Prefect server, started once for all tests that ask for it."""
    services = Services(tmp_path_factory.mktemp("prefect"))
    try:
        server = services.start_prefect()
        services.wait(server, "/api/health", seconds=2 * START_S)
        yield server
    finally:
        services.stop("prefect")
