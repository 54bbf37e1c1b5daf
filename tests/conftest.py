"""Fixtures: a router in front of mock engines, on the test's own loop."""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import epd_router
import pytest
from epd_router import options
from epd_router.mock import Cluster, EngineConfig
from epd_router.server import Server
from PIL import Image

from tests.blocking import watching
from tests.waiting import ready, settled

__all__ = ["Started", "ask", "chat", "data_url", "picture", "ready", "running", "settled", "started"]
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


async def ask(server: Server, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[int, Any]:
    """Status and document of an answer."""
    async with aiohttp.ClientSession() as http:
        async with http.post(f"http://127.0.0.1:{server.port}{path}", json=body) as answer:
            return answer.status, await answer.json()


PRODUCT = Path(epd_router.__file__).parent
FLAGS = {"aggregated": "worker_urls"}


@contextlib.asynccontextmanager
async def running(values: dict[str, Any], *, wait: bool = True) -> AsyncIterator[Server]:
    """A router with these options on a free port, ready. Fails if it blocks the loop."""
    given = {"host": "127.0.0.1", "port": 0, "health_check_interval_secs": 0.1, **values}
    server = Server(options.load({name: str(value) for name, value in given.items()}, {}))
    with watching(PRODUCT, PRODUCT / "mock") as watch:
        await server.start()
        try:
            if wait:
                await ready(server)
            yield server
        finally:
            await server.stop()
    assert not watch.found, "\n".join(watch.found)


@pytest.fixture
def started() -> Started:
    """`async with started(encode=1, prefill=1, decode=1, settings={}) as (server, cluster)`."""

    @contextlib.asynccontextmanager
    async def start(
        config: EngineConfig | None = None, *, wait: bool = True, settings: dict[str, Any] | None = None, **roles: int
    ) -> AsyncIterator[tuple[Server, Cluster]]:
        async with Cluster(config=config, **roles) as cluster:
            given = {FLAGS.get(role, role): cluster.urls(role) for role in roles}
            async with running({**given, **(settings or {})}, wait=wait) as server:
                yield server, cluster

    return start
