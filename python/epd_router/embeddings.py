"""Which embeddings exist, and one encode at a time for each.

An embedding store is not atomic: an engine that looks at an embedding while it is written dies. So nobody is told of an
embedding before its encode has answered, concurrent requests join the encode that runs, and an encode that did not end
well retires its name: the next one for the same media writes under a new name (`generation`), whatever is left of the
old file.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from epd_router._core import derive_id


@dataclasses.dataclass(frozen=True, slots=True)
class Embedding:
    """One published embedding. `uuid` names it in media parts, `key` in transfer parameters; `entry` is the encoder's own
    JSON for it, echoed as it came; `metadata` the JSON members of a reference, None when the encoder gave none;
    `in_encoder` says that it lives in the encoder's own memory; `transfer_id` names a push to one consumer."""

    uuid: str
    key: str
    entry: bytes
    metadata: dict[str, object] | None
    encoder: str
    in_encoder: bool = False
    transfer_id: str = ""


@dataclasses.dataclass(slots=True)
class _Entry:
    generation: int = 0
    ready: Embedding | None = None
    expires: float = 0.0
    encode: asyncio.Task[Embedding] | None = None
    waiters: int = 0


class Embeddings:
    """Media id to embedding. Bounded: the least recently used entries that nobody waits for are forgotten."""

    def __init__(self, ttl: float, capacity: int) -> None:
        self._ttl = ttl
        self._capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, media_id: str) -> Embedding | None:
        """An embedding known to be stored now."""
        entry = self._entries.get(media_id)
        if entry is None or entry.ready is None or self._loop.time() > entry.expires:
            return None
        self._entries.move_to_end(media_id)
        return entry.ready

    async def get(self, media_id: str, encode: Callable[[str], Awaitable[Embedding]]) -> Embedding:
        """The embedding, encoded now if need be by `encode(uuid)`; raises what that raises. The last caller that is
        cancelled cancels the encode."""
        if ready := self.lookup(media_id):
            return ready
        entry = self._entries.setdefault(media_id, _Entry())
        if entry.encode is None:
            entry.ready = None
            entry.encode = self._loop.create_task(self._run(media_id, entry, encode))
            entry.encode.add_done_callback(_retrieve)
        task = entry.encode
        entry.waiters += 1
        try:
            return await asyncio.shield(task)
        finally:
            entry.waiters -= 1
            if not entry.waiters and not task.done():
                task.cancel()

    def forget(self, media_id: str) -> None:
        """A worker contradicted us: retire the name."""
        if entry := self._entries.get(media_id):
            entry.ready = None
            entry.generation += 1

    def encoder_restarted(self, encoder: str) -> None:
        """What an encoder kept in its own memory is gone; what it put into a shared store stays."""
        for entry in self._entries.values():
            if entry.ready is not None and entry.ready.encoder == encoder and entry.ready.in_encoder:
                entry.ready = None

    async def _run(self, media_id: str, entry: _Entry, encode: Callable[[str], Awaitable[Embedding]]) -> Embedding:
        try:
            embedding = await encode(name(media_id, entry.generation))
        except BaseException:
            entry.generation += 1
            raise
        else:
            entry.ready = embedding
            entry.expires = self._loop.time() + self._ttl
            return embedding
        finally:
            entry.encode = None
            self._evict()

    def _evict(self) -> None:
        excess = len(self._entries) - self._capacity
        if excess <= 0:
            return
        idle = (media_id for media_id, entry in self._entries.items() if entry.encode is None)
        for media_id in [media_id for _, media_id in zip(range(excess), idle, strict=False)]:
            del self._entries[media_id]


def name(media_id: str, generation: int) -> str:
    """The uuid of a media id: itself, until an encode of it went wrong."""
    return media_id if not generation else derive_id([media_id.encode(), b"generation %d" % generation])


def _retrieve(task: asyncio.Task[Embedding]) -> None:
    """A failed encode that nobody waits for any more is no unhandled error."""
    if not task.cancelled():
        task.exception()
