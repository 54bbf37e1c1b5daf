"""Starting and stopping: what is in flight ends well, what comes too late is told so."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

import pytest
from epd_router import options
from epd_router.errors import ConfigError
from epd_router.mock import EngineConfig
from epd_router.server import Server

from tests.conftest import Started, chat
from tests.waiting import until


def post(**more: Any) -> bytes:
    body = json.dumps(chat("hello", **more)).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


GET = b"GET /readiness HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_requests_in_flight_are_finished_and_idle_connections_closed(started: Started) -> None:
    async with started(EngineConfig(prefill_ms=200), aggregated=1) as (server, cluster):
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", server.port)
        idle_writer.write(GET)
        assert b" 200 " in await idle.readuntil(b"}")
        busy, busy_writer = await asyncio.open_connection("127.0.0.1", server.port)
        busy_writer.write(post())
        await until(lambda: cluster["aggregated"][0].active)
        await server.stop()
        assert await idle.read() == b""
        said = await busy.read()
        assert said.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close\r\n" in said
        for writer in (idle_writer, busy_writer):
            writer.close()


async def test_while_draining_new_requests_are_sent_elsewhere(started: Started) -> None:
    async with started(aggregated=1) as (server, cluster):
        engine = cluster["aggregated"][0]
        engine.fault("hang")
        _, busy = await asyncio.open_connection("127.0.0.1", server.port)
        busy.write(post())
        # A request whose head has begun to arrive keeps its connection open.
        late = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        for _, writer in late:
            writer.write(b"P" if writer is late[0][1] else b"G")
        await until(lambda: engine.active and sum(one.phase.name == "HEAD" for one in server._connections) == 2)
        stopping = asyncio.create_task(server.stop())
        await until(lambda: server.draining)
        for (reader, writer), rest, words in zip(late, (post()[1:], GET[1:]), (b"shutting down", b'"draining"'), strict=True):
            writer.write(rest)
            said = await reader.read()
            assert said.startswith(b"HTTP/1.1 503 ")
            assert words in said
            assert b"connection: close\r\n" in said
            writer.close()
        busy.transport.abort()
        await stopping


async def test_after_the_drain_timeout_what_is_left_is_cut_off(started: Started) -> None:
    async with started(aggregated=1, settings={"drain_timeout_secs": 0}) as (server, cluster):
        cluster["aggregated"][0].fault("hang")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post())
        await until(lambda: cluster["aggregated"][0].active)
        await server.stop()
        said = await reader.read()
        assert said.startswith(b"HTTP/1.1 503 ")
        writer.close()
        await until(lambda: not cluster["aggregated"][0].active)


async def test_a_port_that_is_taken_is_a_plain_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--worker-urls", "http://127.0.0.1:1", "--host", "127.0.0.1", "--port", str(port)]
        pipe = asyncio.subprocess.PIPE
        router = await asyncio.create_subprocess_exec(sys.executable, "-m", "epd_router", *flags, stderr=pipe)
        _, said = await router.communicate()
    assert router.returncode == 2
    (line,) = said.decode().splitlines()
    assert line.startswith(f"epd-router: cannot listen on 127.0.0.1:{port}")


async def test_a_wrong_certificate_is_a_plain_message() -> None:
    server = Server(options.load({"worker_urls": "http://127.0.0.1:1", "tls_cert": "/nonexistent.pem"}, {}))
    with pytest.raises(ConfigError, match="--tls-cert"):
        await server.start()
