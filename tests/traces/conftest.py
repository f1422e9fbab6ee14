"""Real platforms, each started once for all tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import platforms


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[platforms.Server]:
    """A real MLflow server."""
    with platforms.mlflow(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture(scope="session")
def phoenix_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[platforms.Server]:
    """A real Phoenix server."""
    with platforms.phoenix(tmp_path_factory.mktemp("phoenix")) as server:
        yield server


@pytest.fixture(scope="session")
def otel_python() -> str:
    """A Python that has the OpenTelemetry SDK and its exporter."""
    return platforms.python_of("phoenix")
