"""Several models side by side, each with pools of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest
from epd_router.mock import Cluster, EngineConfig
from epd_router.server import Server

from tests.conftest import ask, chat, data_url, picture, running, settled
from tests.waiting import until

RED = data_url(picture("red"))
ROLES = ("encode", "prefill", "decode")


@contextlib.asynccontextmanager
async def two_models() -> AsyncIterator[tuple[Server, dict[str, Cluster]]]:
    """`big` and `small`, E+P+D each."""
    async with contextlib.AsyncExitStack() as stack:
        clusters = {
            name: await stack.enter_async_context(Cluster(config=EngineConfig(models=(name,)), encode=1, prefill=1, decode=1))
            for name in ("big", "small")
        }
        given = {role: ",".join(cluster.urls(role) for cluster in clusters.values()) for role in ROLES}
        async with running({"retries": 0, **given}) as server:
            await until(lambda: all(worker.healthy for worker in server.fleet))
            yield server, clusters


async def test_every_stage_is_one_of_the_model() -> None:
    async with two_models() as (server, clusters):
        for name, cluster in clusters.items():
            other = next(one for key, one in clusters.items() if key != name)
            before = [len(engine.requests) for engine in other.all()]
            for _ in range(5):
                status, document = await ask(server, {**chat("what?", RED), "model": name})
                assert (status, document["model"]) == (200, name)
            assert all(engine.requests for engine in cluster.all())
            assert [len(engine.requests) for engine in other.all()] == before
        assert sum(len(cluster["encode"][0].requests) for cluster in clusters.values()) == 2  # one embedding is not the other's
        await settled(server)


async def test_models_are_merged() -> None:
    async with two_models() as (server, _):
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as api:
            assert sorted([model.id async for model in api.models.list()]) == ["big", "small"]
            assert (await api.models.retrieve("big")).id == "big"
            with pytest.raises(openai.NotFoundError):
                await api.models.retrieve("other")


@pytest.mark.parametrize("model", ["other", "Big", "", "big "])
async def test_an_unknown_model_is_not_found(model: str) -> None:
    async with two_models() as (server, _):
        status, document = await ask(server, {**chat("x"), "model": model})
        assert (status, document["error"]["code"], document["error"]["param"]) == (404, "model_not_found", "model")
        assert "big, small" in document["error"]["message"]


async def test_a_request_must_say_which_of_several() -> None:
    async with two_models() as (server, _):
        body = chat("x")
        del body["model"]
        status, document = await ask(server, body)
        assert (status, document["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_model_without_a_stage_says_which(role: str) -> None:
    async with two_models() as (server, clusters):
        engine = clusters["big"][role][0]
        await engine.stop()
        while server.fleet.get(engine.url.removeprefix("http://")).healthy:
            await asyncio.sleep(0.01)
        status, document = await ask(server, {**chat("x"), "model": "big"})
        assert (status, document["error"]["code"]) == (503, f"no_{role}_worker")
        assert (await ask(server, {**chat("x"), "model": "small"}))[0] == 200


async def test_adapters_of_a_worker_are_models_too() -> None:
    async with Cluster(config=EngineConfig(models=("base", "adapter")), aggregated=1) as cluster:
        async with running({"worker_urls": cluster.urls("aggregated")}) as server:
            for name in ("base", "adapter"):
                assert (await ask(server, {**chat("x"), "model": name}))[0] == 200
            unnamed = chat("x")
            del unnamed["model"]
            assert (await ask(server, unnamed))[0] == 200


@contextlib.asynccontextmanager
async def side_by_side(big: dict[str, int], small: dict[str, int]) -> AsyncIterator[tuple[Server, Cluster, Cluster]]:
    """Two models whose workers have different roles."""
    async with (
        Cluster(config=EngineConfig(models=("big",)), **big) as one,
        Cluster(config=EngineConfig(models=("small",)), **small) as other,
    ):
        names = {role: "worker_urls" if role == "aggregated" else role for role in (*big, *small)}
        given = {name: ",".join(filter(None, (one.urls(role), other.urls(role)))) for role, name in names.items()}
        async with running({"retries": 0, **given}) as server:
            await until(lambda: all(worker.healthy for worker in server.fleet))
            yield server, one, other


@pytest.mark.parametrize("small", [{"aggregated": 1}, {"prefill_decode": 1}, {"prefill": 1, "decode": 1}])
async def test_each_model_has_the_topology_of_its_own_workers(small: dict[str, int]) -> None:
    async with side_by_side({"encode": 1, "prefill": 1, "decode": 1}, small) as (server, _, other):
        for content in ((), (RED,)):
            for name in ("big", "small"):
                async with aiohttp.ClientSession() as http:
                    url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
                    async with http.post(url, json={**chat("x", *content), "model": name}) as answer:
                        assert answer.status == 200, await answer.text()
                        assert "x-epd-router-degraded" not in answer.headers
        assert all(engine.requests for engine in other.all())


async def test_aggregated_workers_step_in_for_a_pair_that_is_gone() -> None:
    async with Cluster(aggregated=1, prefill=1, decode=1) as cluster:
        given = {role: cluster.urls(role) for role in ("prefill", "decode")}
        async with running({"worker_urls": cluster.urls("aggregated"), **given}) as server:
            await until(lambda: all(worker.healthy for worker in server.fleet))
            await cluster["prefill"][0].stop()
            await cluster["decode"][0].stop()
            await until(lambda: len(server.fleet.missing_roles()) == 2)
            assert (await ask(server, chat("x")))[0] == 200
