"""Where HTTP/1.1 implementations differ or break, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import openai
import pytest
import trustme
from epd_router.mock import EngineConfig
from epd_router.server import Server

from tests.conftest import Started, chat, settled
from tests.leaks.engines import LeanEngine
from tests.waiting import until

CHAT = "/v1/chat/completions"
BODY = json.dumps(chat("hello")).encode()


def post(body: bytes = BODY, extra: str = "", version: str = "1.1", path: str = CHAT) -> bytes:
    return f"POST {path} HTTP/{version}\r\nHost: x\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str = "/version", extra: str = "", version: str = "1.1", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/{version}\r\nHost: x\r\n{extra}\r\n".encode()


STATUS = re.compile(rb"HTTP/1\.1 \d\d\d ")
LONG = EngineConfig(max_model_len=10_000_000)
CLOSE = "Connection: close\r\n"


@contextlib.asynccontextmanager
async def connected(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer_to(server: Server, *pieces: bytes) -> bytes:
    """What the server says until it closes."""
    async with connected(server) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
        return await asyncio.wait_for(reader.read(), 25)


async def whole(reader: asyncio.StreamReader, *, bodiless: bool = False) -> tuple[int, bytes, bytes]:
    """One answer of a connection that stays: status, head in lower case, body."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 25)).lower()
    body = b""
    if bodiless:
        pass
    elif b"transfer-encoding: chunked" in head:
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    else:
        body = await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    return int(head.split()[1]), head, body


# --- pipelining ---


async def test_pipelined_answers_keep_their_order_whoever_is_slow(started: Started) -> None:
    async with started(EngineConfig(prefill_ms=50), aggregated=1) as (server, _), connected(server) as (reader, writer):
        bad = post(b"[]")
        stream = post(json.dumps(chat("x", stream=True)).encode())
        sent = [post(), get(), stream, bad, get("/nope"), get("/metrics"), post(path="/tokenize"), get(method="HEAD"), post()]
        writer.write(b"".join(sent))
        statuses = []
        for request in sent:
            status, _, body = await whole(reader, bodiless=request.startswith(b"HEAD"))
            statuses.append(status)
            if request is stream:
                assert body.endswith(b"data: [DONE]\n\n")
        assert statuses == [200, 200, 200, 400, 404, 200, 200, 200, 200]
        await settled(server)


async def test_pipelined_requests_with_large_and_chunked_bodies(started: Started) -> None:
    async with started(LONG, aggregated=1) as (server, cluster), connected(server) as (reader, writer):
        large = json.dumps(chat("x" * 30_000)).encode()
        cut = len(large) // 3
        chunked = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"".join(
            b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (large[:cut], large[cut : 2 * cut], large[2 * cut :])
        )
        trailers = b"0\r\nX-Checksum: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(post(large) + chunked + trailers + get() + post(large) + chunked + b"0\r\n\r\n" + post())
        statuses = [(await whole(reader))[0] for _ in range(6)]
        assert statuses == [200] * 6
        assert [request["raw"] for request in cluster["aggregated"][0].requests] == [large] * 4 + [BODY]


async def test_what_follows_the_last_request_is_not_served(started: Started) -> None:
    async with started(aggregated=1) as (server, cluster):
        said = await answer_to(server, post(extra=CLOSE) + post() + get())
        assert len(STATUS.findall(said)) == 1
        said = await answer_to(server, get(extra=CLOSE) + post())
        assert len(STATUS.findall(said)) == 1
        said = await answer_to(server, post(version="1.0") + post())
        assert len(STATUS.findall(said)) == 1
        assert len(cluster["aggregated"][0].requests) == 2


