"""What a server leaves in its process: `python -X dev -W error -m tests.leaks.isolated SCENARIO`, on both event loops.

In a process of its own, because other tests leave threads, sockets and warnings too. Silence and status 0 mean that
everything was given back: tasks, descriptors, threads, and every object of the router.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import gc
import json
import logging
import os
import random
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import uvloop
from epd_router import options
from epd_router.errors import ConfigError
from epd_router.server import Server

from tests.leaks.engines import LeanEngine
from tests.waiting import ready, settled, until

ROLES = ("encode", "prefill", "decode")
GONE = {
    "Server", "Fleet", "Worker", "Pools", "HealthMonitor", "Metrics", "Pipeline", "Caller", "Sweeper", "Embeddings", "Ingress",
    "Exchange", "UpstreamConnection", "Endpoint", "LocalEndpoint", "Relay", "Collect", "Request", "Admin",
}  # fmt: skip
Engines = dict[str, LeanEngine]


def post(*, stream: bool = False) -> bytes:
    """A request with a picture that nobody has encoded yet."""
    url = "data:image/png;base64," + base64.b64encode(os.urandom(12)).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "<tag-1>"}]
    body = json.dumps({"model": "tiny", "stream": stream, "messages": [{"role": "user", "content": content}]}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def make(engines: Engines, **more: Any) -> Server:
    given = {"host": "127.0.0.1", "port": "0", "drain_timeout_secs": "0.05", "encode_fallback": "fail", "retries": "0"}
    given |= {role: engine.url for role, engine in engines.items()}
    return Server(options.load(given | {name: str(value) for name, value in more.items()}, {}))


async def start_and_stop(engines: Engines) -> None:
    for _ in range(3):
        server = make(engines)
        await server.start()
        await server.stop()


async def never_started(engines: Engines) -> None:
    make(engines)
    await make(engines).stop()


async def cannot_listen(engines: Engines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for more in ({"port": taken.getsockname()[1]}, {"tls_cert": "/nonexistent/cert.pem"}):
            try:
                await make(engines, **more).start()
            except ConfigError:
                continue
            raise AssertionError(more)


async def served(engines: Engines) -> None:
    """Clients and workers are still connected when the server stops."""
    server = make(engines)
    await server.start()
    await ready(server)
    streams = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(4)]
    for number, (reader, writer) in enumerate(streams):
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" if not number else post(stream=number > 1))
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    await settled(server)
    await server.stop()
    for _, writer in streams:
        writer.close()
        await writer.wait_closed()


async def stopped_in_the_middle(engines: Engines) -> None:
    """A request at every stage, an administrator who waits for a drain, a client that does not read."""
    server = make(engines)
    await server.start()
    await ready(server)
    writers = []
    for role in ROLES:
        for other in ROLES:
            engines[other].script = "hang" if other == role else "ok"
        hung = engines[role].hung
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post(stream=True))
        await hung.wait()
        writers.append(writer)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /workers/%s/drain?timeout=60 HTTP/1.1\r\nHost: x\r\n\r\n" % engines["decode"].url[7:].encode())
    await until(lambda: any(worker.draining for worker in server.fleet))
    writers.append(writer)
    await server.stop()
    assert not server.pipeline.tasks()
    for writer in writers:
        writer.close()
        await writer.wait_closed()


async def stopped_with_a_client_that_does_not_read(engines: Engines) -> None:
    engines["decode"].script = "flood"
    server = make(engines)
    await server.start()
    await ready(server)
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(post(stream=True))
    await until(lambda: any(connection.paused for connection in server._connections))
    await server.stop()
    client.close()


async def clients_leave(engines: Engines) -> None:
    """At every point of a request: nothing is left, and the server goes on."""
    server = make(engines)
    await server.start()
    await ready(server)
    whole = post()
    for cut in (0, 5, len(whole) - 3):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(whole[:cut])
        await until(lambda: server._connections)
        writer.transport.abort()
        await until(lambda: not server._connections)
    for role in ROLES:
        for other in ROLES:
            engines[other].script = "hang" if other == role else "ok"
        hung = engines[role].hung
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post())
        await hung.wait()
        writer.transport.abort()
        await until(lambda: not server._connections)
        engines[role].script = "ok"
        engines[role].drop()  # decode hangs over the release of the blocks too
        await settled(server)
    engines["decode"].script = "flood"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(post(stream=True))
    await reader.readuntil(b"data: ")
    writer.transport.abort()
    await until(lambda: not server._connections)
    await settled(server)
    engines["decode"].script = "ok"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(whole)
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    await server.stop()


async def workers_come_and_go(engines: Engines) -> None:
    """A worker that is removed while it serves takes its connections with it."""
    server = make(engines, worker_keepalive_secs=60)
    await server.start()
    await ready(server)
    base = len(server.sweeper)
    engines["decode"].script = "late"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(post(stream=True))
    await reader.readuntil(b"data: ")
    server.remove_worker(engines["decode"].url[7:])
    await reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
    await until(lambda: not engines["decode"].connections)
    writer.close()
    await writer.wait_closed()
    await until(lambda: len(server.sweeper) == base - 1)
    await server.stop()


SCENARIOS: dict[str, Callable[[Engines], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        start_and_stop,
        never_started,
        cannot_listen,
        served,
        stopped_in_the_middle,
        stopped_with_a_client_that_does_not_read,
        clients_leave,
        workers_come_and_go,
    )
}


def forget_caches() -> None:
    """aiohttp remembers the handlers of the last applications; what it remembers is bounded and not ours."""
    for thing in gc.get_objects():
        if isinstance(thing, functools._lru_cache_wrapper):
            thing.cache_clear()


def left() -> dict[str, Any]:
    return {
        "tasks": len(asyncio.all_tasks()),
        "descriptors": psutil.Process().num_fds(),
        "threads": threading.active_count(),
        "objects": sorted(
            type(thing).__qualname__
            for thing in gc.get_objects()
            if str(type(thing).__module__).startswith("epd_router.") and type(thing).__qualname__ in GONE
        ),
    }


async def main(name: str) -> None:
    asyncio.get_running_loop().slow_callback_duration = 3600  # a busy machine is no leak
    engines = {role: LeanEngine(role, random.Random(1)) for role in ROLES}
    for engine in engines.values():
        await engine.start()
    before = left()
    try:
        async with asyncio.timeout(50):
            await SCENARIOS[name](engines)
        for engine in engines.values():
            engine.drop()
        for _ in range(20):
            forget_caches()
            gc.collect()
            if left() == before:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError(f"{before}\n{left()}\n{list(map(str, asyncio.all_tasks()))}")
    finally:
        for engine in engines.values():
            await engine.stop()


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what goes wrong on purpose is told
    asyncio.run(main(sys.argv[1]))
    uvloop.run(main(sys.argv[1]))
