"""What each option does, through a running router."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from epd_router.mock import EngineConfig
from epd_router.server import Server

from tests.conftest import Started, ask, chat, data_url, picture, settled
from tests.leaks.engines import LeanEngine
from tests.waiting import until

RED, BLUE, GREEN = (data_url(picture(color)) for color in ("red", "blue", "green"))
CHAT = "/v1/chat/completions"


@contextlib.asynccontextmanager
async def served(content: bytes) -> AsyncIterator[str]:
    """A URL with this content."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=content, content_type="image/jpeg")

    app = web.Application()
    app.router.add_get("/picture", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/picture"
    finally:
        await runner.cleanup()


async def refused(server: Server, body: dict[str, Any]) -> str:
    status, document = await ask(server, body)
    assert status in {400, 413}, document
    return str(document["error"]["code"])


# --- engine ---


@pytest.mark.parametrize(("ttl", "encodes"), [(0, 2), (600, 1)])
async def test_an_embedding_is_trusted_for_its_time(started: Started, ttl: float, encodes: int) -> None:
    async with started(encode=1, prefill=1, decode=1, settings={"embedding_ttl_secs": ttl}) as (server, cluster):
        for _ in range(2):
            assert (await ask(server, chat("x", RED)))[0] == 200
        assert len(cluster["encode"][0].requests) == encodes


@pytest.mark.parametrize(("entries", "encodes"), [(2, 4), (3, 3)])
async def test_the_least_recently_used_embedding_is_forgotten(started: Started, entries: int, encodes: int) -> None:
    async with started(encode=1, prefill=1, decode=1, settings={"embedding_index_entries": entries}) as (server, cluster):
        for url in (RED, BLUE, RED, GREEN, BLUE):  # two of them fit: green drives blue out, not red
            assert (await ask(server, chat("x", url)))[0] == 200
        assert len(cluster["encode"][0].requests) == encodes
        assert len(server.embeddings) == entries


@pytest.mark.parametrize("trusted", [False, True])
async def test_transfer_parameters_of_clients_pass_only_where_trusted(started: Started, trusted: bool) -> None:
    settings = {"trust_client_transfer_params": trusted}
    async with started(aggregated=1, settings=settings) as (server, cluster):
        given = {"do_remote_decode": False}
        body = chat("x", kv_transfer_params=given)
        if trusted:
            assert (await ask(server, body))[0] == 200
            assert cluster["aggregated"][0].requests[-1]["body"]["kv_transfer_params"] == given
        else:
            assert await refused(server, body) == "transfer_params_not_allowed"
        embeds = chat("x")
        embeds["messages"][0]["content"].append({"type": "image_embeds", "image_embeds": {}, "uuid": "u"})
        if not trusted:
            assert await refused(server, embeds) == "transfer_params_not_allowed"
        assert len(cluster["aggregated"][0].requests) == int(trusted)


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_retries_are_attempts_after_the_first(started: Started, retries: int) -> None:
    async with started(aggregated=1, settings={"retries": retries}) as (server, cluster):
        cluster["aggregated"][0].fault("503")
        assert (await ask(server, chat("x")))[0] == 503
        assert len(cluster["aggregated"][0].requests) == retries + 1


# --- media ---


async def test_pictures_of_a_request_are_limited(started: Started) -> None:
    async with started(aggregated=1, settings={"mm_per_request_image_limit": 2}) as (server, _):
        assert (await ask(server, chat("x", RED, BLUE)))[0] == 200
        assert await refused(server, chat("x", RED, BLUE, GREEN)) == "invalid_value"


PARTS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": "URL"}},
    {"type": "image_url", "image_url": {"url": "URL", "detail": "low"}, "uuid": "u"},
    {"type": "image_url", "image_url": "URL"},
    {"image_url": "URL"},
    {"type": "input_image", "image_url": "URL"},
    {"type": "image", "image": "URL"},
    {"type": "image", "source": {"type": "url", "url": "URL"}},
    {"type": "image_pil", "image_pil": "URL"},
    {"type": "text", "text": "x", "image_url": {"url": "URL"}},
    {"type": "video_url", "video_url": {"url": "URL"}},
    {"type": "audio_url", "audio_url": {"url": "URL"}},
]