async def test_a_client_that_pipelines_much_is_read_later_and_still_missed_when_it_leaves(started: Started) -> None:
    async with started(aggregated=1) as (server, cluster):
        cluster["aggregated"][0].fault("hang")
        async with connected(server) as (_, writer):
            writer.write(post() + get() * 800)
            await until(lambda: any(not one.transport.is_reading() for one in server._connections))
            (connection,) = server._connections
            assert connection._filled <= 64 << 10
        await until(lambda: not server._connections)
        await settled(server)
        cluster["aggregated"][0].faults.clear()
        async with connected(server) as (reader, writer):
            writer.write(post() + get() * 800)
            assert [(await whole(reader))[0] for _ in range(801)] == [200] * 801


# --- bodies ---


async def test_expect_100_is_answered_before_the_body_or_refused_without_it(started: Started) -> None:
    expect = "Expect: 100-continue\r\n"
    async with started(aggregated=1, settings={"max_payload_size": 2000}) as (server, cluster):
        head = post(extra=expect)[: -len(BODY)]
        for first in (head, head.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked")):
            async with connected(server) as (reader, writer):
                writer.write(first)
                assert await reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(BODY if first is head else b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))
                assert (await whole(reader))[0] == 200
        for extra in (expect, expect.upper(), expect + CLOSE):
            said = await answer_to(server, post(b"x" * 2001, extra)[:-2001])
            assert said.startswith(b"HTTP/1.1 413 ")
            assert b"100 Continue" not in said
        # The body came along, or the client is too old to know: no interim answer.
        for sent in (post(extra=expect + CLOSE), post(extra=expect, version="1.0")):
            assert (await answer_to(server, sent)).startswith(b"HTTP/1.1 200 ")
        assert all(request["raw"] == BODY for request in cluster["aggregated"][0].requests)


async def test_a_chunked_body_that_grows_too_large_is_refused(started: Started) -> None:
    async with started(aggregated=1, settings={"max_payload_size": 2000}) as (server, cluster):
        head = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        said = await answer_to(server, head, *([b"3e8\r\n" + b" " * 1000 + b"\r\n"] * 3))
        assert said.startswith(b"HTTP/1.1 413 ")
        assert not cluster["aggregated"][0].requests


@pytest.mark.parametrize("size", [0, 1, 16_000, 16_384, 16_385, 65_536, 600_000])
async def test_bodies_of_every_size_arrive_whole_in_pieces_of_any(started: Started, size: int) -> None:
    dice = random.Random(size)
    async with started(LONG, aggregated=1) as (server, cluster), connected(server) as (reader, writer):
        body = json.dumps(chat(dice.randbytes(size // 2).hex())).encode()
        sent = post(body)
        at = 0
        while at < len(sent):
            step = dice.choice([1, 100, 5_000, 70_000])
            writer.write(sent[at : at + step])
            at += step
            if dice.random() < 0.2:
                await asyncio.sleep(0)
        assert (await whole(reader))[0] == 200
        assert cluster["aggregated"][0].requests[-1]["raw"] == body


# --- methods and versions ---


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/health", 200),
        ("/readiness", 200),
        ("/liveness", 200),
        ("/v1/models", 200),
        ("/metrics", 200),
        ("/version", 200),
        ("/workers", 200),
        ("/nope", 404),
        (CHAT, 405),
        ("/v1/embeddings", 405),
        ("/workers/x/drain", 405),
    ],
)
async def test_head_is_get_without_the_body(started: Started, path: str, status: int) -> None:
    async with started(aggregated=1) as (server, _), connected(server) as (reader, writer):
        writer.write(get(path, method="HEAD") + get(path))
        head, answer = await whole(reader, bodiless=True), await whole(reader)
        assert (head[0], answer[0]) == (status, status)
        assert answer[2]
        names = [sorted(line.split(b":")[0] for line in one[1].split(b"\r\n")) for one in (head, answer)]
        assert names[0] == names[1]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
async def test_other_methods_are_refused_as_json(started: Started, method: str) -> None:
    async with started(aggregated=1) as (server, _), connected(server) as (reader, writer):
        writer.write(get(CHAT, method=method) + get(method="HEAD"))
        status, head, body = await whole(reader)
        assert status == 405
        assert method == "BREW" or b"allow: post" in head
        assert json.loads(body)["error"]["code"] == "method_not_allowed"
        assert (await whole(reader, bodiless=True))[0] == 200


@pytest.mark.parametrize(
    "target",
    ["*", "/%", "/a b", "/\xff", "/v1/chat%2Fcompletions", "//version", "/version/", "http://x/", "x:443", "/workers/%00/drain"],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "CONNECT"])
