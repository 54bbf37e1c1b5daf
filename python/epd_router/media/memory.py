"""The bytes of media: those kept for reuse and those of downloads under way share one limit.

A download claims its bytes as they come, not as the origin announces them: a lie about a length takes no memory from
others. Kept media make room for downloads; a download that finds none stops reading until another has ended. The one
that has waited longest never does, so downloads cannot wait for each other in a ring, and the limit is passed by one
item at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epd_router._core import Named

OVERHEAD = 2048  # bytes of an entry's objects, so that many tiny media are no leak
LARGEST_SHARE = 4  # an item of more than this part of the limit is not kept


class Resource:
    """A downloaded file. `names` is for identities of its bytes that others work out; it lives as long as they do."""

    __slots__ = ("content_type", "data", "names")

    def __init__(self, data: bytes, content_type: str) -> None:
        self.data = data
        self.content_type = content_type
        self.names: dict[tuple[str, bytes], Named] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A kept resource, the fields that came with it, when it must be asked for again, and how."""

    resource: Resource
    fields: Mapping[str, str]
    expires: float
    questions: Mapping[str, str]


class Claim:
    """The bytes of one download."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.size = 0

    async def grow(self, size: int) -> None:
        """Claim `size` more bytes, waiting until they fit."""
        while not self._memory.has_room(self, size):
            await self._memory.changed()
        self.size += size
        self._memory.used += size


class Memory:
    """Kept resources by URL, least recently used first, and the claims of downloads, oldest first; `used` is their bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, Entry] = OrderedDict()
        self.used = 0
        self._claims: dict[Claim, None] = {}
        self._freed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, url: str) -> Entry | None:
        """What is kept for a URL, valid or not."""
        if url in self._kept:
            self._kept.move_to_end(url)
        return self._kept.get(url)

    def put(self, url: str, entry: Entry) -> None:
        """Keep an entry in place of the URL's last one, unless it is large."""
        self.drop(url)
        size = _cost(url, entry)
        if size * LARGEST_SHARE <= self._limit:
            self._kept[url] = entry
            self.used += size
            self._evict(self._limit)

    def drop(self, url: str) -> None:
        """Keep nothing for a URL."""
        if entry := self._kept.pop(url, None):
            self.used -= _cost(url, entry)

    @contextlib.contextmanager
    def claim(self) -> Iterator[Claim]:
        """A claim for as long as the block lasts."""
        claim = Claim(self)
        self._claims[claim] = None
        try:
            yield claim
        finally:
            del self._claims[claim]
            self.used -= claim.size
            self._freed.set()
            self._freed = asyncio.Event()

    def has_room(self, claim: Claim, size: int) -> bool:
        """Whether a claim may grow by `size`; drops kept resources for it."""
        self._evict(self._limit - size)
        return self.used + size <= self._limit or next(iter(self._claims)) is claim

    async def changed(self) -> None:
        """Wait until a claim has ended."""
        await self._freed.wait()

    def _evict(self, limit: int) -> None:
        while self._kept and self.used > limit:
            self.drop(next(iter(self._kept)))


def _cost(url: str, entry: Entry) -> int:
    return len(entry.resource.data) + len(url) + sum(map(len, entry.fields.values())) + OVERHEAD
