"""Fixtures: a router in front of mock engines, on the test's own loop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from epd_router import options
from epd_router.mock import Cluster, EngineConfig
from epd_router.server import Server
from PIL import Image

Started = Callable[..., AbstractAsyncContextManager[tuple[Server, Cluster]]]


def picture(color: str, kind: str = "JPEG", size: tuple[int, int] = (64, 48)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, kind)
    return out.getvalue()


def data_url(content: bytes, mime: str = "image/jpeg") -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def chat(text: str, *urls: str, **more: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content.append({"type": "text", "text": text})
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}


FLAGS = {"aggregated": "worker_urls"}


async def ready(server: Server) -> None:
    """Wait until every configured role has a healthy worker."""
    while server.fleet.missing_roles():
        await asyncio.sleep(0.01)


async def settled(server: Server) -> None:
    """Wait until nothing is served any more, then check that every counter is at zero."""
    end = asyncio.get_running_loop().time() + 10
    while len(server.pipeline):
        await asyncio.sleep(0.005)
        if asyncio.get_running_loop().time() > end:
            raise AssertionError("\n".join(map(str, server.pipeline.tasks())))
    for worker in server.fleet:
        assert (worker.load.active, worker.load.outstanding) == (0, 0), worker.id
    assert server.metrics.registry.get_sample_value("epd_router_in_flight") == 0


@pytest.fixture
def started() -> Started:
    """`async with started(encode=1, prefill=1, decode=1, option=value) as (server, cluster)`."""

    @contextlib.asynccontextmanager
    async def start(
        config: EngineConfig | None = None, *, wait: bool = True, settings: dict[str, Any] | None = None, **roles: int
    ) -> AsyncIterator[tuple[Server, Cluster]]:
        async with Cluster(config=config, **roles) as cluster:
            given = {FLAGS.get(role, role): cluster.urls(role) for role in roles}
            values = {"host": "127.0.0.1", "port": 0, "health_check_interval_secs": 0.1, **given, **(settings or {})}
            server = Server(options.load({name: str(value) for name, value in values.items()}, {}))
            await server.start()
            try:
                if wait:
                    await asyncio.wait_for(ready(server), 10)
                yield server, cluster
            finally:
                await server.stop()

    return start