@pytest.mark.parametrize("part", PARTS, ids=json.dumps)
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
async def test_no_shape_of_a_media_part_gets_a_private_url_past_the_router(
    started: Started, part: dict[str, Any], path: str
) -> None:
    async with started(aggregated=1) as (server, cluster):
        for url in ("http://169.254.169.254/latest", "file:///etc/passwd", "http:\\/\\/127.1\\/a"):
            content = json.loads(json.dumps([part]).replace('"URL"', f'"{url}"'))
            key = "input" if path == "/v1/responses" else "messages"
            body = {"model": "tiny", "max_tokens": 1, key: [{"role": "user", "content": content}]}
            assert await refused(server, body) in {"media_not_allowed", "invalid_value"}
        assert not cluster["aggregated"][0].requests


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, 400),
        ({"mm_allow_private_media_hosts": True}, 200),
        ({"mm_allow_private_media_hosts": True, "mm_allowed_media_domains": "127.0.0.1"}, 200),
        ({"mm_allow_private_media_hosts": True, "mm_allowed_media_domains": "example.com"}, 400),
    ],
)
async def test_where_media_may_come_from(started: Started, settings: dict[str, Any], status: int) -> None:
    async with started(aggregated=1, settings=settings) as (server, _):
        async with served(picture("red")) as url:
            assert (await ask(server, chat("x", url)))[0] == status


# --- limits ---


