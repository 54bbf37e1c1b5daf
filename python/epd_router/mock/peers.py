"""How one mock engine reaches another: HTTP in place of NIXL, RDMA and ZMQ."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson


async def ask(session: aiohttp.ClientSession, host: str, port: int, path: str, document: dict[str, Any], wait: float = 5.0) -> Any:
    """Post a document to a peer and return its answer; None when it refuses, is gone or is too slow."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        limit = aiohttp.ClientTimeout(total=wait)
        async with session.post(f"http://{address}:{port}{path}", data=orjson.dumps(document), timeout=limit) as answer:
            return orjson.loads(await answer.read()) if answer.status == 200 else None
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError):
        return None


def split(address: str) -> tuple[str, int]:
    """Host and port of `tcp://host:port` or `http://host:port`. Raises ValueError."""
    host, _, port = address.partition("://")[2].rstrip("/").rpartition(":")
    if not host:
        raise ValueError(f"no address: {address}")
    return host, int(port)
