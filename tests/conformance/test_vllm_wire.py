"""Mock engines against the wire that was recorded from vLLM 0.32, field by field."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio
from epd_router.mock import Cluster, Engine, EngineConfig

from tests.conformance.wire import HEADERS, differences, events, fill, sample, text
from tests.conftest import data_url, picture

# In the order in which they were recorded: what is cached depends on it.
ORDER = {
    "encode_item": "encode",
    "encode_item_2": "encode",
    "prefill": "prefill",
    "decode": "decode",
    "aggregated": "aggregated",
    "prefill_reference_only": "prefill",
    "decode_reference_only": "decode",
    "aggregated_stream": "aggregated",
    "completions": "aggregated",
    "error_bad_image": "aggregated",
    "error_truncated_jpeg": "aggregated",
    "error_bad_model": "aggregated",
    "error_too_long": "aggregated",
    "error_bad_role": "aggregated",
    "error_max_tokens": "aggregated",
    "error_private_url": "aggregated",
    "uuid_only_unknown": "aggregated",
}
GETS = {"get_models": "/v1/models", "get_health": "/health", "get_version": "/version", "get_load": "/load"}
EVENTS = EngineConfig(kv_events_endpoint="tcp://127.0.0.1:0", kv_events_replay_endpoint="tcp://127.0.0.1:0")


@dataclass
class Answer:
    """What a mock said."""

    status: int
    headers: dict[str, str]
    body: str


class Replay:
    """Everything that was recorded, asked of mocks once."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.frames: dict[str, list[list[bytes]]] = {"prefill": [], "decode": []}
        self.layout: list[Answer] = []

    async def run(self) -> None:
        async with Cluster(config=EVENTS, encode=1, prefill=1, decode=1, aggregated=1) as cluster:
            async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
                readers = [group.create_task(self._listen(cluster[role][0], role)) for role in self.frames]
                await asyncio.sleep(0.3)  # a subscription takes its time and cannot be waited for
                for name, role in ORDER.items():
                    await self._ask(http, name, cluster[role][0])
                for name, path in GETS.items():
                    self.answers[name] = await _get(http, cluster["aggregated"][0].url + path)
                self.answers["get_metrics"] = await _get(http, cluster["prefill"][0].url + "/metrics")
                for each in sample_layout():
                    self.layout.append(await self._measure(http, cluster["aggregated"][0], each))
                for reader in readers:
                    reader.cancel()

    async def _ask(self, http: aiohttp.ClientSession, name: str, engine: Engine) -> None:
        recorded = sample(name)
        body = fill(recorded["request"])
        if (body.get("kv_transfer_params") or {}).get("do_remote_prefill"):
            before = self.answers[name.replace("decode", "prefill")].body
            body["kv_transfer_params"] = json.loads(before)["kv_transfer_params"]
        if "prompt" in body:
            body |= {"model": "tiny", "max_tokens": 4}
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        given = recorded["response_headers"].get("x-request-id", "")
        async with http.post(engine.url + path, json=body, headers={"x-request-id": given} if given else {}) as answer:
            self.answers[name] = Answer(answer.status, _lower(answer), await answer.text())

    async def _measure(self, http: aiohttp.ClientSession, engine: Engine, each: dict[str, Any]) -> Answer:
        url = data_url(picture("teal", size=(each["width"], each["height"])))
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Describe the picture."}]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "return_token_ids": True}
        async with http.post(engine.url + "/v1/chat/completions", json=body) as answer:
            return Answer(answer.status, _lower(answer), await answer.text())

    async def _listen(self, engine: Engine, role: str) -> None:
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.subscribe(b"")
            socket.connect(engine.memory.events.endpoint)
            while True:
                self.frames[role].append(await socket.recv_multipart())


