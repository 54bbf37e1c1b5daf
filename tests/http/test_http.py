"""HTTP/1.1 as a client may speak it, byte by byte."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import aiohttp
import pytest
from epd_router.mock import EngineConfig

from tests.conftest import Started, chat, settled

BODY = json.dumps(chat("hello")).encode()
PATH = "/v1/chat/completions"


def post(body: bytes = BODY, extra: str = "", version: str = "1.1", path: str = PATH) -> bytes:
    return f"POST {path} HTTP/{version}\r\nHost: x\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def speak(port: int, *sent: bytes, wait: float = 0.0) -> bytes:
    """Send, half-close nothing, read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in sent:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(wait)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_pipelined_requests_are_answered_in_order_hot_and_other(started: Started) -> None:
    async with started(aggregated=1) as (server, _):
        get = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
        said = await speak(server.port, post() + get + post() + post(extra="Connection: close\r\n"))
        kinds = ["version" if b'"version"' in part else "chat" for part in said.split(b"HTTP/1.1 200 OK")[1:]]
        assert kinds == ["chat", "version", "chat", "chat"]
        assert said.count(b"connection: close") == 1


async def test_chunked_upload_and_expect_continue(started: Started) -> None:
    async with started(aggregated=1) as (server, cluster):
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"
        chunks = b"%x;ext=1\r\n%s\r\n%x\r\n%s\r\n0\r\nTrailer: y\r\n\r\n" % (10, BODY[:10], len(BODY) - 10, BODY[10:])
        said = await speak(
            server.port, head + b"Transfer-Encoding: chunked\r\n\r\n", *(bytes([byte]) for byte in chunks), wait=0.002
        )
        assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert cluster["aggregated"][0].requests[-1]["raw"] == BODY
        said = await speak(server.port, head + b"Content-Length: %d\r\n\r\n" % len(BODY), BODY, wait=0.05)
        assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


async def test_http_1_0_gets_a_plain_body(started: Started) -> None:
    async with started(aggregated=1) as (server, _):
        said = await speak(server.port, post(json.dumps(chat("x", stream=True)).encode(), version="1.0"))
        head, _, body = said.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")


async def test_head_and_unknown_paths_and_methods(started: Started) -> None:
    async with started(aggregated=1) as (server, _), aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as http:
        async with http.head("/health") as answer:
            assert (answer.status, await answer.read()) == (200, b"")
        for method, path, status, code in [("GET", "/nope", 404, "unknown_url"), ("GET", PATH, 405, "method_not_allowed")]:
            async with http.request(method, path) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (status, code)
        async with http.get("/v1/models") as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == ["tiny"]
        async with http.get("/metrics") as answer:
            assert "epd_router_worker_healthy" in await answer.text()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 70000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
async def test_what_is_not_http_is_refused(started: Started, sent: bytes, status: int) -> None:
    async with started(aggregated=1, wait=False) as (server, _):
        said = await speak(server.port, sent)
        assert said.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"]


@pytest.mark.parametrize(
    "sent", [b"POST / HT", post()[:-5], b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"]
)
async def test_a_slow_client_is_told_so(started: Started, sent: bytes) -> None:
    async with started(aggregated=1, settings={"client_timeout_secs": 0.3}) as (server, _):
        assert (await speak(server.port, sent)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        (b'{"model": "tiny", "messages": [}', "invalid_json", "byte 31"),
        (b"[]", "invalid_json", "object"),
        (b'{"model": "tiny", "stream": "yes"}', "invalid_value", "stream"),
        (b'{"model": "tiny", "stream": true, "stre\\u0061m": false}', "invalid_value", "twice"),
        (b'{"model": "nope"}', "model_not_found", "tiny"),
    ],
)
async def test_bad_bodies_are_named(started: Started, body: bytes, code: str, word: str) -> None:
    async with started(aggregated=1) as (server, _):
        said = await speak(server.port, post(body, "Connection: close\r\n"))
        error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == code
        assert word in error["message"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a",
        "http://2130706433/a",
        "http://0x7f.1/a",
        "http://[::ffff:10.0.0.1]/a",
        "file:///etc/passwd",
        "http://localhost/",
    ],
)
async def test_private_media_urls_are_refused(started: Started, url: str) -> None:
    async with started(aggregated=1) as (server, cluster):
        said = await speak(server.port, post(json.dumps(chat("x", url)).encode(), "Connection: close\r\n"))
        assert b"media_not_allowed" in said
        assert b"messages[0].content[0]" in said
        assert not cluster["aggregated"][0].requests


async def test_stream_chunks_are_not_held_back(started: Started) -> None:
    async with started(EngineConfig(token_ms=50), aggregated=1) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post(json.dumps(chat("x", stream=True)).encode(), "Connection: close\r\n"))
        loop, times = asyncio.get_running_loop(), []
        while await reader.read(65536):
            times.append(loop.time())
        writer.close()
        assert len(times) >= 8  # one read for each of the eight tokens, not one for all
        assert times[-1] - times[0] > 0.2


async def test_a_slow_reader_pauses_the_engine(started: Started) -> None:
    big = EngineConfig(output_tokens=60_000)
    async with started(big, aggregated=1) as (server, _):
        body = chat("x", stream=True)
        del body["max_tokens"]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(post(json.dumps(body).encode(), "Connection: close\r\n"))
        await reader.readexactly(10)
        connection = next(iter(server._connections))
        while not connection.paused:
            await asyncio.sleep(0.01)
        held = connection.transport.get_write_buffer_size()
        await asyncio.sleep(0.2)
        assert connection.transport.get_write_buffer_size() == held < 2 << 20
        rest = await asyncio.wait_for(reader.read(), 25)
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()


async def test_tls(started: Started, tls: tuple[dict[str, Path], ssl.SSLContext]) -> None:
    files, context = tls
    async with started(aggregated=1, settings=files) as (server, _), aiohttp.ClientSession() as http:
        async with http.post(f"https://localhost:{server.port}{PATH}", data=BODY, ssl=context) as answer:
            assert answer.status == 200


async def test_keys(started: Started) -> None:
    settings = {"api_key": "secret", "worker_api_key": "inner"}
    async with started(EngineConfig(api_key="inner"), aggregated=1, wait=False, settings=settings) as (server, _):
        while not server.fleet.models:
            await asyncio.sleep(0.01)
        assert b" 401 " in await speak(server.port, post(extra="Connection: close\r\n"))
        assert b" 200 " in await speak(server.port, post(extra="Connection: close\r\nAuthorization: Bearer secret\r\n"))


async def test_a_client_that_leaves_cancels_the_engine(started: Started) -> None:
    async with started(EngineConfig(prefill_ms=5000), aggregated=1) as (server, cluster):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post())
        while not cluster["aggregated"][0].active:
            await asyncio.sleep(0.01)
        writer.close()
        while not cluster["aggregated"][0].cancelled:
            await asyncio.sleep(0.01)
        await settled(server)


async def test_an_idle_connection_is_kept_and_then_closed(started: Started) -> None:
    async with started(aggregated=1, settings={"client_keepalive_secs": 1.0}) as (server, _):
        loop = asyncio.get_running_loop()
        opened = loop.time()
        said = await speak(server.port, post(), wait=0.6)
        assert said.startswith(b"HTTP/1.1 200 ")
        assert loop.time() - opened > 1.0  # several sweeps have passed it by
