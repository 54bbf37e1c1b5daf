"""EC connectors: how encoders hand embeddings to the engines that prefill.

A stored embedding is a text: the digest of its content and its rows. Nothing that might save a real consumer by luck, such as
an embedding or KV blocks left in its memory, is counted on here: a reference needs its embedding now.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from epd_router.mock import peers
from epd_router.mock.errors import EngineDeadError, failed, invalid
from epd_router.mock.media import Item

if TYPE_CHECKING:
    from epd_router.mock.engine import Engine

WIDTH = 64  # of an embedding row
MISSING = ""


class Embeddings:
    """Embeddings in the memory of one engine, and those that were pushed to it."""

    def __init__(self, limit: int) -> None:
        self.encoder = asyncio.Lock()
        self._limit = limit
        self._known: OrderedDict[str, str] = OrderedDict()
        self._pushed: dict[str, str] = {}
        self._changed = asyncio.Condition()

    def get(self, key: str) -> str | None:
        """The embedding of an item."""
        return self._known.get(key)

    def put(self, key: str, value: str) -> None:
        """Keep an embedding."""
        self._known[key] = value
        self._known.move_to_end(key)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    async def push(self, transfer: str, value: str) -> None:
        """An encoder sends an embedding."""
        self._pushed[transfer] = value
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, transfer: str, seconds: float) -> str | None:
        """What is pushed under a transfer id, once."""
        try:
            async with self._changed:
                await asyncio.wait_for(self._changed.wait_for(lambda: transfer in self._pushed), seconds)
        except asyncio.TimeoutError:
            return None
        return self._pushed.pop(transfer)


class Connector:
    """No connector: every engine encodes for itself. The base of the others."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def publish(self, items: Sequence[Item], params: dict[str, Any]) -> list[dict[str, Any]]:
        """Encode items, in order; what the answer says of each, besides its metadata."""
        return [await self._publish(item) for item in items]

    async def contents(self, items: Sequence[Item], params: dict[str, Any]) -> list[str]:
        """Contents of a request's media; a later part with the same picture has it from the first.

        Raises ApiError and EngineDeadError.
        """
        found = []
        got: dict[str, str] = {}
        for item in items:
            value = got.get(item.id) or await self._find(item, params)
            if value is None:
                if item.reference:
                    self._absent(item)
                await self.engine.encode(item)
                value = embedding(item)
            got[item.id] = value
            digest, rows = value.split()
            if int(rows) != item.tokens:
                # Not what the placeholders were counted for: another picture or a wrong grid.
                raise failed() if self.engine.config.minor >= 31 else EngineDeadError(f"rows of {item.id}")
            found.append(digest)
        return found

    async def _publish(self, item: Item) -> dict[str, Any]:
        await self.engine.encode(item)
        return {}

    async def _find(self, item: Item, params: dict[str, Any]) -> str | None:
        return None

    def _absent(self, item: Item) -> None:
        raise EngineDeadError(f"no embedding of {item.id}")


class Example(Connector):
    """A shared folder. Writing is not atomic and being there is the only test, so a half-written file kills its reader."""

    async def _publish(self, item: Item) -> dict[str, Any]:
        store = self.engine.shared.embeddings
        if store.get(self._key(item), MISSING) == MISSING:
            await self.engine.encode(item)
            await asyncio.shield(self.engine.spawn(self._write(item)))
        return {}

    async def _write(self, item: Item) -> None:
        store, value = self.engine.shared.embeddings, embedding(item)
        store[item.id] = None
        await self.engine.sleep(self.engine.config.ec_write_ms)
        store[item.id] = value

    async def _find(self, item: Item, params: dict[str, Any]) -> str | None:
        value = self.engine.shared.embeddings.get(self._key(item), MISSING)
        if value is None:
            raise EngineDeadError(f"half-written embedding of {item.id}")
        return value or None

    def _key(self, item: Item) -> str:
        """The name is part of a path: one with a separator leaves the store."""
        if "/" in item.id or item.id in {".", ".."}:
            raise EngineDeadError(f"embedding outside the store: {item.id}")
        return item.id


class Nixl(Connector):
    """Embeddings stay in the encoder's memory; consumers read them there and lose them with it."""

    async def _publish(self, item: Item) -> dict[str, Any]:
        await self.engine.encode(item)
        size = item.tokens * WIDTH * 2
        peer = {"peer_host": "localhost", "peer_port": self.engine.port}
        return {**peer, "size_bytes": size, "shape": [item.tokens, WIDTH]}

    async def _find(self, item: Item, params: dict[str, Any]) -> str | None:
        entry = params.get(item.id)
        if not isinstance(entry, dict) or not {"peer_host", "peer_port", "size_bytes", "shape"} <= entry.keys():
            return None
        wanted = {"key": item.id}
        answer = await peers.ask(self.engine.session, entry["peer_host"], entry["peer_port"], "/mock/embedding", wanted)
        return answer["value"] if answer else None

    def _absent(self, item: Item) -> None:
        raise failed()


class Mooncake(Connector):
    """The encoder pushes to the consumer that its request names; the consumer waits and never falls back."""

    async def publish(self, items: Sequence[Item], params: dict[str, Any]) -> list[dict[str, Any]]:
        """One push for each item, matched by position."""
        listed = params.get("ec_items") or []
        transfers = [str(entry.get("transfer_id")) for entry in listed]
        if not params.get("consumer_zmq") or len(transfers) != len(items):
            invalid("ec_transfer_params needs consumer_zmq and one ec_items entry for each item.", "ec_transfer_params")
        host, port = peers.split(params["consumer_zmq"])
        for item, transfer in zip(items, transfers, strict=True):
            await self.engine.encode(item)
            document = {"transfer_id": transfer, "value": embedding(item)}
            self.engine.background(peers.ask(self.engine.session, host, port, "/mock/push", document))
        return [{"transfer_id": transfer} for transfer in transfers]

    async def _find(self, item: Item, params: dict[str, Any]) -> str | None:
        listed = params.get("ec_items") or []
        transfer = next((entry["transfer_id"] for entry in listed if entry.get("mm_hash") == item.id), None)
        if transfer is None:
            return None
        value = await self.engine.memory.embeddings.wait(transfer, self.engine.config.ec_wait_s)
        if value is None:
            raise failed()
        return value

    def _absent(self, item: Item) -> None:
        raise failed()


def embedding(item: Item) -> str:
    """The stored form of an item's embedding."""
    return f"{item.digest} {item.tokens}"


def connector(engine: Engine) -> Connector:
    """The configured connector of an engine."""
    kinds = {"example": Example, "nixl": Nixl, "mooncake": Mooncake}
    config = engine.config
    return kinds[config.ec_connector](engine) if config.encodes_only or config.consumes_embeddings else Connector(engine)
