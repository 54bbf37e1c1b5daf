"""What the transfer drivers tell both sides, by vLLM's documented shapes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from epd_router import options
from epd_router.embeddings import Embedding
from epd_router.engines import vllm
from epd_router.engines.transfer import KvDriver, Mooncake, MooncakePush, NixlPush
from epd_router.errors import ConfigError
from epd_router.urls import parse_worker_list
from epd_router.workers import Role, Worker, configured


def worker(url: str, boot: int = 1) -> Worker:
    (spec,) = parse_worker_list(url)
    return cast("Worker", SimpleNamespace(spec=spec, id=spec.id, boot=boot, endpoint=SimpleNamespace(host="p0")))


def decoded(params: bytes | None) -> Any:
    return orjson.loads(params or b"null")


async def test_pull_tells_prefill_to_keep_the_blocks_and_decode_nothing_before_the_answer() -> None:
    first, second = await KvDriver().prepare(worker("http://p0:1"), "id", "/v1/chat/completions")
    assert second is None
    assert decoded(first) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


@pytest.mark.parametrize(("path", "inner"), [("/v1/chat/completions", "chatcmpl-id-2"), ("/v1/completions", "cmpl-id-2-0")])
async def test_push_meets_by_the_inner_request_id(path: str, inner: str) -> None:
    prefill = worker("http://p0:8002,engine_id=e1,kv_host=10.0.0.2,kv_port=5601,tp=2,pp=3")
    first, second = await NixlPush().prepare(prefill, "id-2", path)
    assert decoded(first)["do_remote_decode"] is True
    assert decoded(second) == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "e1",
        "remote_host": "10.0.0.2",
        "remote_port": 5601,
        "tp_size": 2,
        "pp_size": 3,
        "remote_request_id": inner,
    }


async def test_mooncake_asks_for_the_engine_id_once_in_the_life_of_a_worker() -> None:
    asked: list[str] = []

    async def query(url: str) -> bytes:
        asked.append(url)
        await asyncio.sleep(0)
        return b'{"0":{"engine_id":"e%d","worker_addr":{"0":{"0":"10.0.0.2:1"}}}}' % len(asked)

    driver = Mooncake(8998, query)
    prefill = worker("http://p0:8002")
    first, second = (decoded(params) for params in await driver.prepare(prefill, "id", "/v1/chat/completions"))
    assert first == {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": second["transfer_id"]}
    assert (second["remote_engine_id"], second["remote_bootstrap_addr"]) == ("e1", "http://p0:8998")
    again = decoded((await driver.prepare(prefill, "id", "/v1/chat/completions"))[1])
    assert again["transfer_id"] != second["transfer_id"]
    prefill.boot = 2
    assert decoded((await driver.prepare(prefill, "id", "/v1/chat/completions"))[1])["remote_engine_id"] == "e2"
    await driver.prepare(worker("http://p0:8003,8999"), "id", "/v1/chat/completions")
    assert asked == ["http://p0:8998/query", "http://p0:8998/query", "http://p0:8999/query"]


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"0":{}}', b'{"0":null}'])
async def test_a_bootstrap_server_that_talks_nonsense_is_a_failure_of_prefill(answer: bytes) -> None:
    async def query(url: str) -> bytes:
        await asyncio.sleep(0)
        return answer

    with pytest.raises(vllm.DialectError, match="bootstrap server http://p0:8998"):
        await Mooncake(8998, query).prepare(worker("http://p0:8002"), "id", "/v1/chat/completions")


def test_an_embedding_push_names_the_consumer_and_a_fresh_transfer() -> None:
    params, transfer = MooncakePush().offer(worker("http://w:8002,ec_host=10.0.0.3,ec_port=15000"))
    assert decoded(params) == {"consumer_zmq": "tcp://10.0.0.3:15000", "ec_items": [{"transfer_id": transfer}]}
    again, other = MooncakePush().offer(worker("http://w:8002"))
    assert decoded(again)["consumer_zmq"] == "tcp://p0:14579"
    assert other != transfer


def test_the_consumer_gets_entries_and_transfer_ids_by_hash() -> None:
    found = [Embedding(f"u{n}", f"k{n}", b'{"metadata":{},"transfer_id":"t%d"}' % n, {}, "e", transfer_id=f"t{n}") for n in (1, 2)]
    assert orjson.loads(vllm.transfer_params(found)) == {
        "k1": {"metadata": {}, "transfer_id": "t1"},
        "k2": {"metadata": {}, "transfer_id": "t2"},
        "ec_items": [{"mm_hash": "k1", "transfer_id": "t1"}, {"mm_hash": "k2", "transfer_id": "t2"}],
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"encode": "http://e:1", "prefill": "http://p:1", "decode": "http://d:1", "ec_connector": "mooncake"}, "--prefill-decode"),
        ({"prefill": "http://p:1", "decode": "http://d:1", "kv_connector": "nixl-push"}, "engine_id="),
        ({"encode": "http://e:1", "prefill_decode": "http://p:1", "ec_consumer_zmq_addrs": "a:1,b:1"}, "2 addresses for 1"),
        ({"encode": "http://e:1", "prefill_decode": "http://p:1", "ec_consumer_zmq_addrs": "a"}, "not host:port"),
    ],
)
def test_a_connector_that_cannot_serve_is_a_startup_error(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(options.load(given, {}))


def test_control_addresses_follow_the_order_of_the_workers() -> None:
    given = {"encode": "http://e:1", "prefill_decode": "http://a:1,http://b:1", "ec_consumer_zmq_addrs": "tcp://x:1,y:2"}
    specs = configured(options.load(given, {}))[Role.PREFILL_DECODE]
    assert [(spec.id, spec.ec_host, spec.ec_port) for spec in specs] == [("a:1", "x", 1), ("b:1", "y", 2)]
