"""A store with runs of every kind, and pages opened on it without a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.dashboard.reading import APP
from weirbox.store.engine import Database, open_database

PATIENCE_S = 60
"""How long a page may take on a busy machine; usually far under a second."""

Open = Callable[..., AppTest]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A store for the tests of a module, which only read it."""
    database = open_database(f"sqlite:///{tmp_path_factory.mktemp('store')}/weirbox.db")
    yield database
    database.close()


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open a page by its name and the parameters in its address."""

    def opened(database: Database | str, view: str = "", /, **parameters: Any) -> AppTest:
        url = database if isinstance(database, str) else database.url
        monkeypatch.setenv("WEIRBOX_DATABASE_URL", url)
        app = AppTest.from_file(str(APP), default_timeout=PATIENCE_S)
        if view:
            app.run().switch_page(f"views/{view}.py")
        for name, value in parameters.items():
            app.query_params[name] = str(value)
        app.run()
        assert not app.exception, [one.message for one in app.exception]
        return app

    return opened
