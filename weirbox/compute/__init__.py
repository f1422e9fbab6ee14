"""Compute: the isolated place a harness runs in."""

from __future__ import annotations

import functools
import logging
from typing import Literal

from weirbox.compute.bubblewrap import BubblewrapCompute, unavailable
from weirbox.compute.local import LocalCompute
from weirbox.domain.seams import Compute

logger = logging.getLogger("weirbox.compute")


def build(kind: Literal["auto", "local", "bubblewrap"] = "auto") -> Compute:
    """The compute of a kind; ``auto`` takes bubblewrap where it works, else local.

    Raises:
        PreflightError: When bubblewrap is asked for and does not work here.
    """
    if kind == "local":
        return LocalCompute()
    reason = unavailable()
    if kind == "bubblewrap" or reason is None:
        return BubblewrapCompute()
    _warn(reason)
    return LocalCompute()


@functools.cache
def _warn(reason: str) -> None:
    logger.warning(
        "bubblewrap does not work here (%s): commands run as plain processes, which see this "
        "machine's files and network and may outlive a killed driver until they are reaped",
        reason,
    )


__all__ = ["build"]
