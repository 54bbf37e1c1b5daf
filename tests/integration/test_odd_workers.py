"""Workers that answer what a client must not see as it is."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.conftest import chat, running

MODELS = b'{"object":"list","data":[{"id":"tiny"}]}'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@contextlib.asynccontextmanager
async def worker(answer: bytes) -> AsyncIterator[str]:
    """A server that gives this answer to every POST; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head.startswith(b"post"):
                await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
                writer.write(answer)
            else:
                body = MODELS if b"/v1/models" in head.split(b"\r\n")[0] else b"{}"
                writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(url: str, *, stream: bool = False) -> tuple[int, str, str]:
    async with running({"worker_urls": url, "retries": 0}) as router, aiohttp.ClientSession() as http:
        async with http.post(f"http://127.0.0.1:{router.port}/v1/chat/completions", json=chat("x", stream=stream)) as answer:
            return answer.status, answer.content_type, await answer.text()


async def test_a_switch_of_protocols_is_no_answer() -> None:
    async with worker(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello") as url:
        status, _, text = await ask(url)
        assert (status, "worker_failed" in text) == (502, True)


@pytest.mark.parametrize("body", [b"<html>oops</html>", b"", b"500 Internal Server Error"])
async def test_an_error_that_is_no_json_becomes_an_error_object(body: bytes) -> None:
    head = b"HTTP/1.1 500 Oh\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with worker(head + body) as url:
        status, kind, text = await ask(url)
        assert (status, kind) == (500, "application/json")
        assert json.loads(text)["error"] == {"message": body.decode(), "type": "server_error", "param": None, "code": 500}


async def test_an_error_after_a_good_event_is_one_event_of_the_stream() -> None:
    good, bad = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b'data: {"error":{"message":"late","code":500}}\n\n'
    async with worker(STREAM + good + bad + b"data: [DONE]\n\n") as url:
        status, kind, text = await ask(url, stream=True)
        assert (status, kind) == (200, "text/event-stream")
        assert text.startswith(good.decode())
        assert text.count('"error"') == 1
