"""Transfer drivers: what must be agreed with the engines so that KV and embeddings get from one worker to the next.

Most connectors publish, and the answer of the earlier stage tells where; those need nothing here. Some push, and then the
receiver must be known before: these drivers make the names by which both sides meet, new ones for each attempt.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import orjson

from epd_router.engines.vllm import DialectError

if TYPE_CHECKING:
    from epd_router._core import Edits
    from epd_router.options import Settings
    from epd_router.workers import Worker

Query = Callable[[str], Awaitable[bytes]]  # GET of a side server of an engine

PREFILL_PULL = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)


# --- KV, from prefill to decode ---


class KvDriver:
    """NIXL pull, and stores that find KV by the prompt itself: decode is told what prefill answered."""

    concurrent = False  # both legs start together and decode is told without prefill's answer

    async def prepare(self, prefill: Worker, leg_id: str, path: str) -> tuple[bytes, bytes | None]:
        """Parameters of the prefill leg, and those of the decode leg where they are known before. Raises DialectError."""
        return PREFILL_PULL, None

    def adjust_prefill(self, edits: Edits) -> None:
        """Further edits of the prefill leg."""


class NixlPush(KvDriver):
    """Prefill writes into decode's memory; the two meet by request id."""

    concurrent = True

    async def prepare(self, prefill: Worker, leg_id: str, path: str) -> tuple[bytes, bytes | None]:
        """Decode learns prefill's address from the labels of its URL."""
        spec = prefill.spec
        # vLLM's inner name of the request: a prefix by endpoint and, for completions, the index of the prompt.
        inner = f"cmpl-{leg_id}-0" if path.endswith("/v1/completions") else f"chatcmpl-{leg_id}"
        decode = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": spec.engine_id,
            "remote_host": spec.kv_host or prefill.endpoint.host,
            "remote_port": spec.kv_port,
            "tp_size": spec.tp,
            "pp_size": spec.pp,
            "remote_request_id": inner,
        }
        return PREFILL_PULL, orjson.dumps(decode)


class Mooncake(KvDriver):
    """Prefill writes into decode's memory; the two meet by transfer id, found through prefill's bootstrap server."""

    concurrent = True

    def __init__(self, port: int, query: Query) -> None:
        self._port = port
        self._query = query
        self._engines: dict[str, tuple[int, str]] = {}  # by worker: its boot and the engine id it had then

    async def prepare(self, prefill: Worker, leg_id: str, path: str) -> tuple[bytes, bytes | None]:
        """A fresh transfer id for each attempt; the engine id is asked for once in the life of a worker."""
        host = prefill.spec.kv_host or prefill.endpoint.host
        address = f"http://{host}:{prefill.spec.bootstrap or self._port}"
        boot, engine_id = self._engines.get(prefill.id, (0, ""))
        if boot != prefill.boot or not engine_id:
            engine_id = await self._engine_id(address)
            self._engines[prefill.id] = (prefill.boot, engine_id)
        transfer = secrets.token_hex(16)
        first = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
        second = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_bootstrap_addr": address,
            "remote_engine_id": engine_id,
            "transfer_id": transfer,
        }
        return orjson.dumps(first), orjson.dumps(second)

    async def _engine_id(self, address: str) -> str:
        """The engine id of data-parallel rank 0."""
        try:
            return str(orjson.loads(await self._query(address + "/query"))["0"]["engine_id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DialectError(f"the bootstrap server {address} does not tell the engine id: {error!r}") from error

    def adjust_prefill(self, edits: Edits) -> None:
        """Only a `length` finish keeps the blocks, so the first token must not end the sequence."""
        edits.set("ignore_eos", b"true")
        edits.set("min_tokens", b"1")


# --- embeddings, from encode to whoever prefills ---


class EcDriver:
    """A shared store, or the encoder's own memory at an address in its answer: later requests can use them again."""

    consumer_first = False  # the consumer is chosen before the encode and named in it
    falls_back = True  # a consumer encodes media itself when it is told of no embedding

    def offer(self, consumer: Worker | None) -> tuple[bytes, str]:
        """`ec_transfer_params` of an encode leg and the transfer id in it; both empty where none are needed."""
        return b"", ""


class MooncakePush(EcDriver):
    """The encoder pushes to one consumer, which waits for it and never encodes by itself."""

    consumer_first = True
    falls_back = False

    def offer(self, consumer: Worker | None) -> tuple[bytes, str]:
        """A fresh transfer id for each encode."""
        assert consumer is not None
        transfer = secrets.token_hex(16)
        address = f"tcp://{consumer.spec.ec_host or consumer.endpoint.host}:{consumer.spec.ec_port}"
        return orjson.dumps({"consumer_zmq": address, "ec_items": [{"transfer_id": transfer}]}), transfer


def kv_driver(settings: Settings, query: Query) -> KvDriver:
    """The configured KV driver."""
    if settings.kv_connector == "nixl-push":
        return NixlPush()
    if settings.kv_connector == "mooncake":
        return Mooncake(settings.mooncake_bootstrap_port, query)
    return KvDriver()


def ec_driver(settings: Settings) -> EcDriver:
    """The configured embedding driver."""
    return MooncakePush() if settings.ec_connector == "mooncake" else EcDriver()
