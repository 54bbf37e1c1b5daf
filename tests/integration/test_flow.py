"""The main job through real HTTP clients: a picture request through encode, prefill and decode."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import openai
import pytest
from epd_router._core import scan
from epd_router.engines import vllm
from epd_router.mock import EngineConfig

from tests.conftest import Started, chat, data_url, picture, settled

RED, BLUE = data_url(picture("red")), data_url(picture("blue"))
TOPOLOGIES: list[dict[str, int]] = [
    {"aggregated": 1},
    {"prefill": 1, "decode": 1},
    {"encode": 1, "prefill_decode": 1},
    {"encode": 1, "prefill": 1, "decode": 1},
]


def client(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


async def ask(port: int, body: dict[str, Any]) -> tuple[str, dict[str, str]]:
    async with client(port) as api:
        answer = await api.chat.completions.with_raw_response.create(**body, extra_headers={"x-epd-router-explain": "1"})
        return answer.parse().choices[0].message.content or "", dict(answer.headers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("roles", TOPOLOGIES, ids=lambda roles: "+".join(roles))
async def test_every_topology_gives_the_aggregated_answer(started: Started, roles: dict[str, int], stream: bool) -> None:
    bodies = [chat("hello"), chat("what?", RED), chat("what?", BLUE), chat("both?", RED, BLUE), chat("same?", RED, RED)]
    expected = []
    async with started(aggregated=1) as (server, _):
        expected = [(await ask(server.port, body))[0] for body in bodies]
    assert len(set(expected)) == len(bodies)
    async with started(**roles) as (server, cluster), client(server.port) as api:
        for body, right in zip(bodies, expected, strict=True):
            if stream:
                events = await api.chat.completions.create(**body, stream=True)
                answer = "".join([event.choices[0].delta.content or "" async for event in events])
            else:
                answer = (await ask(server.port, body))[0]
            assert answer == right
        assert not any(engine.died for engine in cluster.all())
        if "encode" in roles:
            assert len(cluster["encode"][0].requests) == 2  # two distinct pictures, each encoded once
        await settled(server)


async def test_decision_names_the_workers(started: Started) -> None:
    async with started(encode=1, prefill=1, decode=1) as (server, cluster):
        _, headers = await ask(server.port, chat("what?", RED))
        assert headers["x-epd-router-decision"] == "encode-prefill-decode"
        for role in ("encode", "prefill", "decode"):
            assert headers[f"x-epd-router-{role}"] == cluster[role][0].url.removeprefix("http://")
        _, headers = await ask(server.port, chat("hello"))
        assert headers["x-epd-router-decision"] == "prefill-decode"
        assert headers["x-epd-router-encode"] == ""


async def test_concurrent_requests_for_one_picture_share_one_encode(started: Started) -> None:
    async with started(EngineConfig(encode_ms=50), encode=2, prefill=1, decode=1) as (server, cluster):
        answers = await asyncio.gather(*(ask(server.port, chat("what?", RED)) for _ in range(8)))
        assert len({answer for answer, _ in answers}) == 1
        assert sum(len(engine.requests) for engine in cluster["encode"]) == 1


async def test_legs_are_what_the_engines_expect(started: Started) -> None:
    body = chat(
        "what?",
        RED,
        stream=True,
        stream_options={"include_usage": True},
        min_tokens=2,
        logprobs=True,
        mm_processor_kwargs={"a": 1},
    )
    async with started(encode=1, prefill=1, decode=1) as (server, cluster), aiohttp.ClientSession() as http:
        async with http.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            await answer.read()
        encode, prefill, decode = (cluster[role][0].requests[-1]["body"] for role in ("encode", "prefill", "decode"))
        assert encode["mm_processor_kwargs"] == prefill["mm_processor_kwargs"] == decode["mm_processor_kwargs"] == {"a": 1}
        assert [part["type"] for part in encode["messages"][0]["content"]] == ["image_url"]
        assert not {"stream_options", "min_tokens", "logprobs"} & prefill.keys()
        assert (prefill["stream"], prefill["max_tokens"]) == (False, 1)
        assert prefill["messages"] == decode["messages"]
        part = prefill["messages"][0]["content"][0]
        assert (part["type"], part["image_embeds"]) == ("image_embeds", {"image_grid_thw": [1, 4, 4]})
        assert part["uuid"] == encode["messages"][0]["content"][0]["uuid"]
        # vLLM names the embedding by uuid and `mm_processor_kwargs` together; the router echoes that name.
        assert len(prefill["ec_transfer_params"]) == 1
        assert list(prefill["ec_transfer_params"]) != [part["uuid"]]
        assert decode["kv_transfer_params"]["do_remote_prefill"] is True
        assert decode["stream_options"] == {"include_usage": True}
        assert decode["min_tokens"] == 2


@pytest.mark.parametrize("version", ["0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"])
async def test_every_encoder_reply_shape(started: Started, version: str) -> None:
    async with started(EngineConfig(version=version), encode=1, prefill=1, decode=1) as (server, cluster):
        await ask(server.port, chat("both?", RED, BLUE))
        parts = cluster["prefill"][0].requests[-1]["body"]["messages"][0]["content"]
        minor = int(version.split(".")[1])
        assert parts[0]["type"] == ("image_url" if minor < 28 else "image_embeds")
        if 28 <= minor < 30:
            assert parts[0]["image_embeds"]["image_grid_thw"].startswith("k05VTVBZ")  # base64 of \x93NUMPY
        assert len(cluster["encode"][0].requests) == 2


async def test_the_body_reaches_an_aggregated_worker_unchanged(started: Started) -> None:
    raw = b'{ "model":"tiny", "x_unknown": 1.50e+2,\n "messages":[{"role":"user",'
    raw += b'"content":"h\\u00e9 \\ud83d\\ude00"}], "max_tokens": 2 }'
    async with started(aggregated=1) as (server, cluster), aiohttp.ClientSession() as http:
        async with http.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", data=raw) as answer:
            assert answer.status == 200
        assert cluster["aggregated"][0].requests[-1]["raw"] == raw


async def test_a_client_uuid_never_reaches_an_engine(started: Started) -> None:
    body = chat("what?", RED)
    body["messages"][0]["content"][0]["uuid"] = "../../evil"
    for roles in TOPOLOGIES:
        async with started(**roles) as (server, cluster):
            await ask(server.port, body)
            seen = b"".join(request["raw"] for engine in cluster.all() for request in engine.requests)
            assert b"evil" not in seen
            assert seen


async def test_requests_that_cannot_be_split_go_whole(started: Started) -> None:
    async with started(encode=1, prefill=1, decode=1) as (server, cluster):
        _, headers = await ask(server.port, chat("what?", RED, n=2))
        assert headers["x-epd-router-decision"] == "whole"
        assert not cluster["encode"][0].requests


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
async def test_client_transfer_params_are_refused(started: Started, name: str) -> None:
    async with started(aggregated=1) as (server, _), client(server.port) as api:
        with pytest.raises(openai.BadRequestError, match=name):
            await api.chat.completions.create(**chat("x"), extra_body={name: {"a": 1}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vllm_xargs", {"kv_transfer_params": "x"}),
        ("vllm_xargs", {"a": 1, "ec_transfer_params": ["y"]}),
        ("sampling_params", {"extra_args": {"kv_transfer_params": {}}}),
    ],
)
async def test_transfer_params_do_not_slip_in_by_another_member(started: Started, name: str, value: object) -> None:
    async with started(aggregated=1) as (server, cluster), client(server.port) as api:
        with pytest.raises(openai.BadRequestError, match=f"{name}.*_transfer_params"):
            await api.chat.completions.create(**chat("x"), extra_body={name: value})
        assert not cluster["aggregated"][0].requests
        await api.chat.completions.create(**chat("x"), extra_body={"vllm_xargs": {"kv_cache_report_mode": "full"}})


@pytest.mark.parametrize("value", [b'{"a":"\\ud800"}', b'{"a":' + b"9" * 5000 + b"}", b"null", b'"x"', b"[[[1]]]"])
def test_any_json_may_stand_where_transfer_params_are_looked_for(value: bytes) -> None:
    body = b'{"vllm_xargs":%s,"sampling_params":%s}' % (value, value)
    assert vllm.refused(scan(body), body) == ""


async def test_a_truncated_picture_is_the_clients_fault(started: Started) -> None:
    bad = data_url(picture("red")[:-40])
    for roles in TOPOLOGIES:
        async with started(**roles) as (server, _), client(server.port) as api:
            with pytest.raises(openai.BadRequestError, match="truncated"):
                await api.chat.completions.create(**chat("x", bad))
            await settled(server)


@pytest.mark.parametrize(
    ("field", "value", "whole"),
    [
        ("prompt_logprobs", 0, True),
        ("prompt_logprobs", 1, True),
        ("prompt_logprobs", None, False),
        ("echo", 1, True),
        ("echo", True, True),
        ("echo", False, False),
        ("use_beam_search", 1, True),
        ("use_beam_search", 0, False),
        ("best_of", 2, True),
        ("best_of", 1, False),
    ],
)
async def test_what_must_not_be_split_is_not(started: Started, field: str, value: object, whole: bool) -> None:
    """A decode worker that has only references dies of `prompt_logprobs`, 0 included (seen on vLLM 0.32)."""
    async with started(encode=1, prefill=1, decode=1) as (server, cluster):
        async with aiohttp.ClientSession() as http:
            body = chat("what?", RED) | {field: value}
            async with http.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200
        assert bool(cluster["encode"][0].requests) != whole