async def test_odd_targets_are_no_fault_of_the_server(started: Started, method: str, target: str) -> None:
    async with started(aggregated=1) as (server, _):
        said = await answer_to(server, f"{method} {target} HTTP/1.1\r\nHost: x\r\n{CLOSE}\r\n".encode("latin-1"))
        assert said.split()[1] in {b"400", b"404", b"405", b"505" if " " in target else b""}
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"]


async def test_http_1_0_closes_unless_asked_to_stay(started: Started) -> None:
    async with started(aggregated=1) as (server, _):
        for request in (post(version="1.0"), get(version="1.0")):
            said = (await answer_to(server, request)).lower()
            assert b"connection: close\r\n" in said
            assert b"transfer-encoding" not in said
        async with connected(server) as (reader, writer):
            stay = "Connection: Keep-Alive\r\n"
            for request in (post(extra=stay, version="1.0"), get(extra=stay, version="1.0"), post(extra=stay, version="1.0")):
                writer.write(request)
                status, head, _ = await whole(reader)
                assert status == 200
                assert b"connection: keep-alive\r\n" in head
            # A stream has no length: the end of the connection is its end.
            writer.write(post(json.dumps(chat("x", stream=True)).encode(), stay, "1.0"))
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert b"connection: close" in head.lower()
            assert body.endswith(b"data: [DONE]\n\n")


# --- slow clients ---


