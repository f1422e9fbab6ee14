"""What the tests of the core share."""

from __future__ import annotations

import pytest

from weirbox.pipeline import driver


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts at a stage follow one another at once."""
    monkeypatch.setattr(driver, "BACK_OFF_S", 0.005)
