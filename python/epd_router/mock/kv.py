"""KV connectors: how prefill hands its blocks to decode.

What travels is a `Blocks` document: what the answer depends on, how many blocks there are and how much of the prompt was
cached. Decode takes over the answer of prefill's prompt, so blocks of another request give another request's answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from epd_router.mock import peers
from epd_router.mock.errors import EngineDeadError, failed
from epd_router.mock.prompt import Prompt

if TYPE_CHECKING:
    from epd_router.mock.engine import Engine


class Blocks(TypedDict):
    """The blocks of one prompt."""

    seed: str
    tokens: int
    ids: list[int]
    cached: int


class Leases:
    """Blocks that a prefill engine keeps for decode, each for one use and a limited time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._held: dict[str, tuple[float, Blocks]] = {}
        self._next = itertools.count(1)
        self._changed = asyncio.Condition()
        self.expired = 0

    def allocate(self, count: int) -> list[int]:
        """Numbers for new blocks."""
        return list(itertools.islice(self._next, count))

    async def hold(self, name: str, blocks: Blocks) -> None:
        """Keep blocks under a name."""
        self._held[name] = (time.monotonic() + self._seconds, blocks)
        async with self._changed:
            self._changed.notify_all()

    def take(self, name: str) -> Blocks | None:
        """Hand blocks over, and free them."""
        self._expire()
        return self._held.pop(name, (0.0, None))[1]

    async def wait(self, name: str, seconds: float) -> Blocks | None:
        """Hand blocks over as soon as they are there."""
        try:
            async with self._changed:
                await asyncio.wait_for(self._changed.wait_for(lambda: name in self._held), seconds)
        except asyncio.TimeoutError:
            return None
        return self.take(name)

    @property
    def pinned(self) -> int:
        """Blocks that are kept for decode now."""
        self._expire()
        return sum(len(blocks["ids"]) for _, blocks in self._held.values())

    def _expire(self) -> None:
        now = time.monotonic()
        for name in [name for name, (end, _) in self._held.items() if end <= now]:
            del self._held[name]
            self.expired += 1


@dataclass
class Leg:
    """One request as a connector sees it: its id without the engine's suffix, its parameters and its prompt."""

    id: str
    params: dict[str, Any]
    prompt: Prompt

    @property
    def receives(self) -> bool:
        """Whether blocks are to come from elsewhere."""
        return bool(self.params.get("do_remote_prefill"))

    @property
    def sends(self) -> bool:
        """Whether blocks are to be kept for decode."""
        return bool(self.params.get("do_remote_decode"))


