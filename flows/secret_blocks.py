"""Secrets that a team keeps as Secret blocks in Prefect."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

ANSWER_S = 5.0
"""How long a server may take to answer: the caller waits, and may be an event loop."""

log = logging.getLogger(__name__)


def prefect_secrets() -> Callable[[str], str | None]:
    """A resolver that asks Prefect once for each secret that it has."""
    found: dict[str, str] = {}

    def read(name: str) -> str | None:
        if name not in found:
            value = from_prefect_blocks(name)
            if value is None:
                return None
            found[name] = value
        return found[name]

    return read


def from_prefect_blocks(name: str) -> str | None:
    """The Secret block of that name; Prefect wants lower-case names with dashes.

    Returns:
        None where there is no such block, no server, or no answer in time.
    """
    block = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not block or not PREFECT_API_URL.value():
        return None
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(httpx_settings={"timeout": ANSWER_S}, sync_client=True) as client,
        ):
            value = client.read_block_document_by_name(block, "secret").data.get("value")
    except ObjectNotFound:
        return None
    except (httpx.HTTPError, PrefectException, RuntimeError) as error:
        log.warning("Prefect was not asked for the secret %r: %s", name, type(error).__name__)
        return None
    return value if value is None or isinstance(value, str) else json.dumps(value)
