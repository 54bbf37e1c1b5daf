"""Every connector gives the aggregated answer, and what each refuses is survived."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from epd_router.mock import Cluster, EngineConfig
from epd_router.server import Server

from tests.conftest import Started, ask, chat, data_url, picture, ready, running, settled

RED, BLUE = data_url(picture("red")), data_url(picture("blue"))
BODIES = [chat("hello"), chat("what?", RED), chat("both?", RED, BLUE), chat("same?", BLUE, BLUE)]
LABELS = {
    "nixl": {"prefill": ""},
    "store": {"prefill": ""},
    "nixl-push": {"prefill": ",engine_id={engine.engine_id},kv_host=127.0.0.1,kv_port={engine.port}"},
    "mooncake": {"prefill": ",bootstrap={engine.bootstrap}"},
    "ec mooncake": {"prefill_decode": ",ec_port={engine.port}"},
}


@contextlib.asynccontextmanager
async def connected(
    connector: str, *, settings: dict[str, Any] | None = None, prefill: int = 1
) -> AsyncIterator[tuple[Server, Cluster]]:
    """A router and engines with one connector; `ec ` before its name makes it the one between encode and prefill."""
    of_embeddings = connector.startswith("ec ")
    name = connector.removeprefix("ec ")
    config = EngineConfig(ec_connector=name) if of_embeddings else EngineConfig(kv_connector=name)
    roles = {"encode": 1, "prefill_decode": 2} if of_embeddings else {"encode": 1, "prefill": prefill, "decode": 1}
    async with Cluster(config=config, **roles) as cluster:
        labels = LABELS.get(connector, {})
        given = {
            role: ",".join(engine.url + labels.get(role, "").format(engine=engine) for engine in cluster[role]) for role in roles
        }
        if name in {"nixl-push", "mooncake"}:
            given["ec_connector" if of_embeddings else "kv_connector"] = name
        async with running({**given, **(settings or {})}) as server:
            yield server, cluster


def request_id(request: dict[str, Any]) -> str:
    return str(next(value for name, value in request["headers"].items() if name.lower() == "x-request-id"))


async def expected(started: Started, bodies: list[dict[str, Any]]) -> list[Any]:
    async with started(aggregated=1) as (server, _):
        return [(await ask(server, body))[1]["choices"] for body in bodies]


@pytest.mark.parametrize("connector", ["nixl", "store", "nixl-push", "mooncake", "ec example", "ec nixl", "ec mooncake"])
async def test_every_connector_gives_the_aggregated_answer(started: Started, connector: str) -> None:
    right = await expected(started, BODIES)
    async with connected(connector) as (server, cluster):
        for _ in range(2):
            answers = await asyncio.gather(*(ask(server, body) for body in BODIES))
            assert [status for status, _ in answers] == [200] * len(BODIES)
            assert [document["choices"] for _, document in answers] == right
        assert not any(engine.died for engine in cluster.all())
        encodes = len(cluster["encode"][0].requests)
        assert encodes == (2 * 4 if connector == "ec mooncake" else 2)  # a push serves one request
        await settled(server)


@pytest.mark.parametrize("connector", ["nixl-push", "mooncake"])
async def test_both_legs_of_a_push_meet(connector: str) -> None:
    async with connected(connector) as (server, cluster):
        assert (await ask(server, chat("what?", RED)))[0] == 200
        first, second = (cluster[role][0].requests[-1] for role in ("prefill", "decode"))
        assert request_id(first) == request_id(second)
        assert second["body"]["kv_transfer_params"]["do_remote_prefill"] is True
        assert second["body"]["messages"][0]["content"][0]["type"] == "image_url"  # nothing is known of prefill's success yet
        assert cluster["prefill"][0].pinned_blocks == 0


@pytest.mark.parametrize("connector", ["nixl-push", "mooncake"])
async def test_a_failed_prefill_ends_the_decode_that_waits_and_another_takes_over(started: Started, connector: str) -> None:
    (right,) = await expected(started, [chat("what?", RED)])
    async with connected(connector, prefill=2, settings={"health_check_interval_secs": 30}) as (server, cluster):
        for engine in cluster["prefill"]:
            engine.fault("503", 1)
        for _ in range(2):
            status, document = await ask(server, chat("what?", RED))
            assert (status, document["choices"]) == (200, right)
        names = {request_id(request) for request in cluster["decode"][0].requests}
        assert len(names) == len(cluster["decode"][0].requests) > 2  # new names for each attempt
        await settled(server)
        for engine in cluster["prefill"]:
            engine.fault("422")
        assert (await ask(server, chat("what?", RED)))[0] == 422  # prefill's own answer, at once
        await settled(server)


async def test_mooncake_follows_a_prefill_engine_that_came_back() -> None:
    async with connected("mooncake") as (server, cluster):
        assert (await ask(server, chat("x")))[0] == 200
        (engine,) = cluster["prefill"]
        before = engine.engine_id
        await engine.stop()
        while not server.fleet.missing_roles():
            await asyncio.sleep(0.01)
        await engine.restart()
        await asyncio.wait_for(ready(server), 10)
        assert engine.engine_id != before
        assert (await ask(server, chat("x")))[0] == 200
        await settled(server)


async def test_a_bootstrap_server_that_is_gone_is_a_prefill_failure() -> None:
    async with connected("mooncake") as (server, cluster):
        worker = next(worker for worker in server.fleet if worker.role.value == "prefill")
        object.__setattr__(worker.spec, "bootstrap", 1)
        status, document = await ask(server, chat("x"))
        assert (status, document["error"]["code"]) == (502, "prefill_failed")
        assert not cluster["decode"][0].requests
        await settled(server)


async def test_embeddings_in_an_encoder_that_restarted_are_encoded_again(started: Started) -> None:
    (right,) = await expected(started, [chat("what?", RED)])
    async with connected("ec nixl") as (server, cluster):
        assert (await ask(server, chat("what?", RED)))[0] == 200
        await cluster["encode"][0].restart()
        status, document = await ask(server, chat("what?", RED))
        assert (status, document["choices"]) == (200, right)
        assert not any(engine.died for engine in cluster.all())
        await settled(server)


async def test_a_pushed_embedding_is_for_the_worker_that_was_named() -> None:
    async with connected("ec mooncake") as (server, cluster):
        for _ in range(6):
            assert (await ask(server, chat("what?", RED)))[0] == 200
        for engine in cluster["prefill_decode"]:
            for request in engine.requests:
                (entry,) = request["body"]["ec_transfer_params"]["ec_items"]
                named = [
                    encode["body"]["ec_transfer_params"]["consumer_zmq"]
                    for encode in cluster["encode"][0].requests
                    if encode["body"]["ec_transfer_params"]["ec_items"][0]["transfer_id"] == entry["transfer_id"]
                ]
                assert named == [f"tcp://127.0.0.1:{engine.port}"]


async def test_a_consumer_of_pushes_never_encodes_by_itself() -> None:
    async with connected("ec mooncake") as (server, cluster):
        cluster["encode"][0].fault("500")
        status, document = await ask(server, chat("what?", RED))
        assert (status, document["error"]["code"]) == (502, "encode_failed")
        assert (await ask(server, chat("hello")))[0] == 200
        await settled(server)


@pytest.mark.parametrize("body", [chat("hello"), chat("what?", RED)], ids=["text", "picture"])
async def test_a_client_that_leaves_between_prefill_and_decode_strands_no_blocks(body: dict[str, Any]) -> None:
    """Prefill would keep them for its whole lease; a one-token decode takes them over."""
    async with connected("nixl") as (server, cluster):
        prefill, decode = cluster["prefill"][0], cluster["decode"][0]
        decode.config.kv_transfer_ms = 500
        asking = asyncio.create_task(ask(server, body))
        async with asyncio.timeout(10):
            while not decode.requests:
                await asyncio.sleep(0.005)
            assert prefill.pinned_blocks > 0
            asking.cancel()
            while prefill.pinned_blocks:
                await asyncio.sleep(0.01)
        await settled(server)
        first, release = decode.requests
        assert release["body"]["kv_transfer_params"] == first["body"]["kv_transfer_params"]
        assert release["body"]["messages"] == first["body"]["messages"]
        assert (release["body"]["max_tokens"], release["body"]["stream"]) == (1, False)
        assert request_id(release) == f"{request_id(first)}:release"
        assert decode.died == 0
        left = {"code": "client_disconnected"}
        assert server.metrics.registry.get_sample_value("epd_router_errors_total", left) == 1
