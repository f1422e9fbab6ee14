"""One journey through the real dashboard in a real browser, and what it loads on the way."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests import factories
from tests.dashboard.reading import APP
from weirbox.store.engine import Database

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the playwright package is not installed"
)

START_S = 60.0
"""How long the dashboard may take to start on a busy machine."""

ROW, HEAD = 35, 35
"""Heights of a grid's rows and of its head, in pixels."""


@pytest.fixture(scope="module")
def chromium() -> str:
    """Debian's browser."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("there is no chromium on the PATH (Debian: apt-get install chromium)")
    return found


@pytest.fixture
def address(sqlite: Database, tmp_path: Path) -> Iterator[str]:
    """A running dashboard, started in a folder that has nothing to do with it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "streamlit", "run", str(APP), "--server.port", str(port)]
    log = (tmp_path / "log").open("wb")
    root = str(APP.parents[1])
    env = {**os.environ, "WEIRBOX_DATABASE_URL": sqlite.url, "PYTHONPATH": root}
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=log, stderr=log) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=20)
            log.close()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(url, timeout=2):
                return
        except URLError:
            time.sleep(0.1)
    pytest.fail(f"the dashboard did not start; its exit status is {process.poll()}")


def _click_first_cell(page: Any, row: int) -> None:
    grid = page.get_by_test_id("stDataFrame").first
    grid.locator("canvas").first.wait_for()
    page.wait_for_timeout(500)  # a grid settles its widths after it is drawn
    box = grid.bounding_box()
    page.mouse.click(box["x"] + 30, box["y"] + HEAD + ROW * row + ROW / 2)


def test_a_person_gets_from_the_runs_to_a_failed_case_and_back(
    chromium: str, sqlite: Database, address: str
) -> None:
    records = [
        {"id": f"![x](http://evil.example/{n}.png)", "input": "a", "target": "ab"[n % 2]}
        for n in range(6)
    ]
    run = factories.drive(sqlite, factories.suite(0, dataset={"records": records}))
    factories.drive(sqlite, factories.suite(1, suite="newer"))
    outside: list[str] = []

    def watch(request: Any) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            outside.append(request.url)

    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(START_S * 1000)
        page.on("request", watch)

        page.goto(address)
        page.get_by_role("heading", name="Runs").wait_for()
        _click_first_cell(page, row=1)
        page.wait_for_url(re.compile(r"/run\?run=" + re.escape(run.run_id)))
        page.get_by_role("heading", name="Metrics").wait_for()

        page.get_by_role("link", name="3 fail").click()
        page.get_by_text("1 to 3 of 3").wait_for()
        assert page.url == f"{address}/cases?run={run.run_id}&verdict=fail"

        _click_first_cell(page, row=1)
        page.get_by_role("heading", name="Case #3").wait_for()
        assert page.url == f"{address}/case?run={run.run_id}&seq=3"
        page.get_by_text("![x](http://evil.example/3.png)").first.wait_for()

        page.reload()
        page.get_by_role("heading", name="Case #3").wait_for()
        page.get_by_role("button", name="Next").click()
        page.get_by_role("heading", name="Case #4").wait_for()
        assert page.url == f"{address}/case?run={run.run_id}&seq=4"

        page.get_by_role("link", name="Run", exact=True).click()
        page.get_by_role("heading", name="Metrics").wait_for()
        assert page.url == f"{address}/run?run={run.run_id}"
        browser.close()
    assert outside == []
