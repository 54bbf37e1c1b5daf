"""The failure table, row by row, on mock engines."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from epd_router.failures import SUSPECT_REFERENCE, TABLE, Action, Cause, Stage
from epd_router.mock import Cluster, EngineConfig
from epd_router.server import Server

from tests.conftest import Started, chat, data_url, picture, settled

RED = data_url(picture("red"))
TIMEOUTS = {f"{name}_timeout_secs": 2.0 for name in ("encode", "prefill", "first_byte")}
FAULT = {
    Cause.BROKEN: "reset",
    Cause.TIMEOUT: "hang",
    Cause.GATEWAY: "502",
    Cause.BUSY: "503",
    Cause.ERROR: "500",
    Cause.CLIENT: "422",
}
ROLE = {Stage.ENCODE: "encode", Stage.PREFILL: "prefill", Stage.DECODE: "decode", Stage.WHOLE: "aggregated"}


async def ask(server: Server, body: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]]:
    async with aiohttp.ClientSession() as http:
        async with http.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=body) as answer:
            return answer.status, await answer.json(), dict(answer.headers)


async def break_it(cluster: Cluster, stage: Stage, cause: Cause, engines: int) -> None:
    for engine in cluster[ROLE[stage]][:engines]:
        if cause is Cause.CONNECT:
            await engine.stop()
        else:
            engine.fault(FAULT[cause])


def roles(stage: Stage, count: int) -> dict[str, int]:
    return {"aggregated": count} if stage is Stage.WHOLE else {"encode": count, "prefill": count, "decode": count}


def test_the_table_is_complete() -> None:
    assert set(TABLE) == {(stage, cause) for stage in Stage for cause in Cause}


@pytest.mark.parametrize(("stage", "cause"), list(TABLE))
async def test_with_nobody_else_the_request_fails_clearly(started: Started, stage: Stage, cause: Cause) -> None:
    settings = {**TIMEOUTS, "encode_fallback": "fail", "health_check_interval_secs": 30}
    async with started(**roles(stage, 1), settings=settings) as (server, cluster):
        await break_it(cluster, stage, cause, 1)
        status, document, _ = await ask(server, chat("x", RED))
        rule = TABLE[stage, cause]
        code = document["error"]["code"]
        if not rule.code:
            assert (status, code) == (int(FAULT[cause]), int(FAULT[cause]))  # as the worker said it
        elif cause is Cause.CONNECT and rule.action in {Action.OTHER, Action.ENCODER}:
            assert (status, code) == (503, f"no_{stage.value}_worker" if stage is not Stage.WHOLE else "no_worker")
        else:
            assert (code, status) == (rule.code, 504 if rule.code == "stage_timeout" else 502)
        await settled(server)


@pytest.mark.parametrize(("stage", "cause"), [row for row, rule in TABLE.items() if rule.action in {Action.OTHER, Action.ENCODER}])
async def test_another_worker_takes_over(started: Started, stage: Stage, cause: Cause) -> None:
    async with started(**roles(stage, 1)) as (server, _):
        _, right, _ = await ask(server, chat("x", RED))
    async with started(**roles(stage, 2), settings={**TIMEOUTS, "health_check_interval_secs": 30}) as (server, cluster):
        await break_it(cluster, stage, cause, 1)
        for _ in range(4):
            status, document, headers = await ask(server, chat("x", RED))
            assert (status, document["choices"]) == (200, right["choices"])
            suspect = stage in {Stage.PREFILL, Stage.DECODE} and cause in SUSPECT_REFERENCE
            assert headers.get("x-epd-router-degraded") in ({None, "reference_failed"} if suspect else {None})
        await settled(server)


@pytest.mark.parametrize("cause", [Cause.CONNECT, Cause.BROKEN, Cause.TIMEOUT, Cause.ERROR])
async def test_without_encoders_prefill_encodes_and_says_so(started: Started, cause: Cause) -> None:
    async with started(aggregated=1) as (server, _):
        _, right, _ = await ask(server, chat("x", RED))
    async with started(encode=1, prefill=1, decode=1, settings=TIMEOUTS) as (server, cluster):
        await break_it(cluster, Stage.ENCODE, cause, 1)
        status, document, headers = await ask(server, chat("x", RED))
        assert (status, document["choices"]) == (200, right["choices"])
        assert headers["x-epd-router-degraded"] in {"encode_failed", "no_encode_worker"}
        assert server.metrics.registry.get_sample_value(
            "epd_router_degraded_requests_total", {"reason": headers["x-epd-router-degraded"]}
        )


@pytest.mark.parametrize("roles_", [{"encode": 1, "prefill": 2, "decode": 1}, {"encode": 1, "prefill_decode": 2}])
async def test_a_lost_embedding_store_costs_one_engine_not_the_request(started: Started, roles_: dict[str, int]) -> None:
    """The store is wiped behind our back: the reference kills its reader, the retry sends the picture itself."""
    async with started(**roles_) as (server, cluster):
        _, right, _ = await ask(server, chat("x", RED))
        cluster.shared.embeddings.clear()
        status, document, headers = await ask(server, chat("x", RED))
        assert (status, document["choices"]) == (200, right["choices"])
        assert headers["x-epd-router-degraded"] == "reference_failed"
        assert sum(engine.died for engine in cluster.all()) == 1


@pytest.mark.parametrize("roles_", [{"aggregated": 1}, {"prefill": 1, "decode": 1}])
async def test_a_stream_that_breaks_ends_with_one_error_event(started: Started, roles_: dict[str, int]) -> None:
    async with started(**roles_) as (server, cluster), aiohttp.ClientSession() as http:
        cluster[list(roles_)[-1]][0].fault("die_mid_stream")
        async with http.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=chat("x", stream=True)) as answer:
            assert answer.status == 200
            events = [line for line in (await answer.text()).splitlines() if line]
        assert ('"decode_failed"' if "decode" in roles_ else '"worker_failed"') in events[-1]
        assert sum('"error"' in event for event in events) == 1
        await settled(server)


async def test_an_error_as_first_event_is_retried(started: Started) -> None:
    async with started(prefill=1, decode=2) as (server, cluster), aiohttp.ClientSession() as http:
        for engine in cluster["decode"]:
            engine.fault("error_event", 1)
        body = chat("x", stream=True)
        async with http.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=body) as answer:
            assert (answer.status, (await answer.text()).endswith("data: [DONE]\n\n")) == (200, True)
        for engine in cluster["decode"]:
            engine.fault("error_event")
        async with http.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=body) as answer:
            assert (answer.status, (await answer.json())["error"]["message"]) == (500, "injected")


async def test_soak_leaves_no_counter_behind(started: Started) -> None:
    """Random cancels, faults and timeouts; every counter ends at zero."""
    import random

    dice = random.Random(7)
    settings = {**TIMEOUTS, "retries": 1}
    async with started(encode=2, prefill=2, decode=2, settings=settings) as (server, cluster):
        for engine in cluster.all():
            for _ in range(20):
                engine.fault(dice.choice(["500", "503", "reset", "die_mid_stream"]), 1)
        urls = [data_url(picture(color)) for color in ("red", "blue", "green", "white")]

        async def one(http: aiohttp.ClientSession) -> None:
            body = chat("x", *dice.sample(urls, dice.randrange(3)), stream=dice.random() < 0.5)
            try:
                async with asyncio.timeout(dice.choice([0.005, 0.05, 5])):
                    async with http.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=body) as answer:
                        await answer.read()
            except (TimeoutError, aiohttp.ClientError):
                pass

        async with aiohttp.ClientSession() as http:
            for _ in range(20):
                await asyncio.gather(*(one(http) for _ in range(30)))
        await settled(server)


@pytest.mark.parametrize("roles_", [{"aggregated": 1}, {"prefill": 1, "decode": 1}])
async def test_one_500_on_a_picture_is_tried_again(started: Started, roles_: dict[str, int]) -> None:
    """vLLM's media cache is out of step for one request after a refused one."""
    async with started(**roles_) as (server, cluster):
        cluster[next(iter(roles_))][0].fault("500", 1)
        assert (await ask(server, chat("x", RED)))[0] == 200
        cluster[next(iter(roles_))][0].fault("500", 1)
        assert (await ask(server, chat("text only")))[0] in {500, 502}


