"""The worker list while running: read, add, remove, drain."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from epd_router.mock import Engine, EngineConfig
from epd_router.server import Server

from tests.conftest import Started, chat, data_url, picture, settled
from tests.waiting import until


async def call(server: Server, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http:
        async with http.request(method, f"http://127.0.0.1:{server.port}{path}", **more) as answer:
            return answer.status, await answer.json()


async def ask(server: Server, **more: Any) -> int:
    return (await call(server, "POST", "/v1/chat/completions", json=chat("x", **more)))[0]


async def until_healthy(server: Server, worker_id: str) -> None:
    while not server.fleet.get(worker_id).healthy:
        await asyncio.sleep(0.01)


def key(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def test_an_added_worker_gets_work_once_it_is_healthy(started: Started) -> None:
    async with started(aggregated=1) as (server, cluster):
        engine = Engine(EngineConfig(), cluster.shared)
        await engine.start()
        try:
            document = {"url": engine.url, "role": "aggregated", "weight": 1e6, "node": "a"}
            status, added = await call(server, "POST", "/workers", json=document)
            assert (status, added["role"], added["weight"], added["node"]) == (201, "aggregated", 1e6, "a")
            await asyncio.wait_for(until_healthy(server, added["id"]), 10)
            assert await ask(server) == 200
            assert len(engine.requests) == 1
            status, document = await call(server, "GET", "/workers")
            assert {worker["id"] for worker in document["workers"]} == {worker.id for worker in server.fleet}
        finally:
            await server.stop()
            await engine.stop()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"url": "http://w:1", "role": "nobody"}, "prefill_decode"),
        ({"url": "ftp://w:1", "role": "aggregated"}, "ftp://w:1"),
        ({"url": "http://w:1,http://v:1", "role": "aggregated"}, "not a worker URL"),
        ({"url": "http://w:1", "role": "aggregated", "weight": -1}, "weight"),
        ({"url": "http://w:1"}, "role"),
        ({"role": "aggregated"}, "url"),
        ({"url": "http://w:1", "role": ["aggregated"]}, "role"),
        ({"url": "http://w:1", "role": "aggregated", "color": "red"}, "color"),
        ([], "url"),
        ("x", "url"),
    ],
)
async def test_a_worker_that_cannot_be_is_refused(started: Started, document: object, message: str) -> None:
    async with started(aggregated=1) as (server, _):
        status, answer = await call(server, "POST", "/workers", json=document)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert message in answer["error"]["message"]
        assert len(list(server.fleet)) == 1


async def test_a_worker_is_added_once_and_not_from_nonsense(started: Started) -> None:
    async with started(aggregated=1) as (server, cluster):
        status, answer = await call(server, "POST", "/workers", data=b"{")
        assert (status, answer["error"]["code"]) == (400, "invalid_json")
        document = {"url": cluster["aggregated"][0].url, "role": "aggregated"}
        assert (await call(server, "POST", "/workers", json=document))[0] == 400


async def test_a_role_that_was_only_added_is_not_missed_when_it_goes(started: Started) -> None:
    async with started(aggregated=1) as (server, _):
        status, added = await call(server, "POST", "/workers", json={"url": "http://127.0.0.1:9", "role": "prefill-decode"})
        assert (status, added["role"]) == (201, "prefill_decode")
        path = f"/workers/{added['id']}"
        assert (await call(server, "GET", path))[1]["healthy"] is False
        assert (await call(server, "GET", "/readiness"))[0] == 503
        assert (await call(server, "DELETE", path))[0] == 200
        assert (await call(server, "GET", "/readiness"))[0] == 200
        assert (await call(server, "GET", path))[0] == 404


async def test_a_removed_worker_gets_nothing_more(started: Started) -> None:
    async with started(aggregated=2) as (server, cluster):
        gone = cluster["aggregated"][0]
        path = f"/workers/{gone.url.removeprefix('http://')}"
        assert (await call(server, "DELETE", path))[0] == 200
        for _ in range(10):
            assert await ask(server) == 200
        assert not gone.requests
        status, answer = await call(server, "DELETE", path)
        assert (status, answer["error"]["code"]) == (404, "worker_not_found")


async def test_removal_lets_a_running_stream_end(started: Started) -> None:
    async with started(EngineConfig(token_ms=20), aggregated=1) as (server, _), aiohttp.ClientSession() as http:
        async with http.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=chat("x", stream=True)) as answer:
            await answer.content.readline()
            (worker,) = server.fleet
            assert (await call(server, "DELETE", f"/workers/{worker.id}"))[0] == 200
            assert (await answer.text()).endswith("data: [DONE]\n\n")
        status, document = await call(server, "POST", "/v1/chat/completions", json=chat("x"))
        assert (status, document["error"]["code"]) == (503, "no_worker")
        await settled(server)


async def test_drain_waits_for_what_runs_and_admits_nothing_new(started: Started) -> None:
    async with started(EngineConfig(prefill_ms=300), aggregated=2) as (server, _):
        running = [asyncio.create_task(ask(server)) for _ in range(2)]
        first, second = server.fleet
        while not first.load.active:
            await asyncio.sleep(0.005)
        status, drained = await call(server, "POST", f"/workers/{first.id}/drain")
        assert (status, drained["draining"], drained["active"]) == (200, True, 0)
        assert await asyncio.gather(*running) == [200, 200]
        assert await ask(server) == 200
        assert second.load.active == 0
        missing = (await call(server, "POST", f"/workers/{second.id}/drain"))[1]
        assert missing["draining"] is True
        assert (await call(server, "GET", "/readiness"))[0] == 503
        assert await ask(server) == 503


async def test_drain_gives_up_waiting_in_time(started: Started) -> None:
    async with started(EngineConfig(prefill_ms=5000), aggregated=1) as (server, _):
        running = asyncio.create_task(ask(server))
        (worker,) = server.fleet
        while not worker.load.active:
            await asyncio.sleep(0.005)
        status, drained = await call(server, "POST", f"/workers/{worker.id}/drain?timeout=0.05")
        assert (status, drained["active"]) == (200, 1)
        running.cancel()


@pytest.mark.parametrize("timeout", ["soon", "nan", "inf", "-1", ""])
async def test_a_drain_timeout_that_is_none_is_refused(started: Started, timeout: str) -> None:
    async with started(aggregated=1) as (server, _):
        (worker,) = server.fleet
        status, answer = await call(server, "POST", f"/workers/{worker.id}/drain?timeout={timeout}")
        assert (status, answer["error"]["param"]) == (400, "timeout")
        assert not worker.draining


async def test_changes_need_the_admin_key(started: Started) -> None:
    settings = {"api_key": "client", "admin_api_key": "admin"}
    async with started(aggregated=1, settings=settings) as (server, _):
        (worker,) = server.fleet
        for method, path in (("POST", "/workers"), ("DELETE", f"/workers/{worker.id}"), ("POST", f"/workers/{worker.id}/drain")):
            for headers in ({}, key("client")):
                status, answer = await call(server, method, path, headers=headers, json={})
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert (await call(server, "POST", f"/workers/{worker.id}/drain", headers=key("admin")))[0] == 200


async def test_without_an_admin_key_the_client_keys_count(started: Started) -> None:
    async with started(aggregated=1, settings={"api_key": "a,b"}) as (server, _):
        (worker,) = server.fleet
        assert (await call(server, "POST", f"/workers/{worker.id}/drain"))[0] == 401
        assert (await call(server, "POST", f"/workers/{worker.id}/drain", headers=key("b")))[0] == 200


async def test_workers_are_shown_the_key_that_is_theirs(started: Started) -> None:
    mock = EngineConfig(api_key="inner")
    async with started(mock, aggregated=1, settings={"worker_api_key": "inner", "api_key": "outer"}) as (server, cluster):
        answer = await call(server, "POST", "/v1/chat/completions", json=chat("x"), headers=key("outer"))
        assert answer[0] == 200
        assert (await call(server, "POST", "/v1/chat/completions", json=chat("x"), headers=key("inner")))[0] == 401
        assert len(cluster["aggregated"][0].requests) == 1


async def test_every_label_of_a_worker_url_can_be_given(started: Started) -> None:
    labels = {
        "weight": 2,
        "node": "rack 1,weight=9",
        "engine_id": "e",
        "kv_host": "k",
        "kv_port": 1,
        "tp": 2,
        "pp": 3,
        "bootstrap": 4,
        "ec_host": "c",
        "ec_port": 5,
    }
    async with started(prefill=1, decode=1) as (server, _):
        status, added = await call(server, "POST", "/workers", json={"url": "http://[::1]:1/", "role": "prefill", **labels})
        assert status == 201, added
        assert (added["id"], added["weight"]) == ("[::1]:1", 2.0)
        spec = server.fleet.get("[::1]:1").spec
        assert {name: getattr(spec, name) for name in labels} == labels
        assert (await call(server, "DELETE", "/workers/%5B%3A%3A1%5D%3A1"))[0] == 200
        assert len(list(server.fleet)) == 2


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://w:99999", "http://w:0", "http://u:p@w:1", "http://:p@w:1", "http://w w:1", "http://wö:1", "w:1", 5],
)
async def test_a_worker_url_that_is_none_is_refused(started: Started, url: object) -> None:
    async with started(aggregated=1, wait=False) as (server, _):
        status, answer = await call(server, "POST", "/workers", json={"url": url, "role": "aggregated"})
        assert (status, answer["error"]["code"]) == (400, "invalid_value")
        assert len(list(server.fleet)) == 1


@pytest.mark.parametrize(
    ("roles", "role", "message"),
    [
        ({"aggregated": 1}, "encode", "--encode needs"),
        ({"aggregated": 1}, "decode", "--decode needs --prefill"),
        ({"aggregated": 1}, "prefill", "--prefill needs --decode"),
    ],
)
async def test_a_role_that_would_leave_requests_without_a_stage_is_refused(
    started: Started, roles: dict[str, int], role: str, message: str
) -> None:
    """An encoder beside aggregated workers would send every request to a pool that does not exist."""
    async with started(**roles) as (server, _):
        status, answer = await call(server, "POST", "/workers", json={"url": "http://w:1", "role": role})
        assert (status, answer["error"]["code"]) == (400, "invalid_value")
        assert message in answer["error"]["message"]
        assert (await call(server, "GET", "/readiness"))[1] == {"status": "ready", "topology": "aggregated", "missing": []}
        assert await ask(server) == 200


async def test_an_added_encoder_turns_pd_into_epd(started: Started) -> None:
    picture_ = data_url(picture("red"))
    async with started(prefill=1, decode=1) as (server, cluster):
        encoder = Engine(EngineConfig(role="encode"), cluster.shared)
        await encoder.start()
        try:
            status, added = await call(server, "POST", "/workers", json={"url": encoder.url, "role": "encode"})
            assert status == 201
            await until(lambda: server.fleet.get(added["id"]).healthy)
            assert (await call(server, "GET", "/readiness"))[1]["topology"] == "E+P+D"
            assert (await call(server, "POST", "/v1/chat/completions", json=chat("x", picture_)))[0] == 200
            assert len(encoder.requests) == 1
        finally:
            await server.stop()
            await encoder.stop()


async def test_a_pushing_prefill_worker_needs_its_engine_id(started: Started) -> None:
    settings = {"kv_connector": "nixl-push", "prefill": "http://p:1,engine_id=e", "decode": "http://d:1"}
    async with started(wait=False, settings=settings) as (server, _):
        status, answer = await call(server, "POST", "/workers", json={"url": "http://q:1", "role": "prefill"})
        assert status == 400
        assert "engine_id" in answer["error"]["message"]
        document = {"url": "http://q:1", "role": "prefill", "engine_id": "f"}
        assert (await call(server, "POST", "/workers", json=document))[0] == 201


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "bearer   secret"}, 200),
        ({"x-api-key": "secret"}, 200),
        ({"authorization": "secret"}, 401),
        ({"authorization": "Basic secret"}, 401),
        ({"authorization": "Bearer secret2"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "sécret"}, 401),
        ({}, 401),
    ],
)
async def test_a_key_is_shown_as_bearer_token_or_api_key(started: Started, headers: dict[str, str], status: int) -> None:
    async with started(aggregated=1, settings={"api_key": "other,secret"}) as (server, _):
        (worker,) = server.fleet
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("POST", f"/workers/{worker.id}/drain"),
        ):
            got, answer = await call(server, method, path, headers=headers, json=chat("x") if "chat" in path else None)
            assert got == status
            assert status == 200 or answer["error"]["code"] == "invalid_api_key"
        for path in ("/health", "/liveness", "/version", "/workers"):
            assert (await call(server, "GET", path))[0] in {200, 503}