class Connector:
    """No connector: parameters are ignored. The base of the others."""

    required: ClassVar[tuple[str, ...]] = ()

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def receive(self, leg: Leg) -> Blocks | None:
        """Blocks for a decode; None when it has to prefill itself. Raises ApiError and EngineDeadError."""
        if not leg.receives or not all(leg.params.get(name) is not None for name in self.required):
            return None
        try:
            await self.engine.sleep(self.engine.config.kv_transfer_ms)
        except asyncio.CancelledError:
            self.engine.background(self.reject(leg.params))
            raise
        blocks = await self._pull(leg)
        if blocks is None:
            if self.engine.config.kv_load_failure_policy == "recompute":
                return None
            raise failed()
        if -(-len(leg.prompt.ids) // self.engine.config.block_size) > len(blocks["ids"]):
            raise EngineDeadError("more blocks are needed than prefill has")
        return blocks

    async def send(self, leg: Leg, blocks: Blocks, finish: str) -> dict[str, Any] | None:
        """Keep the blocks of a finished prefill; `kv_transfer_params` of its answer."""
        return None

    async def reject(self, params: dict[str, Any]) -> None:
        """A decode was refused or aborted before it read the blocks: let prefill free them."""

    def contents(self, prompt: Prompt) -> list[str] | None:
        """Contents of the media whose KV is in a store."""
        return None

    def keep(self, prompt: Prompt, contents: list[str]) -> None:
        """Put the KV of a prompt into a store."""

    async def _pull(self, leg: Leg) -> Blocks | None:
        return None


class Nixl(Connector):
    """Decode reads prefill's memory with the handles of prefill's answer."""

    required = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")

    async def send(self, leg: Leg, blocks: Blocks, finish: str) -> dict[str, Any] | None:
        """The handles, for a prefill that was not aborted."""
        if not leg.sends:
            return None
        config, memory = self.engine.config, self.engine.memory
        name = f"{leg.id}-{uuid.uuid4().hex[:8]}"
        await memory.leases.hold(name, blocks)
        made = {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [blocks["ids"]],
            "remote_engine_id": memory.engine_id, "remote_request_id": name, "remote_host": "localhost",
            "remote_port": self.engine.port, "tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": blocks["tokens"],
            "remote_blocks_expiry_time": None, "transfer_mode": "pull", "remote_prefill_cached_tokens": blocks["cached"],
        }  # fmt: skip
        if config.minor < 31:
            del made["remote_prefill_cached_tokens"]
        return made

    async def _pull(self, leg: Leg) -> Blocks | None:
        blocks: Blocks | None = await self._take(leg.params)
        return blocks if blocks and [blocks["ids"]] == leg.params["remote_block_ids"] else None

    async def reject(self, params: dict[str, Any]) -> None:
        """Prefill is told, as a finished read would tell it."""
        if params.get("do_remote_prefill") and all(params.get(name) is not None for name in self.required):
            await self._take(params)

    async def _take(self, params: dict[str, Any]) -> Any:
        wanted = {"engine_id": params["remote_engine_id"], "name": params["remote_request_id"]}
        return await peers.ask(self.engine.session, params["remote_host"], params["remote_port"], "/mock/kv", wanted)


class NixlPush(Connector):
    """Prefill writes into decode's memory; the two meet by request id."""

    required = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")

    async def send(self, leg: Leg, blocks: Blocks, finish: str) -> dict[str, Any] | None:
        """Nothing to tell: decode was told before."""
        if leg.sends:
            await self.engine.memory.leases.hold(leg.id, blocks)
        return None

    async def _pull(self, leg: Leg) -> Blocks | None:
        seconds = self.engine.config.kv_wait_s
        wanted = {"engine_id": leg.params["remote_engine_id"], "name": leg.id, "wait": seconds}
        host, port = leg.params["remote_host"], leg.params["remote_port"]
        found: Blocks | None = await peers.ask(self.engine.session, host, port, "/mock/kv", wanted, seconds + 1)
        return found


class Mooncake(Connector):
    """Prefill writes into decode's memory; the two meet by transfer id, through prefill's bootstrap server."""

    required = ("remote_engine_id", "remote_bootstrap_addr", "transfer_id")

    async def send(self, leg: Leg, blocks: Blocks, finish: str) -> dict[str, Any] | None:
        """Only a `length` finish counts; any other loses the transfer."""
        if leg.sends and leg.params.get("transfer_id") and finish == "length":
            await self.engine.memory.leases.hold(leg.params["transfer_id"], blocks)
        return None

    async def _pull(self, leg: Leg) -> Blocks | None:
        seconds = self.engine.config.kv_wait_s
        try:
            async with self.engine.session.get(leg.params["remote_bootstrap_addr"] + "/query") as answer:
                known = (await answer.json())["0"]
            host, port = peers.split(known["worker_addr"]["0"]["0"])
        except (OSError, ValueError, KeyError):
            return None
        wanted = {"engine_id": leg.params["remote_engine_id"], "name": leg.params["transfer_id"], "wait": seconds}
        found: Blocks | None = await peers.ask(self.engine.session, host, port, "/mock/kv", wanted, seconds + 1)
        return found


class Store(Connector):
    """A shared folder, found by the prompt cut to block boundaries and the ids of its media; no parameters."""

    def contents(self, prompt: Prompt) -> list[str] | None:
        """What was stored for exactly this prompt."""
        value = self.engine.shared.kv.get(self._key(prompt))
        return None if value is None else value.split()

    def keep(self, prompt: Prompt, contents: list[str]) -> None:
        """Prefill and decode both store."""
        self.engine.shared.kv[self._key(prompt)] = " ".join(contents)

    def _key(self, prompt: Prompt) -> str:
        size = self.engine.config.block_size
        ids = prompt.ids[: (len(prompt.ids) - 1) // size * size]
        text = ",".join(map(str, ids)) + "-".join(item.id for item in prompt.items)
        return hashlib.sha256(text.encode()).hexdigest()


def connector(engine: Engine) -> Connector:
    """The configured connector of an engine."""
    kinds = {"nixl": Nixl, "nixl-push": NixlPush, "mooncake": Mooncake, "store": Store}
    return kinds[engine.config.kv_connector](engine) if engine.config.kv_connected else Connector(engine)