async def trickle(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One byte at a time, never fast and never silent."""
    with contextlib.suppress(OSError):
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "sent",
    [
        get(extra="A: " + "a" * 5000 + "\r\n"),
        post(b" " * 5000),
        post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"1388\r\n" + b" " * 5000,
        post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"1\r\n \r\n" * 1000,
    ],
    ids=["head", "body", "chunk", "chunks"],
)
async def test_a_client_that_trickles_is_refused(started: Started, sent: bytes) -> None:
    async with started(aggregated=1, settings={"client_timeout_secs": 0.5}) as (server, _):
        async with connected(server) as (reader, writer):
            end = sent.find(b"\r\n\r\n") + 4
            first = 0 if sent.startswith(b"GET") else end
            writer.write(sent[:first])
            sending = asyncio.create_task(trickle(writer, sent[first:]))
            assert (await asyncio.wait_for(reader.read(), 25)).startswith(b"HTTP/1.1 408 ")
            sending.cancel()


async def test_a_slow_upload_that_goes_on_is_no_attack(started: Started) -> None:
    """Several times longer than the timeout, but fast enough throughout."""
    async with started(LONG, aggregated=1, settings={"client_timeout_secs": 0.3}) as (server, _):
        async with connected(server) as (reader, writer):
            sent = post(json.dumps(chat("x" * 60_000)).encode())
            for at in range(0, len(sent), 2000):
                writer.write(sent[at : at + 2000])
                await asyncio.sleep(0.05)
            assert (await whole(reader))[0] == 200


async def test_a_reader_that_is_slow_holds_up_the_engine_and_not_memory(started: Started) -> None:
    engine = LeanEngine("decode", random.Random(1))
    engine.script = "flood"
    await engine.start()
    try:
        async with started(settings={"worker_urls": engine.url}) as (server, _), connected(server) as (reader, writer):
            transport = cast("asyncio.Transport", writer.transport)
            transport.pause_reading()
            writer.write(post(json.dumps(chat("<tag-1>", stream=True), separators=(",", ":")).encode()))
            (connection,) = await the_connections(server)
            await until(lambda: connection.paused)
            (flood,) = [one for one in engine.connections if one.transport.get_write_buffer_size()]
            held: set[int] = set()
            for _ in range(50):  # the engine has ten megabytes more, and they stay where they are
                held.add(connection.transport.get_write_buffer_size())
                await asyncio.sleep(0.005)
            assert len(held) == 1
            assert max(held) < 2 << 20
            assert flood.transport.get_write_buffer_size() > 1 << 20
            transport.resume_reading()
            while flood.transport.get_write_buffer_size():
                assert await reader.read(1 << 20)
                assert connection.transport.get_write_buffer_size() < 2 << 20
    finally:
        await engine.stop()


async def the_connections(server: Server) -> list[Any]:
    await until(lambda: server._connections)
    return list(server._connections)


async def test_a_client_that_closes_its_sending_side_has_left(started: Started) -> None:
    """As nginx has it: what it had asked for is cancelled."""
    async with started(aggregated=1) as (server, cluster):
        engine = cluster["aggregated"][0]
        engine.fault("hang")
        async with connected(server) as (reader, writer):
            writer.write(post())
            await until(lambda: engine.active)
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 25) == b""
        await until(lambda: not engine.active)
        await settled(server)
        async with connected(server) as (reader, writer):
            writer.write(get() + b"GET /half")
            assert (await whole(reader))[0] == 200
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 25) == b""
        await until(lambda: not server._connections)


# --- smuggling ---

CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


def lines(*headers: bytes) -> bytes:
    return b"\r\n".join((b"POST /tokenize HTTP/1.1", b"Host: x", *headers, b"", b""))


@pytest.mark.parametrize(
    "sent",
    [
        lines(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
        lines(b"Transfer-Encoding: chunked", b"Content-Length: 5") + b"0\r\n\r\n",
        lines(b"Content-Length: 0", b"Content-Length: 5"),
        lines(b"Content-Length: 0, 5"),
        lines(b"Content-Length: 0x5"),
        lines(b"Content-Length: 5_0"),
        lines(b"Content-Length: -1"),
        lines(b"Content-Length: +0"),
        lines(b"Content-Length: 0 0"),
        lines(b"Content-Length:"),
        lines(b"Content-Length: 99999999999999999999999"),
        lines(b"Content-Length : 0"),
        lines(b" Content-Length: 0"),
        lines(b"Content-Length: 0", b" 5"),
        lines(b"X: y", b"\tfolded"),
        lines(b"X: y\nContent-Length: 5"),
        lines(b"X: y\rContent-Length: 5"),
        lines(b"X: \x00"),
        lines(b"X\x00: y"),
        lines(b"Transfer-Encoding : chunked"),
        lines(b"Transfer-Encoding: xchunked"),
        lines(b"Transfer-Encoding: chunked, identity"),
        lines(b"Transfer-Encoding: identity"),
        lines(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        lines(b"Transfer-Encoding: chunked, chunked"),
        lines(b"Transfer-Encoding:\x0bchunked"),
        lines(b"Transfer-Encoding: \x0cchunked"),
        lines(b'Transfer-Encoding: "chunked"'),
        lines(b"Transfer-Encoding:"),
        CHUNKED + b"0x0\r\n\r\n",
        CHUNKED + b"+0\r\n\r\n",
        CHUNKED + b"-0\r\n\r\n",
        CHUNKED + b" 0\r\n\r\n",
        CHUNKED + b"\r\n\r\n",
        CHUNKED + b"g\r\n\r\n",
        CHUNKED + b"1_0\r\n\r\n",
        CHUNKED + b"0\n\n",
        CHUNKED + b"0\r\n\n",
        CHUNKED + b"0;a=\nb\r\n\r\n",
        CHUNKED + b"2\r\n{}0\r\n\r\n",
        CHUNKED + b"2\r\n{}\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}xx0\r\n\r\n",
        CHUNKED + b"10000000000000000\r\n",
        CHUNKED + b"fffffffffffffff0\r\n",
        CHUNKED + b"0\r\nA: b\r\n c\r\n\r\n",
        CHUNKED + b"0\r\nA: b\nC: d\r\n\r\n",
    ],
    ids=repr,
)
async def test_a_request_that_can_be_read_in_two_ways_ends_the_connection(started: Started, sent: bytes) -> None:
    async with started(aggregated=1, wait=False) as (server, cluster):
        said = await answer_to(server, sent + SMUGGLED)
        status = int(said.split()[1])
        assert status in {400, 413}
        assert b"connection: close\r\n" in said
        assert len(STATUS.findall(said)) == 1
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        assert not cluster["aggregated"][0].requests


async def test_headers_of_one_hop_do_not_reach_the_engine(started: Started) -> None:
    named = "Connection: close, X-Secret\r\nX-Secret: a\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nUpgrade: h2c\r\n"
    kept = "X-Kept: b\r\nAccept-Encoding: gzip\r\n"
    async with started(aggregated=1) as (server, cluster):
        assert (await answer_to(server, post(extra=named + kept))).startswith(b"HTTP/1.1 200 ")
        headers = {name.lower(): value for name, value in cluster["aggregated"][0].requests[-1]["headers"].items()}
        assert headers["x-kept"] == "b"
        assert not headers.keys() & {
            "x-secret",
            "keep-alive",
            "te",
            "upgrade",
            "connection",
            "transfer-encoding",
            "accept-encoding",
        }
        assert headers["host"] == cluster["aggregated"][0].url.removeprefix("http://")


async def test_a_head_that_never_ends_is_refused_before_it_is_stored(started: Started) -> None:
    async with started(aggregated=1) as (server, _):
        for sent in (
            get("/" + "a" * 200_000),
            get(extra="A: b\r\n" * 200),
            get(extra="A: " + "b" * 200_000 + "\r\n"),
            b"G" * 200_000,
        ):
            said = await answer_to(server, sent)
            assert said.split()[1] in {b"431", b"400"}
            assert b"connection: close\r\n" in said


# --- TLS ---


async def test_tls_with_the_openai_client(started: Started, tls: tuple[dict[str, Path], ssl.SSLContext]) -> None:
    files, trust = tls
    async with started(encode=1, prefill=1, decode=1, settings=files) as (server, _):
        async with (
            openai.DefaultAsyncHttpxClient(verify=trust) as http,
            openai.AsyncOpenAI(base_url=f"https://localhost:{server.port}/v1", api_key="none", http_client=http) as api,
        ):
            body: dict[str, Any] = chat("x" * 300_000) | {"model": "tiny"}
            with pytest.raises(openai.BadRequestError, match="context length"):
                await api.chat.completions.create(**body)
            answer = await api.chat.completions.create(**chat("x"))
            assert answer.choices[0].message.content
            events = await api.chat.completions.create(**chat("x"), stream=True)
            assert "".join([event.choices[0].delta.content or "" async for event in events]) == answer.choices[0].message.content
            assert [model.id async for model in api.models.list()] == ["tiny"]
        await settled(server)


async def test_plain_http_on_a_tls_port_is_cut_off(started: Started, tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert("localhost")
    path = tmp_path / "both.pem"
    certificate.private_key_and_cert_chain_pem.write_to_path(path)
    async with started(aggregated=1, settings={"tls_cert": path}) as (server, _):
        with socket.create_connection(("127.0.0.1", server.port)) as plain:
            plain.sendall(get())
            plain.setblocking(False)
            with contextlib.suppress(ConnectionError):
                while data := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(plain, 4096), 25):
                    assert not data.startswith(b"HTTP/1.1 2")
        await until(lambda: not server._connections)
