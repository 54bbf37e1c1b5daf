"""KV events of mock engines: what is published, replayed and counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio
from epd_router.mock import Cluster, Engine, EngineConfig

from tests.conftest import chat, data_url, picture
from tests.unit.test_mock_transfer import ask, http, raw

__all__ = ["http"]
RED = data_url(picture("red", size=(224, 168)))
CONFIG = EngineConfig(kv_events_endpoint="tcp://*:0", kv_events_replay_endpoint="tcp://*:0", block_size=8)


class Index:
    """A subscriber that follows the rules: chains by hash, removals, clears."""

    def __init__(self) -> None:
        self.known: dict[int, int | None] = {}
        self.tokens: dict[int, list[int]] = {}

    def apply(self, event: dict[str, Any]) -> None:
        if event["type"] == "AllBlocksCleared":
            self.known.clear()
        elif event["type"] == "BlockRemoved":
            for number in event["block_hashes"]:
                del self.known[number]
        else:
            size, parent = event["block_size"], event["parent_block_hash"]
            assert parent is None or parent in self.known
            assert len(event["token_ids"]) == size * len(event["block_hashes"])
            for index, number in enumerate(event["block_hashes"]):
                self.known[number], parent = parent, number
                self.tokens[number] = event["token_ids"][index * size : (index + 1) * size]


@contextlib.asynccontextmanager
async def subscribed(http: aiohttp.ClientSession, engine: Engine) -> AsyncIterator[tuple[zmq.asyncio.Socket, zmq.asyncio.Socket]]:
    """A subscriber that is known to be connected, and a dealer for replays."""
    async with http.get(engine.url + "/kv_event_sources") as answer:
        source = (await answer.json())["0"]
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as sub, context.socket(zmq.DEALER) as dealer:
        sub.linger = dealer.linger = 0
        sub.subscribe(source["topic"].encode())
        sub.connect(source["endpoint"].replace("*", "127.0.0.1"))
        dealer.connect(source["replay_endpoint"].replace("*", "127.0.0.1"))
        while not await sub.poll(20):
            engine.memory.blocks.clear()
        while await sub.poll(20):
            await sub.recv_multipart()
        yield sub, dealer


async def replayed(dealer: zmq.asyncio.Socket, start: int) -> list[list[bytes]]:
    await dealer.send_multipart([b"", start.to_bytes(8, "big")])
    found = []
    while (frames := await dealer.recv_multipart())[2] != (-1).to_bytes(8, "big", signed=True):
        found.append(frames)
    return found


async def test_events_tell_what_is_cached(http: aiohttp.ClientSession) -> None:
    async with Cluster(config=CONFIG, aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        async with subscribed(http, engine) as (sub, dealer):
            for body in (raw(RED), raw(RED), raw(RED, text="another question"), chat("hello"), chat("hello", cache_salt="s")):
                await ask(http, engine, body)
            index, frames = Index(), []
            while await sub.poll(50):
                frames.append(await sub.recv_multipart())
                for event in msgspec.msgpack.decode(frames[-1][2])[1]:
                    index.apply(event)
            assert len(index.known) == len(engine.memory.blocks)
            numbers = [int.from_bytes(number, "big") for _, number, _ in frames]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            again = await replayed(dealer, numbers[1])
            assert [frame[1:] for frame in again] == frames[1:]
            assert all(frame[0] == b"" for frame in again)
            salts = [extra for frame in frames for event in msgspec.msgpack.decode(frame[2])[1] for extra in event["extra_keys"]]
            assert ["s"] in salts


async def test_evicted_blocks_are_told_of(http: aiohttp.ClientSession) -> None:
    config = EngineConfig(kv_events_endpoint="tcp://*:0", kv_events_replay_endpoint="tcp://*:0", block_size=4, num_blocks=12)
    async with Cluster(config=config, aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        async with subscribed(http, engine) as (sub, _):
            for text in ("one", "another one", "a third"):
                await ask(http, engine, chat(text * 3, max_tokens=1))
            async with http.post(engine.url + "/reset_prefix_cache") as answer:
                assert answer.status == 200
            kinds = []
            while await sub.poll(50):
                kinds += [event["type"] for event in msgspec.msgpack.decode((await sub.recv_multipart())[2])[1]]
            assert set(kinds) == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
            assert len(engine.memory.blocks) == 0


async def test_a_full_report_announces_known_blocks_again(http: aiohttp.ClientSession) -> None:
    async with Cluster(config=CONFIG, aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        await ask(http, engine, raw(RED, max_tokens=1))
        async with subscribed(http, engine) as (sub, _):
            await ask(http, engine, raw(RED, max_tokens=1))
            await ask(http, engine, raw(RED, max_tokens=1, vllm_xargs={"kv_cache_report_mode": "full"}))
            listed = msgspec.msgpack.decode((await sub.recv_multipart())[2])[1]
            assert [event["parent_block_hash"] for event in listed] == [None]


@pytest.mark.parametrize(("minor", "tagged"), [(28, False), (30, False), (32, True)])
async def test_hashes_of_releases_differ(minor: int, tagged: bool) -> None:
    async with Cluster(config=EngineConfig(version=f"0.{minor}.0"), aggregated=2) as cluster:
        one, other = (engine.memory.blocks.chain(range(64), []) for engine in cluster["aggregated"])
        assert (one == other) == (minor >= 29)  # before, every start has its own root


async def test_overlap_is_the_longest_known_chain(http: aiohttp.ClientSession) -> None:
    async with Cluster(config=CONFIG, aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        cached = []
        for body in (raw(RED), raw(RED), raw(RED, "v" * 8), raw(RED, text="what?!")):
            _, said = await ask(http, engine, body | {"max_tokens": 1, "return_token_ids": True})
            details = said["usage"]["prompt_tokens_details"]
            cached.append((said["usage"]["prompt_tokens"], details["cached_tokens"], details["created_cache_tokens"]))
        total = cached[0][0]
        assert cached[0] == (total, 0, total // 8 * 8)
        assert cached[1] == (total, total // 8 * 8, 0)
        assert cached[2][1] == 0  # another name is another picture
        assert 0 < cached[3][1] < total
        async with http.get(engine.url + "/metrics") as answer:
            text = await answer.text()
        hits = next(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:prefix_cache_hits_total{"))
        assert hits == sum(one[1] for one in cached)


async def test_nothing_is_left_of_sockets() -> None:
    for _ in range(3):
        async with Cluster(config=CONFIG, prefill=1, decode=1) as cluster:
            await cluster["prefill"][0].restart()
            assert cluster["prefill"][0].memory.events.endpoint.startswith("tcp://*:")
    await asyncio.sleep(0)
