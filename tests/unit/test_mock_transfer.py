"""How mock engines hand KV blocks and embeddings on, and what they do to whoever gets it wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from epd_router.mock import Cluster, Engine, EngineConfig

from tests.conftest import chat, data_url, picture

RED, BLUE, WIDE = data_url(picture("red")), data_url(picture("blue")), data_url(picture("red", size=(640, 480)))
PULL = {"do_remote_decode": True, "do_remote_prefill": False}
Answer = tuple[int, dict[str, Any]]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(http: aiohttp.ClientSession, engine: Engine, body: dict[str, Any], request_id: str = "") -> Answer:
    headers = {"x-request-id": request_id} if request_id else {}
    async with http.post(engine.url + "/v1/chat/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.json()


def raw(url: str, uuid: str = "u" * 8, text: str = "what?", **more: Any) -> dict[str, Any]:
    body = chat(text, url, **more)
    body["messages"][0]["content"][0]["uuid"] = uuid
    return body


def reference(uuid: str = "u" * 8, grid: tuple[int, ...] = (1, 4, 4), text: str = "what?", **more: Any) -> dict[str, Any]:
    body = chat(text, **more)
    part = {"type": "image_embeds", "image_embeds": {"image_grid_thw": list(grid)}, "uuid": uuid}
    body["messages"][0]["content"].insert(0, part)
    return body


def content(answer: Answer) -> str:
    assert answer[0] == 200, answer
    return str(answer[1]["choices"][0]["message"]["content"])


async def whole(http: aiohttp.ClientSession, body: dict[str, Any]) -> str:
    """The answer of one worker that does everything."""
    async with Cluster(aggregated=1) as cluster:
        return content(await ask(http, cluster["aggregated"][0], body))


# --- NIXL, pulled by decode ---


async def test_pull_gives_the_aggregated_answer(http: aiohttp.ClientSession) -> None:
    expected = await whole(http, raw(RED))
    async with Cluster(encode=1, prefill=1, decode=1) as cluster:
        encode, prefill, decode = (cluster[role][0] for role in ("encode", "prefill", "decode"))
        await ask(http, encode, raw(RED))
        _, first = await ask(http, prefill, reference(max_tokens=1, kv_transfer_params=PULL))
        handles = first["kv_transfer_params"]
        assert prefill.pinned_blocks == len(handles["remote_block_ids"][0]) > 0
        assert content(await ask(http, decode, reference(kv_transfer_params=handles))) == expected
        assert prefill.pinned_blocks == 0
        status, _ = await ask(http, decode, reference(kv_transfer_params=handles))
        assert (status, decode.died) == (500, 0)  # handles are good for one use


@pytest.mark.parametrize("stream", [False, True])
async def test_handles_of_a_restarted_prefill_are_worth_nothing(http: aiohttp.ClientSession, stream: bool) -> None:
    async with Cluster(prefill=2, decode=1) as cluster:
        lost, kept = cluster["prefill"]
        handles = [(await ask(http, engine, raw(RED, kv_transfer_params=PULL)))[1]["kv_transfer_params"] for engine in (lost, kept)]
        await lost.restart()
        decode = cluster["decode"][0]
        body = raw(RED, kv_transfer_params=handles[0], stream=stream)
        async with http.post(decode.url + "/v1/chat/completions", json=body) as answer:
            text = await answer.text()
            assert answer.status == (200 if stream else 500)  # a stream's status is out before the engine fails
            assert '"code":500' in text
        assert content(await ask(http, decode, raw(RED, kv_transfer_params=handles[1])))
        assert decode.died == 0


async def test_leases_end(http: aiohttp.ClientSession) -> None:
    async with Cluster(config=EngineConfig(kv_lease_s=0.05), prefill=1, decode=1) as cluster:
        prefill, decode = cluster["prefill"][0], cluster["decode"][0]
        _, first = await ask(http, prefill, raw(RED, kv_transfer_params=PULL))
        while prefill.pinned_blocks:
            await asyncio.sleep(0.01)
        assert (await ask(http, decode, raw(RED, kv_transfer_params=first["kv_transfer_params"])))[0] == 500


async def test_missing_handles_mean_that_decode_prefills(http: aiohttp.ClientSession) -> None:
    expected = await whole(http, raw(RED))
    async with Cluster(prefill=1, decode=1) as cluster:
        _, first = await ask(http, cluster["prefill"][0], raw(RED, kv_transfer_params=PULL))
        handles = {**first["kv_transfer_params"], "remote_block_ids": None}
        decode = cluster["decode"][0]
        assert content(await ask(http, decode, raw(RED, kv_transfer_params=handles))) == expected
        assert (await ask(http, decode, reference(kv_transfer_params=handles)))[0] == 500
        assert "no embedding" in decode.died_of


async def test_blocks_of_another_prompt(http: aiohttp.ClientSession) -> None:
    async with Cluster(prefill=1, decode=1) as cluster:
        prefill, decode = cluster["prefill"][0], cluster["decode"][0]
        _, first = await ask(http, prefill, raw(BLUE, "b" * 8, kv_transfer_params=PULL))
        got = content(await ask(http, decode, raw(RED, kv_transfer_params=first["kv_transfer_params"])))
        assert got == await whole(http, raw(BLUE, "b" * 8))  # the wrong answer, and nobody says so
        _, first = await ask(http, prefill, raw(RED, kv_transfer_params=PULL))
        long = raw(
            RED, text="a much longer question than that, which needs more blocks", kv_transfer_params=first["kv_transfer_params"]
        )
        assert (await ask(http, decode, long))[0] == 500
        assert "blocks" in decode.died_of


@pytest.mark.parametrize("number", [0, 1])
async def test_prompt_logprobs_with_references_kill_decode(http: aiohttp.ClientSession, number: int) -> None:
    async with Cluster(encode=1, prefill=1, decode=1) as cluster:
        await ask(http, cluster["encode"][0], raw(RED))
        _, first = await ask(http, cluster["prefill"][0], reference(kv_transfer_params=PULL))
        body = reference(kv_transfer_params=first["kv_transfer_params"], prompt_logprobs=number)
        await ask(http, cluster["decode"][0], body)
        assert cluster["decode"][0].died == 1


async def test_a_refused_decode_frees_the_blocks(http: aiohttp.ClientSession) -> None:
    async with Cluster(config=EngineConfig(kv_transfer_ms=5000), prefill=1, decode=1) as cluster:
        prefill, decode = cluster["prefill"][0], cluster["decode"][0]
        legs: list[tuple[str, dict[str, Any]]] = [("a", {"min_tokens": 99}), ("b", {})]
        for uuid, more in legs:
            _, first = await ask(http, prefill, raw(RED, uuid, kv_transfer_params=PULL))
            assert prefill.pinned_blocks
            leg = asyncio.create_task(ask(http, decode, raw(RED, uuid, kv_transfer_params=first["kv_transfer_params"], **more)))
            if more:
                assert (await leg)[0] == 400
            else:
                while not decode.active:
                    await asyncio.sleep(0.01)
                leg.cancel()
            while prefill.pinned_blocks:
                await asyncio.sleep(0.01)


# --- NIXL, pushed by prefill ---


@pytest.mark.parametrize("early", ["prefill", "decode"])
async def test_push_meets_by_request_id(http: aiohttp.ClientSession, early: str) -> None:
    config = EngineConfig(kv_connector="nixl-push", prefill_ms=30 if early == "decode" else 0)
    expected = await whole(http, raw(RED))
    async with Cluster(config=config, prefill=1, decode=1) as cluster:
        prefill, decode = cluster["prefill"][0], cluster["decode"][0]
        params = {"do_remote_prefill": True, "remote_engine_id": prefill.engine_id, "remote_host": "127.0.0.1",
                  "remote_port": prefill.port, "remote_request_id": "chatcmpl-same"}  # fmt: skip
        legs = [ask(http, prefill, raw(RED, max_tokens=1, kv_transfer_params=PULL), "same")]
        legs.append(ask(http, decode, raw(RED, kv_transfer_params=params), "same"))
        first, second = await asyncio.gather(*legs)
        assert first[1]["kv_transfer_params"] is None
        assert content(second) == expected


async def test_push_with_another_request_id_is_never_found(http: aiohttp.ClientSession) -> None:
    async with Cluster(config=EngineConfig(kv_connector="nixl-push", kv_wait_s=0.1), prefill=1, decode=1) as cluster:
        prefill, decode = cluster["prefill"][0], cluster["decode"][0]
        params = {"do_remote_prefill": True, "remote_engine_id": prefill.engine_id, "remote_host": "127.0.0.1",
                  "remote_port": prefill.port, "remote_request_id": "chatcmpl-one"}  # fmt: skip
        await ask(http, prefill, raw(RED, kv_transfer_params=PULL), "one")
        assert (await ask(http, decode, raw(RED, kv_transfer_params=params), "other"))[0] == 500
        params["remote_engine_id"] = "of another start"
        assert (await ask(http, decode, raw(RED, kv_transfer_params=params), "one"))[0] == 500


# --- Mooncake ---


@pytest.mark.parametrize("more", [{"ignore_eos": True}, {"min_tokens": 1}, {}])
async def test_mooncake_loses_a_prefill_that_stops(http: aiohttp.ClientSession, more: dict[str, Any]) -> None:
    config = EngineConfig(kv_connector="mooncake", stop_after=1, kv_wait_s=0.2)
    async with Cluster(config=config, prefill=1, decode=1) as cluster:
        prefill, decode = cluster["prefill"][0], cluster["decode"][0]
        address = f"http://127.0.0.1:{prefill.bootstrap}"
        async with http.get(address + "/query") as answer:
            engine_id = (await answer.json())["0"]["engine_id"]
        sent = {**PULL, "transfer_id": "t1"}
        wanted = {"do_remote_prefill": True, "remote_bootstrap_addr": address, "remote_engine_id": engine_id, "transfer_id": "t1"}
        first, second = await asyncio.gather(
            ask(http, prefill, raw(RED, max_tokens=1, kv_transfer_params=sent, **more)),
            ask(http, decode, raw(RED, kv_transfer_params=wanted)),
        )
        assert first[1]["choices"][0]["finish_reason"] == ("length" if more else "stop")
        assert second[0] == (200 if more else 500)
        assert prefill.pinned_blocks == 0


async def test_only_mooncake_prefill_has_a_bootstrap_server(http: aiohttp.ClientSession) -> None:
    async with Cluster(prefill=1) as cluster:
        async with http.get(cluster["prefill"][0].url + "/query") as answer:
            assert answer.status == 404


# --- a shared store for KV ---


async def test_store_finds_kv_by_prompt_and_media(http: aiohttp.ClientSession) -> None:
    expected = await whole(http, raw(RED))
    async with Cluster(config=EngineConfig(kv_connector="store"), encode=1, prefill=1, decode=1) as cluster:
        encode, prefill, decode = (cluster[role][0] for role in ("encode", "prefill", "decode"))
        await ask(http, encode, raw(RED))
        _, first = await ask(http, prefill, reference(max_tokens=1))
        assert first["kv_transfer_params"] is None
        assert content(await ask(http, decode, reference())) == expected
        await ask(http, decode, reference(text="something that prefill never saw, and long enough to be in a block"))
        assert decode.died == 1


# --- embeddings ---


async def test_a_shared_store_takes_references_only_when_they_are_written(http: aiohttp.ClientSession) -> None:
    expected = await whole(http, raw(RED))
    async with Cluster(config=EngineConfig(ec_write_ms=100), encode=2, prefill_decode=3) as cluster:
        worker, raced, blind = cluster["prefill_decode"]
        writing = asyncio.create_task(ask(http, cluster["encode"][0], raw(RED)))
        while "u" * 8 not in cluster.shared.embeddings:
            await asyncio.sleep(0.001)
        status, _ = await ask(http, cluster["encode"][1], raw(RED))  # the file exists, so this one thinks it is done
        assert status == 200
        assert (await ask(http, raced, raw(RED)))[0] == 500
        assert "half-written" in raced.died_of
        await writing
        assert content(await ask(http, worker, reference())) == expected
        await ask(http, blind, reference("never encoded"))
        assert blind.died == 1


async def test_a_reference_with_another_grid_fails_alone(http: aiohttp.ClientSession) -> None:
    for version, died in (("0.32.0", 0), ("0.30.0", 1)):
        async with Cluster(config=EngineConfig(version=version), encode=1, prefill_decode=1) as cluster:
            await ask(http, cluster["encode"][0], raw(RED))
            worker = cluster["prefill_decode"][0]
            assert (await ask(http, worker, reference(grid=(1, 24, 32))))[0] == 500
            assert worker.died == died


async def test_a_uuid_with_a_separator_leaves_the_store(http: aiohttp.ClientSession) -> None:
    async with Cluster(encode=1) as cluster:
        await ask(http, cluster["encode"][0], raw(RED, "../../x"))
        assert "outside" in cluster["encode"][0].died_of


async def test_nixl_embeddings_die_with_their_encoder(http: aiohttp.ClientSession) -> None:
    expected = await whole(http, raw(RED))
    async with Cluster(config=EngineConfig(ec_connector="nixl"), encode=1, prefill_decode=1) as cluster:
        encode, worker = cluster["encode"][0], cluster["prefill_decode"][0]
        _, said = await ask(http, encode, raw(RED))
        params = said["ec_transfer_params"]
        entry = params["u" * 8]
        assert (entry["peer_port"], entry["shape"][0], entry["metadata"]) == (encode.port, 4, {"image_grid_thw": [1, 4, 4]})
        assert content(await ask(http, worker, reference(ec_transfer_params=params))) == expected
        assert (await ask(http, worker, reference()))[0] == 500  # without the handles nothing is found
        await encode.restart()
        assert (await ask(http, worker, reference(ec_transfer_params=params)))[0] == 500
        assert content(await ask(http, worker, raw(RED, ec_transfer_params=params))) == expected
        assert worker.died == 0


async def test_mooncake_embeddings_are_pushed_and_waited_for(http: aiohttp.ClientSession) -> None:
    expected = await whole(http, raw(RED))
    config = EngineConfig(ec_connector="mooncake", ec_wait_s=0.2, encode_ms=20)
    async with Cluster(config=config, encode=1, prefill_decode=1) as cluster:
        encode, worker = cluster["encode"][0], cluster["prefill_decode"][0]
        push = {"consumer_zmq": worker.consumer_zmq, "ec_items": [{"transfer_id": "t1"}]}
        wanted = {"ec_items": [{"mm_hash": "u" * 8, "transfer_id": "t1"}]}
        first, second = await asyncio.gather(
            ask(http, encode, raw(RED, ec_transfer_params=push)), ask(http, worker, reference(ec_transfer_params=wanted))
        )
        assert first[1]["ec_transfer_params"]["u" * 8]["transfer_id"] == "t1"
        assert content(second) == expected
        assert (await ask(http, worker, raw(RED, ec_transfer_params=wanted)))[0] == 500  # one use, and no fallback
        assert (await ask(http, encode, raw(RED)))[0] == 400


@pytest.mark.parametrize("role", ["aggregated", "decode"])
async def test_references_without_a_consumer(http: aiohttp.ClientSession, role: str) -> None:
    roles: dict[str, Any] = {role: 1, "encode": 1}
    async with Cluster(**roles) as cluster:
        await ask(http, cluster["encode"][0], raw(RED))
        status, said = await ask(http, cluster[role][0], reference())
        assert (status, cluster[role][0].died) == ((400, 0) if role == "aggregated" else (500, 1)), said


async def test_decode_as_a_consumer_needs_no_handles(http: aiohttp.ClientSession) -> None:
    async with Cluster(config=EngineConfig(ec_consumer=True), encode=1, decode=1) as cluster:
        await ask(http, cluster["encode"][0], raw(RED))
        assert content(await ask(http, cluster["decode"][0], reference())) == await whole(http, raw(RED))
