"""Secrets out of a real Prefect server's Secret blocks, and out of none."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterator

import pytest
from prefect.blocks.system import Secret
from prefect.context import refresh_global_settings_context

from flows.secret_blocks import ANSWER_S, from_prefect_blocks, prefect_secrets
from weirbox.services import free_port

VALUE = "sk-hushed-0815"


@pytest.fixture
def block(prefect_api: str) -> Iterator[str]:
    """A Secret block in the server; gives the name that a suite knows it by."""
    Secret(value=VALUE).save("teams-key", overwrite=True, _sync=True)  # type: ignore[call-arg]
    yield "TEAMS_KEY"
    Secret.delete("teams-key", _sync=True)  # type: ignore[call-arg]


@pytest.fixture
def with_api_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A patch of the environment that Prefect takes note of by `refresh`."""
    with monkeypatch.context() as patch:
        yield patch
    refresh_global_settings_context()


def test_a_secret_block_is_found_by_the_secrets_name(block: str) -> None:
    assert from_prefect_blocks(block) == VALUE
    assert prefect_secrets()(block) == VALUE


def test_a_secret_block_is_found_from_an_event_loop_and_its_threads(block: str) -> None:
    async def read() -> list[str | None]:
        return [from_prefect_blocks(block), await asyncio.to_thread(from_prefect_blocks, block)]

    assert asyncio.run(read()) == [VALUE, VALUE]


@pytest.mark.parametrize("name", ["NOT_THERE", "___", "", "../teams-key", "schlüssel"])
def test_a_secret_without_a_block_is_none(prefect_api: str, name: str) -> None:
    assert from_prefect_blocks(name) is None


def test_a_secret_is_asked_for_once_and_a_missing_one_again(block: str) -> None:
    read = prefect_secrets()
    assert (read(block), read("LATER")) == (VALUE, None)

    Secret(value="other").save("teams-key", overwrite=True, _sync=True)  # type: ignore[call-arg]
    Secret(value="now").save("later", overwrite=True, _sync=True)  # type: ignore[call-arg]

    assert (read(block), read("LATER")) == (VALUE, "now")


def test_no_secret_is_logged(block: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    assert from_prefect_blocks(block) == VALUE

    assert VALUE not in caplog.text


def test_without_a_server_a_secret_is_none(with_api_url: pytest.MonkeyPatch) -> None:
    with_api_url.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    refresh_global_settings_context()

    assert from_prefect_blocks("TEAMS_KEY") is None
    assert asyncio.run(_in_loop()) is None


def test_without_any_server_chosen_none_is_started_for_a_secret(
    with_api_url: pytest.MonkeyPatch,
) -> None:
    with_api_url.delenv("PREFECT_API_URL", raising=False)
    refresh_global_settings_context()
    before = _children()

    assert from_prefect_blocks("TEAMS_KEY") is None

    assert _children() == before


def test_a_server_that_never_answers_is_given_up(
    with_api_url: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.secret_blocks.ANSWER_S", ANSWER_S / 25)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with_api_url.setenv("PREFECT_API_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/api")
        refresh_global_settings_context()
        began = time.monotonic()

        assert from_prefect_blocks("TEAMS_KEY") is None

    assert time.monotonic() - began < ANSWER_S


async def _in_loop() -> str | None:
    return from_prefect_blocks("TEAMS_KEY")


def _children() -> set[int]:
    import psutil

    return {child.pid for child in psutil.Process().children(recursive=True)}
