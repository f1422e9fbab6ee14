"""The drivers of this process, found by their claims: what a task run is given is small."""

from __future__ import annotations

from typing import Protocol

from weirbox.pipeline.packets import Packet, Receipt


class WorksOn(Protocol):
    """A driver, as a task run sees it."""

    async def work(self, packet: Packet) -> Receipt:
        """Take a packet's trials through its stage."""


_live: dict[int, WorksOn] = {}


def enter(token: int, driver: WorksOn) -> None:
    """Let a driver be found by its claim."""
    _live[token] = driver


def leave(token: int) -> None:
    """Let a driver not be found any more."""
    _live.pop(token, None)


async def work_on(packet: Packet) -> Receipt:
    """Take a packet's trials through its stage, in the driver that made the packet.

    Raises:
        LookupError: When that driver does not live in this process.
    """
    driver = _live.get(packet.token)
    if driver is None:
        raise LookupError(f"no driver with claim {packet.token} in this process")
    return await driver.work(packet)


class DirectRunner:
    """No engine: a plain call."""

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        """Work on the packet at once."""
        await work_on(packet)
