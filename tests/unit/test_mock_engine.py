"""Caches, answers, faults and death of mock engines."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import aiohttp
import openai
import pytest
from epd_router.mock import Cluster, Engine, EngineConfig, Fault
from PIL import Image

from tests.conformance.wire import differences
from tests.conftest import chat, data_url, picture
from tests.unit.test_mock_transfer import ask, content, http, raw, reference

__all__ = ["http"]
RED, BLUE = data_url(picture("red")), data_url(picture("blue"))


async def health(http: aiohttp.ClientSession, engine: Engine) -> int:
    """Status of /health, 0 when nobody listens."""
    try:
        async with http.get(engine.url + "/health") as answer:
            return answer.status
    except aiohttp.ClientConnectorError:
        return 0


# --- the processor cache ---


async def test_a_uuid_stands_for_its_first_picture(http: aiohttp.ClientSession) -> None:
    async with Cluster(aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        first = content(await ask(http, engine, raw(RED)))
        assert content(await ask(http, engine, raw(BLUE))) == first  # the wrong picture
        assert content(await ask(http, engine, raw(BLUE, "other"))) != first
        bare = raw(RED)
        bare["messages"][0]["content"][0]["image_url"] = None
        assert content(await ask(http, engine, bare)) == first
        await engine.restart()
        assert (await ask(http, engine, bare))[0] == 400


@pytest.mark.parametrize(("version", "died"), [("0.32.0", 0), ("0.27.0", 1)])
async def test_a_refused_request_leaves_the_cache_out_of_step(http: aiohttp.ClientSession, version: str, died: int) -> None:
    async with Cluster(config=EngineConfig(version=version), aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        assert (await ask(http, engine, raw(RED, min_tokens=99)))[0] == 400
        assert (await ask(http, engine, raw(RED)))[0] == 500
        assert engine.died == died
        if not died:
            assert (await ask(http, engine, raw(RED)))[0] == 200


async def test_options_of_a_request_are_part_of_the_name(http: aiohttp.ClientSession) -> None:
    async with Cluster(encode=1) as cluster:
        _, said = await ask(http, cluster["encode"][0], raw(RED, mm_processor_kwargs={"min_pixels": 50176}))
        (key, entry), = said["ec_transfer_params"].items()  # fmt: skip
        assert key != "u" * 8
        assert entry["metadata"] == {"image_grid_thw": [1, 14, 20]}
    async with Cluster(config=EngineConfig(trust_request_mm_kwargs=False), encode=1) as cluster:
        assert (await ask(http, cluster["encode"][0], raw(RED, mm_processor_kwargs={"a": 1})))[0] == 400


# --- pictures ---


@pytest.mark.parametrize("kind", ["PNG", "PPM", "BMP", "TIFF", "TGA", "WEBP", "AVIF", "GIF", "JPEG2000"])
async def test_one_picture_in_any_lossless_format(http: aiohttp.ClientSession, kind: str) -> None:
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {"quality": 100} if kind == "AVIF" else {}
    out = io.BytesIO()
    Image.new("RGB", (64, 48), (250, 250, 250)).save(out, kind, **options)
    async with Cluster(aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        right = content(await ask(http, engine, chat("what?", data_url(picture("#fafafa", "PNG")))))
        got = content(await ask(http, engine, chat("what?", data_url(out.getvalue(), "image/jpeg"))))
        assert got == right or kind == "AVIF"


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("data:image/png;base64,====", 400),
        ("data:image/png,abc", 400),
        ("ftp://x/y.png", 400),
        ("file:///etc/passwd", 400),
        ("http://127.0.0.1:9/none.png", 500),
        (data_url(picture("red")[:300]), 400),
        (data_url(picture("red", "PNG")[:70]), 400),
        (data_url(b"%!PS-Adobe"), 400),
    ],
)
async def test_refused_pictures(http: aiohttp.ClientSession, url: str, status: int) -> None:
    async with Cluster(aggregated=1) as cluster:
        got, said = await ask(http, cluster["aggregated"][0], chat("x", url))
        assert (got, said["error"]["code"]) == (status, status)


async def test_mixed_and_too_many_pictures(http: aiohttp.ClientSession) -> None:
    async with Cluster(config=EngineConfig(max_images=1), prefill_decode=1) as cluster:
        mixed = reference()
        mixed["messages"][0]["content"].append({"type": "image_url", "image_url": {"url": RED}})
        for body, text in ((mixed, "Mixing"), (chat("x", RED, BLUE), "At most 1 image")):
            status, said = await ask(http, cluster["prefill_decode"][0], body)
            assert status == 400
            assert text in said["error"]["message"]


# --- encoders ---


@pytest.mark.parametrize("minor", range(26, 33))
async def test_encoder_reply_of_every_release(http: aiohttp.ClientSession, minor: int) -> None:
    red = {"metadata": {"image_grid_thw": [1, 4, 4]}}
    async with Cluster(config=EngineConfig(version=f"0.{minor}.0"), encode=1) as cluster:
        body = chat("x", RED, BLUE, RED)
        for part, uuid in zip(body["messages"][0]["content"], ("r", "b", "r"), strict=False):
            part["uuid"] = uuid
        _, said = await ask(http, cluster["encode"][0], body | {"max_tokens": 1})
        expected: Any = None
        if minor >= 31:
            expected = {"r": {"item_indices": [0, 2], **red}, "b": {"item_indices": [1], **red}}
        elif minor == 30:
            expected = {"r": red, "b": red}
        elif minor >= 28:
            expected = {"ec_items": [{"mm_hash": uuid, **red["metadata"]} for uuid in ("r", "b", "r")]}
        assert said["ec_transfer_params"] == expected
        assert said["usage"]["completion_tokens"] == (0 if minor >= 28 else 1)


@pytest.mark.parametrize(("kind", "metadata"), [("wrong_metadata", {}), ("wrong_grid", {"image_grid_thw": [1, 4, 6]})])
async def test_wrong_metadata(http: aiohttp.ClientSession, kind: str, metadata: dict[str, Any]) -> None:
    async with Cluster(encode=1) as cluster:
        cluster["encode"][0].fault(kind, 1)
        _, said = await ask(http, cluster["encode"][0], raw(RED))
        assert said["ec_transfer_params"]["u" * 8]["metadata"] == metadata
        _, said = await ask(http, cluster["encode"][0], raw(RED))
        assert said["ec_transfer_params"]["u" * 8]["metadata"] == {"image_grid_thw": [1, 4, 4]}


async def test_pictures_are_encoded_once_and_one_after_the_other(http: aiohttp.ClientSession) -> None:
    loop = asyncio.get_running_loop()
    async with Cluster(config=EngineConfig(encode_ms=40), encode=1) as cluster:
        for expected in (0.08, 0.0):
            began = loop.time()
            await asyncio.gather(*(ask(http, cluster["encode"][0], raw(url, name)) for url, name in ((RED, "r"), (BLUE, "b"))))
            assert loop.time() - began >= expected
        assert len(cluster.shared.embeddings) == 2


# --- answers ---


async def test_choices_and_prompt_lists_are_whole() -> None:
    async with Cluster(config=EngineConfig(stop_after=5), aggregated=1) as cluster:
        url = cluster["aggregated"][0].url + "/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as api:
            answer: Any = await api.chat.completions.create(**chat("hi", n=3, logprobs=True, top_logprobs=2, max_tokens=8))
            assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
            assert len({choice.message.content for choice in answer.choices}) == 3
            assert [len(choice.logprobs.content) for choice in answer.choices] == [5] * 3
            assert answer.usage.completion_tokens == 15
            events: Any = await api.chat.completions.create(**chat("hi", n=3, stream=True, max_tokens=8))
            texts = ["", "", ""]
            async for event in events:
                for choice in event.choices:
                    texts[choice.index] += choice.delta.content or ""
            assert texts == [choice.message.content for choice in answer.choices]
            prompts: list[Any] = [["one", "two"], "one", [5, 6, 7], [[5, 6], [7]]]
            counts = []
            for prompt in prompts:
                made = await api.completions.create(model="tiny", prompt=prompt, n=2, max_tokens=2, echo=True)
                counts.append(len(made.choices))
                if isinstance(prompt, str):
                    assert all(choice.text.startswith("one") for choice in made.choices)
            assert counts == [4, 2, 2, 4]


async def test_tokenize_and_detokenize_agree_with_usage(http: aiohttp.ClientSession) -> None:
    async with Cluster(aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        body = chat("Über the naïve tree 木", RED, return_token_ids=True)
        _, said = await ask(http, engine, body)
        async with http.post(engine.url + "/tokenize", json=body) as answer:
            tokens = (await answer.json())["tokens"]
        assert tokens == said["prompt_token_ids"]
        assert len(tokens) == said["usage"]["prompt_tokens"]
        async with http.post(engine.url + "/detokenize", json={"tokens": said["choices"][0]["token_ids"]}) as answer:
            assert (await answer.json())["prompt"] == said["choices"][0]["message"]["content"]


async def test_a_later_turn_finds_the_answer_in_the_prefix_cache(http: aiohttp.ClientSession) -> None:
    async with Cluster(config=EngineConfig(block_size=4), aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        body = chat("hello", max_tokens=9)
        status, first = await ask(http, engine, body)
        said = first["choices"][0]["message"]["content"]
        body["messages"] += [{"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
        status, second = await ask(http, engine, body)
        known = first["usage"]["prompt_tokens"] + 8  # the last token was never computed
        assert status == 200
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 4 * 4


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"min_tokens": 9}, "min_tokens must be less than or equal to max_tokens=8, got 9."),
        ({"max_tokens": 9000}, "maximum context length is 8192"),
        ({"stream_options": {"include_usage": True}}, "Stream options"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"messages": []}, "valid list"),
        ({"messages": ["x"]}, "valid dictionary"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "Unknown part type: smell"),
    ],
)
async def test_refused_requests(http: aiohttp.ClientSession, more: dict[str, Any], part: str) -> None:
    async with Cluster(aggregated=1) as cluster:
        status, said = await ask(http, cluster["aggregated"][0], chat("x") | more)
        assert status == 400
        assert part in said["error"]["message"]


# --- faults and death ---


@pytest.mark.parametrize("stream", [False, True])
async def test_a_death_ends_everything(http: aiohttp.ClientSession, stream: bool) -> None:
    async with Cluster(config=EngineConfig(prefill_ms=5000, death_ms=100), prefill_decode=1) as cluster:
        engine = cluster["prefill_decode"][0]
        others = [asyncio.create_task(ask(http, engine, chat("long"))) for _ in range(2)]
        while engine.active < 2:
            await asyncio.sleep(0.001)
        async with http.post(engine.url + "/v1/chat/completions", json=reference(stream=stream)) as answer:
            assert answer.status == (200 if stream else 500)
            assert '"error"' in await answer.text()
        assert await health(http, engine) == 503
        assert [(await other)[0] for other in others] == [500, 500]
        await engine.wait_end()
        assert await health(http, engine) == 0
        await engine.restart()
        assert (await health(http, engine), engine.died) == (200, 1)


async def test_statuses_count_down_by_path(http: aiohttp.ClientSession) -> None:
    async with Cluster(aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        engine.fault("503", 2)
        engine.fault("418", 1, path="/health")
        assert [(await ask(http, engine, chat("x")))[0] for _ in range(3)] == [503, 503, 200]
        assert [await health(http, engine) for _ in range(2)] == [418, 200]


async def test_connection_faults(http: aiohttp.ClientSession) -> None:
    async with Cluster(aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        engine.fault("reset", 1)
        with pytest.raises(aiohttp.ClientError):
            await ask(http, engine, chat("x"))
        assert (await ask(http, engine, chat("x")))[0] == 200
        engine.fault("die_mid_stream", 1)
        async with http.post(engine.url + "/v1/chat/completions", json=chat("x", stream=True)) as answer:
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        engine.fault("error_event", 1)
        async with http.post(engine.url + "/v1/chat/completions", json=chat("x", stream=True)) as answer:
            events = (await answer.text()).split("\n\n")
            assert json.loads(events[0].removeprefix("data: "))["error"]["code"] == 500
        engine.fault("hang", 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(http, engine, chat("x")), 0.05)
        assert engine.died == 0


async def test_refuse_and_slow_start(http: aiohttp.ClientSession) -> None:
    async with Cluster(aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        engine.fault("refuse")
        assert await health(http, engine) == 0
        await engine.clear_faults()
        assert await health(http, engine) == 200
        engine.fault("slow_start", ms=60)
        assert (await health(http, engine), (await ask(http, engine, chat("x")))[0]) == (503, 503)
        while await health(http, engine) != 200:
            await asyncio.sleep(0.01)


async def test_faults_over_http(http: aiohttp.ClientSession) -> None:
    async with Cluster(aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        async with http.post(engine.url + "/mock/fault", json={"kind": "429", "times": 1}) as answer:
            assert answer.status == 200
        async with http.post(engine.url + "/mock/fault", json={"kind": "bad luck"}) as answer:
            assert answer.status == 400
        assert [(await ask(http, engine, chat("x")))[0] for _ in range(2)] == [429, 200]
        async with http.get(engine.url + "/mock/state") as answer:
            assert (await answer.json())["requests"] == 2


def test_faults_are_read_from_text() -> None:
    assert Fault.parse("503:2") == Fault("503", 2)
    assert Fault.parse("hang:times=1,path=/health,ms=5") == Fault("hang", 1, "/health", 5.0)
    for text in ("", "bad", "503:colour=red"):
        with pytest.raises(ValueError, match="fault"):
            Fault.parse(text)


async def test_a_full_queue_and_a_key(http: aiohttp.ClientSession) -> None:
    async with Cluster(config=EngineConfig(max_queued=1, prefill_ms=100, api_key="k"), aggregated=1) as cluster:
        engine = cluster["aggregated"][0]
        assert await health(http, engine) == 200
        async with http.post(engine.url + "/v1/chat/completions", json=chat("x")) as answer:
            assert (answer.status, await answer.json()) == (401, {"error": "Unauthorized"})
        async with aiohttp.ClientSession(headers={"authorization": "Bearer k"}) as keyed:
            answers = await asyncio.gather(*(ask(keyed, engine, chat("x")) for _ in range(2)))
        assert sorted(status for status, _ in answers) == [200, 503]


def test_differences_are_found() -> None:
    right = {"a": 1, "b": [{"c": None}], "usage": {"n": [1, 2]}}
    assert differences(right, json.loads(json.dumps(right))) == []
    wrongs: list[dict[str, Any]] = [{"a": "1"}, {"a": 2}, {"b": []}, {"b": [{"c": 0}]}, {"d": 1}, {"usage": {"n": [2, 1]}}]
    for wrong in wrongs:
        assert differences(right, right | wrong)