async def send(server: Server, *pieces: bytes) -> tuple[int, dict[str, Any]]:
    """Send raw bytes and read one answer that ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.writelines(pieces)
    try:
        said = await asyncio.wait_for(reader.read(), 25)
    finally:
        writer.close()
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def test_the_size_of_bodies_is_limited_however_they_come(started: Started) -> None:
    whole = json.dumps(chat("x" * 2000)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    sized = head + b"Content-Length: %d\r\n\r\n" % len(whole)
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(whole), whole)
    for limit, status in ((len(whole), 200), (len(whole) - 1, 413)):
        async with started(aggregated=1, settings={"max_payload_size": limit}) as (server, _):
            for pieces in ((sized, whole), (chunked,)):
                got, document = await send(server, *pieces)
                assert got == status
                assert status == 200 or document["error"]["code"] == "payload_too_large"


async def test_the_size_of_heads_is_limited(started: Started) -> None:
    get = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\nA: "
    fits = get + b"a" * (4096 - len(get) - 4) + b"\r\n\r\n"
    async with started(aggregated=1, settings={"max_header_size": 4096}) as (server, _):
        assert (await send(server, fits))[0] == 200
        assert (await send(server, fits.replace(b"aaa", b"aaaa", 1)))[0] == 431


async def test_the_depth_of_bodies_is_limited(started: Started) -> None:
    async with started(aggregated=1, settings={"max_json_depth": 10}) as (server, _):
        for depth, fits in ((8, True), (10, False)):
            value: Any = 1
            for _ in range(depth):
                value = [value]
            body = chat("x", unknown=value)
            if fits:
                assert (await ask(server, body))[0] == 200
            else:
                status, document = await ask(server, body)
                assert status == 400
                assert "more than 10 levels" in document["error"]["message"]


async def test_media_parts_of_a_body_are_limited(started: Started) -> None:
    async with started(aggregated=1, settings={"max_media_items": 2}) as (server, _):
        assert (await ask(server, chat("x", RED, RED)))[0] == 200
        status, document = await ask(server, chat("x", RED, RED, RED))
        assert status == 400
        assert "more than 2 media" in document["error"]["message"]


# --- timeouts ---


@pytest.mark.parametrize(
    ("option", "role"),
    [
        ("encode_timeout_secs", "encode"),
        ("prefill_timeout_secs", "prefill"),
        ("first_byte_timeout_secs", "decode"),
    ],
)
async def test_each_stage_has_its_own_timeout(started: Started, option: str, role: str) -> None:
    settings = {option: 0.3, "encode_fallback": "fail"}
    async with started(encode=1, prefill=1, decode=1, settings=settings) as (server, cluster):
        cluster[role][0].fault("hang")
        status, document = await ask(server, chat("x", RED))
        assert (status, document["error"]["code"]) == (504, "stage_timeout")
        assert role in document["error"]["message"]
        await settled(server)


async def test_a_worker_that_cannot_be_connected_to_is_given_up(started: Started) -> None:
    settings = {"connect_timeout_secs": 0.3, "health_check_interval_secs": 60}
    async with started(aggregated=1, settings=settings) as (server, cluster):
        engine = cluster["aggregated"][0]
        await engine.stop()
        for worker in server.fleet:
            worker.endpoint.close()
        # A listener whose queue is full drops what comes.
        with socket.socket() as full, contextlib.ExitStack() as queue:
            full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            full.bind(("127.0.0.1", engine.port))
            full.listen(0)
            for _ in range(4):
                waiting = queue.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(("127.0.0.1", engine.port))
            status, document = await ask(server, chat("x"))
        assert (status, document["error"]["code"]) == (503, "no_worker")
        (worker,) = server.fleet
        assert "cannot connect" in worker.last_error


async def test_silence_in_the_middle_of_an_answer_ends_it(started: Started) -> None:
    settings = {"idle_timeout_secs": 0.3}
    async with started(EngineConfig(token_ms=60_000), aggregated=1, settings=settings) as (server, cluster):
        async with aiohttp.ClientSession() as http:
            async with http.post(f"http://127.0.0.1:{server.port}{CHAT}", json=chat("x", stream=True)) as answer:
                events = (await answer.text()).split("\n\n")
        assert "silent" in json.loads(events[-2].removeprefix("data: "))["error"]["message"]
        await until(lambda: not cluster["aggregated"][0].active)
        await settled(server)


async def test_a_request_has_a_time_for_all_of_it(started: Started) -> None:
    settings = {"request_timeout_secs": 0.5}
    async with started(EngineConfig(token_ms=100), aggregated=1, settings=settings) as (server, cluster):
        status, document = await ask(server, chat("x", max_tokens=1000))
        assert (status, document["error"]["code"]) == (504, "stage_timeout")
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientPayloadError):
                async with http.post(
                    f"http://127.0.0.1:{server.port}{CHAT}", json=chat("x", max_tokens=1000, stream=True)
                ) as answer:
                    await answer.read()
        await until(lambda: not cluster["aggregated"][0].active)
        await settled(server)


async def test_a_client_that_does_not_read_is_dropped(started: Started) -> None:
    engine = LeanEngine("decode", random.Random(1))
    engine.script = "flood"
    await engine.start()
    settings = {"client_timeout_secs": 0.3, "worker_urls": engine.url}
    try:
        async with started(settings=settings) as (server, _):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                body = json.dumps(chat("<tag-1>", stream=True)).replace('": ', '":').encode()
                client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                await until(lambda: any(connection.paused for connection in server._connections))
                await until(lambda: not server._connections)
            await settled(server)
            await until(lambda: not engine.connections)
    finally:
        await engine.stop()


async def test_an_idle_worker_connection_is_used_again_and_then_closed(started: Started) -> None:
    engine = LeanEngine("decode", random.Random(1))
    await engine.start()
    try:
        settings = {"worker_keepalive_secs": 1.0, "worker_urls": engine.url, "health_check_interval_secs": 60}
        async with started(settings=settings) as (server, _):
            await until(lambda: not engine.connections)  # those of the probes
            for _ in range(5):
                assert (await ask(server, chat("<tag-1>")))[0] == 200
            assert len(engine.connections) == 1
            await until(lambda: not engine.connections)
    finally:
        await engine.stop()


# --- health ---


async def test_a_worker_is_taken_out_after_so_many_failed_probes(started: Started) -> None:
    settings = {"health_failure_threshold": 3, "health_check_interval_secs": 0.02}
    async with started(aggregated=1, settings=settings) as (server, cluster):
        (worker,) = server.fleet
        seen: list[int] = []
        cluster["aggregated"][0].fault("500", path="/health")
        while worker.healthy:
            seen.append(worker.failures)
            await asyncio.sleep(0.001)
        assert max(seen, default=0) <= 2
        assert worker.failures >= 3
        assert "500" in worker.last_error


async def test_a_worker_comes_back_after_so_many_good_probes(started: Started) -> None:
    settings = {"health_success_threshold": 3, "health_check_interval_secs": 0.02}
    async with started(aggregated=1, wait=False, settings=settings) as (server, _):
        (worker,) = server.fleet
        seen: list[int] = []
        while not worker.healthy:
            seen.append(worker.successes)
            await asyncio.sleep(0.001)
        assert max(seen) == 2
        assert worker.models == ("tiny",)


async def test_a_probe_without_answer_has_failed(started: Started) -> None:
    settings = {"health_check_timeout_secs": 0.2, "health_failure_threshold": 1, "health_check_interval_secs": 0.02}
    async with started(aggregated=1, settings=settings) as (server, cluster):
        (worker,) = server.fleet
        cluster["aggregated"][0].fault("hang", path="/health")
        await until(lambda: not worker.healthy)
        assert worker.last_error == "TimeoutError"


async def test_the_next_probe_comes_after_the_interval(started: Started) -> None:
    engine = LeanEngine("aggregated", random.Random(1))
    await engine.start()
    try:
        async with started(settings={"worker_urls": engine.url, "health_check_interval_secs": 3600}) as (server, _):
            before = engine.probes
            server.health.suspect(next(iter(server.fleet)))
            await until(lambda: engine.probes == before + 1)  # the only one, because it was asked for
    finally:
        await engine.stop()


# --- logs ---


@pytest.mark.parametrize("wanted", [False, True])
async def test_the_decision_of_a_request_is_logged_on_demand(
    started: Started, caplog: pytest.LogCaptureFixture, wanted: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with started(encode=1, prefill=1, decode=1, settings={"log_requests": wanted}) as (server, cluster):
        assert (await ask(server, chat("x", RED)))[0] == 200
        await settled(server)
        found = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request ")]
        assert len(found) == int(wanted)
        if wanted:
            decision = json.loads(found[0][found[0].index("{") :])
            assert decision["kind"] == "encode-prefill-decode"
            assert decision["decode"] == cluster["decode"][0].url.removeprefix("http://")
