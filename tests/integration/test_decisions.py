"""What the answer says about its way: decision headers and `x-epd-router-degraded`, also after a second try."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from epd_router import options
from epd_router.mock import Cluster
from epd_router.server import Server

from tests.conftest import Started, chat, data_url, picture, settled
from tests.waiting import until

RED, BLUE = data_url(picture("red")), data_url(picture("blue"))
PREFIX = "x-epd-router-"


async def ask(server: Server, *urls: str, explain: str | None = "1", **more: Any) -> tuple[int, dict[str, str]]:
    """Status and the headers of the router, without their prefix."""
    headers = {} if explain is None else {"x-epd-router-explain": explain}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=chat("x", *urls, **more)) as answer:
            await answer.read()
            return answer.status, {
                name.lower().removeprefix(PREFIX): value
                for name, value in answer.headers.items()
                if name.lower().startswith(PREFIX)
            }


def names(cluster: Cluster, role: str) -> set[str]:
    return {engine.url.removeprefix("http://") for engine in cluster[role]}


def degraded(server: Server, reason: str) -> float:
    value = server.metrics.registry.get_sample_value("epd_router_degraded_requests_total", {"reason": reason})
    return value or 0.0


async def test_the_decision_is_told_only_on_request(started: Started) -> None:
    async with started(encode=1, prefill=1, decode=1) as (server, _):
        assert await ask(server, RED, explain=None) == (200, {})


@pytest.mark.parametrize("stream", [False, True])
async def test_the_decision_is_told_in_full(started: Started, stream: bool) -> None:
    async with started(encode=2, prefill=1, decode=1) as (server, cluster):
        status, told = await ask(server, RED, BLUE, RED, stream=stream)
        assert status == 200
        assert told.keys() == {"decision", "encode", "prefill", "decode", "items", "timing", "attempts"}
        assert (told["decision"], told["items"], told["attempts"]) == ("encode-prefill-decode", "3;reused=0;decoded=0", "1")
        assert set(told["encode"].split(",")) == names(cluster, "encode")
        assert {told["prefill"]} == names(cluster, "prefill")
        assert {told["decode"]} == names(cluster, "decode")
        status, told = await ask(server, RED, BLUE, stream=stream)
        assert (told["items"], told["encode"]) == ("2;reused=2;decoded=0", "")


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_second_try_names_the_workers_that_answered(started: Started, role: str) -> None:
    async with started(encode=1, prefill=2, decode=2) as (server, cluster):
        for engine in cluster[role]:
            engine.fault("503", 1)
        status, told = await ask(server, RED)
        assert (status, told["attempts"]) == (200, "3")
        assert "degraded" not in told  # a busy worker is a routing signal
        assert told[role] in names(cluster, role)
        assert (told["items"], told["encode"]) == ("1;reused=1;decoded=0", "")  # what was encoded in the first try
        await settled(server)


async def test_a_lost_reference_is_told_by_the_try_that_answered(started: Started) -> None:
    async with started(encode=1, prefill=2, decode=1) as (server, cluster):
        assert (await ask(server, RED))[0] == 200
        cluster.shared.embeddings.clear()
        status, told = await ask(server, RED)
        assert (status, told["degraded"], told["attempts"]) == (200, "reference_failed", "2")
        assert degraded(server, "reference_failed") == 1
        await until(lambda: sum(worker.healthy for worker in server.fleet) == 3)  # the reader has died of it
        assert "degraded" not in (await ask(server, BLUE))[1]


async def test_an_encoder_that_is_back_in_the_second_try_does_not_degrade_it(started: Started) -> None:
    """The first try went on without an embedding and failed further on; the answer came from a try that had it."""
    async with started(encode=1, prefill=2, decode=1) as (server, cluster):
        cluster["encode"][0].fault("500", 2)
        for engine in cluster["prefill"]:
            engine.fault("503", 1)
        status, told = await ask(server, RED)
        assert (status, told["attempts"]) == (200, "3")
        assert "degraded" not in told
        assert degraded(server, "encode_failed") == 0
        assert {told["encode"]} <= {*names(cluster, "encode"), ""}


async def test_a_degraded_answer_counts_once_however_many_tries_it_took(started: Started) -> None:
    async with started(encode=1, prefill=1, decode=2) as (server, cluster):
        cluster["encode"][0].fault("500")
        for engine in cluster["decode"]:
            engine.fault("503", 1)
        status, told = await ask(server, RED)
        assert (status, told["degraded"], told["attempts"]) == (200, "encode_failed", "3")
        assert degraded(server, "encode_failed") == 1


async def test_a_try_at_fewer_stages_does_not_name_those_of_the_first() -> None:
    """Aggregated workers step in for a pair whose decode is gone."""
    async with Cluster(aggregated=1, prefill=1, decode=1) as cluster:
        given = {role: cluster.urls(role) for role in ("prefill", "decode")}
        settings = {"host": "127.0.0.1", "port": "0", "health_check_interval_secs": "60", **given}
        server = Server(options.load({**settings, "worker_urls": cluster.urls("aggregated")}, {}))
        await server.start()
        try:
            await until(lambda: all(worker.healthy for worker in server.fleet))
            await cluster["decode"][0].stop()
            status, told = await ask(server)
            assert (status, told["decision"], told["attempts"]) == (200, "whole", "2")
            assert {told["decode"]} == names(cluster, "aggregated")
            assert told["prefill"] == ""
        finally:
            await server.stop()


async def test_an_error_names_its_code_and_no_decision(started: Started) -> None:
    async with started(aggregated=1) as (server, _):
        status, told = await ask(server, "http://127.0.0.1/a")
        assert (status, told) == (400, {"error-code": "media_not_allowed"})