async def test_only_so_many_requests_at_a_time_encode_at_prefill(started: Started) -> None:
    """The budget counts requests, whatever their number of pictures, and is given back."""
    settings = {"encode_fallback_budget": 1, "health_check_interval_secs": 30}
    slow = EngineConfig(prefill_ms=300)
    async with started(slow, encode=1, prefill=1, decode=1, settings=settings) as (server, cluster):
        cluster["encode"][0].fault("500")
        two = [chat("x", RED, data_url(picture("blue"))), chat("y", data_url(picture("green")))]
        answers = await asyncio.gather(*(ask(server, body) for body in two))
        assert sorted(status for status, _, _ in answers) == [200, 502]
        refused = next(document for status, document, _ in answers if status == 502)
        assert refused["error"]["code"] == "encode_failed"
        assert (await ask(server, two[1]))[0] == 200
        await settled(server)


async def test_a_single_encoder_is_asked_again_after_a_500(started: Started) -> None:
    async with started(encode=1, prefill=1, decode=1, settings={"encode_fallback": "fail"}) as (server, cluster):
        cluster["encode"][0].fault("500", 1)
        status, _, headers = await ask(server, chat("x", RED))
        assert (status, "x-epd-router-degraded" in headers) == (200, False)
        names = [request["body"]["messages"][0]["content"][0]["uuid"] for request in cluster["encode"][0].requests]
        assert len(set(names)) == 2  # the first may have left half an embedding
