"""The cache key of a stage's task run."""

from __future__ import annotations

from typing import Any

from prefect.cache_policies import CacheKeyFnPolicy
from prefect.context import TaskRunContext


def packet_key(context: TaskRunContext, arguments: dict[str, Any]) -> str:
    """The packet's key, over run, stage, plan entries, trials and attempts: a hex digest,
    since Prefect makes a file name of it."""
    key: str = arguments["packet"].key
    return key


PACKET_KEY = CacheKeyFnPolicy(cache_key_fn=packet_key)
