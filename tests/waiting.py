"""Waiting for what is about to be, with a deadline; never for a length of time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from epd_router.server import Server

DEADLINE = 25.0  # below the limit of a test; a busy machine is no reason to fail


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until `condition()` is true."""
    end = asyncio.get_running_loop().time() + DEADLINE
    while not condition():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"never came to be: {what or condition}")
        await asyncio.sleep(0.005)


async def ready(server: Server) -> None:
    """Wait until every configured role has a healthy worker."""
    await until(lambda: not server.fleet.missing_roles(), "every role has a healthy worker")


async def settled(server: Server) -> None:
    """Wait until nothing is served any more, then check that every counter is at zero."""
    end = asyncio.get_running_loop().time() + DEADLINE
    while len(server.pipeline):
        await asyncio.sleep(0.005)
        if asyncio.get_running_loop().time() > end:
            raise AssertionError("\n".join(map(str, server.pipeline.tasks())))
    for worker in server.fleet:
        assert (worker.load.active, worker.load.outstanding) == (0, 0), worker.id
    assert server.metrics.registry.get_sample_value("epd_router_in_flight") == 0