def _lower(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


async def _get(http: aiohttp.ClientSession, url: str) -> Answer:
    async with http.get(url) as answer:
        return Answer(answer.status, _lower(answer), await answer.text())


def sample_layout() -> list[dict[str, Any]]:
    return events("token_layout_qwen2_vl")


@pytest.fixture(scope="module")
def replay() -> Replay:
    made = Replay()
    asyncio.run(made.run())
    return made


@pytest.mark.parametrize("name", [name for name in ORDER if name != "aggregated_stream"])
def test_answer(replay: Replay, name: str) -> None:
    recorded, got = sample(name), replay.answers[name]
    right = recorded["response"]
    if isinstance(right, str):
        right = json.loads(re.sub(r"\d+ bytes not", "N bytes not", right))
    body = json.loads(re.sub(r"\d+ bytes not", "N bytes not", got.body))
    assert (got.status, differences(right, body)) == (recorded["status"], [])
    names = recorded["response_headers"].keys() & HEADERS
    assert got.headers.keys() & HEADERS == names
    assert all(got.headers[name] == recorded["response_headers"][name] for name in names)


@pytest.mark.parametrize("name", ["prefill", "decode", "prefill_reference_only", "encode_item"])
def test_answer_ids(replay: Replay, name: str) -> None:
    recorded, got = sample(name)["response"], json.loads(replay.answers[name].body)
    assert got["id"] == recorded["id"]
    handles = got["kv_transfer_params"] or {}
    assert re.fullmatch(rf"({recorded['id']}-[0-9a-f]{{8}})?", handles.get("remote_request_id", ""))


def test_decode_and_aggregated_agree(replay: Replay) -> None:
    names = ("aggregated", "decode", "decode_reference_only")
    tokens = [json.loads(replay.answers[name].body)["choices"][0]["token_ids"] for name in names]
    assert tokens[0] == tokens[1] == tokens[2]


def test_stream(replay: Replay) -> None:
    recorded, got = sample("aggregated_stream"), replay.answers["aggregated_stream"]
    right, said = recorded["response"].split("\n\n"), got.body.split("\n\n")
    assert (got.status, len(said), said[-2:]) == (200, len(right), right[-2:])
    assert got.headers["content-type"] == recorded["response_headers"]["content-type"]
    for one, other in zip(right[:-2], said[:-2], strict=True):
        expected, event = json.loads(one.removeprefix("data: ")), json.loads(other.removeprefix("data: "))
        assert differences(expected, event) == []
        assert list(expected) == list(event)
    ids = {json.loads(event.removeprefix("data: "))["id"] for event in said[:-2]}
    assert len(ids) == 1


@pytest.mark.parametrize("name", GETS)
def test_get(replay: Replay, name: str) -> None:
    (status, body), got = text(name), replay.answers[name]
    assert got.status == status
    assert differences(json.loads(body), json.loads(got.body)) == [] if body else not got.body


def series(body: str) -> tuple[dict[str, str], set[str]]:
    """Families with their types, and series with all labels whose values do not depend on the machine."""
    types = {line.split()[2]: line.split()[3] for line in body.splitlines() if line.startswith("# TYPE")}
    lines = [line.rpartition(" ")[0] for line in body.splitlines() if line and not line.startswith("#")]
    return types, {re.sub(r'(version|patchlevel|major|minor)="[^"]*"', r"\1", line) for line in lines}


def test_metrics(replay: Replay) -> None:
    status, body = text("get_metrics")
    got = replay.answers["get_metrics"]
    (right_types, right), (types, said) = series(body), series(got.body)
    assert (got.status, types) == (status, right_types)
    assert (right - said, said - right) == (set(), set())
    helped = {line.split()[2] for line in got.body.splitlines() if line.startswith("# HELP")}
    assert helped == types.keys()


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_kv_events(replay: Replay, role: str) -> None:
    recorded = events(f"kv_events_{role}")
    assert len(replay.frames[role]) == len(recorded)
    for right, (topic, number, payload) in zip(recorded, replay.frames[role], strict=True):
        assert (topic.decode(), len(number)) == (right["topic"], 8)
        stamp, listed, rank = msgspec.msgpack.decode(payload)
        assert (type(stamp), rank) == (float, right["decoded"][2])
        assert differences(right["decoded"][1], listed) == []
        assert [list(event) for event in listed] == [list(event) for event in right["decoded"][1]]


def test_token_layout(replay: Replay) -> None:
    for right, got in zip(sample_layout(), replay.layout, strict=True):
        said = json.loads(got.body)
        assert got.status == right["status"]
        if right["error"]:
            assert said["error"] == right["error"]
            continue
        (run,) = right["placeholders"]["image"]
        pads = [index for index, token in enumerate(said["prompt_token_ids"]) if token == 268]
        assert (pads[0], len(pads), pads[-1]) == (run["offset"], run["length"], run["offset"] + run["length"] - 1)
        assert said["usage"]["prompt_tokens"] == right["prompt_tokens"]
