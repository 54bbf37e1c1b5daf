"""The cache of preprocessed media, and what goes wrong in it.

It is kept twice, as in vLLM: once in the server, once in the engine core. The server asks its own copy and sends data only
for items that it does not know. An item's key is its uuid, so a uuid that was seen before stands for the picture that came
with it first, whatever comes now. A request that is refused between the two leaves the copies out of step: the next request
with such an item gets a 500 (before 0.28 the engine dies), which puts them right. References are not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from epd_router.mock.config import EngineConfig
from epd_router.mock.errors import ApiError, EngineDeadError, invalid
from epd_router.mock.media import Item


class ProcessorCache:
    """Both copies of one engine."""

    def __init__(self, config: EngineConfig) -> None:
        self.queries = 0
        self.hits = 0
        self._fatal = config.minor < 28
        self._limit = config.processor_cache_items
        self._server: OrderedDict[str, Item] = OrderedDict()
        self._core: set[str] = set()

    def look_up(self, items: Sequence[Item]) -> list[bool]:
        """Put the known content into items that came again; tells which are known."""
        return [not item.reference and self._known(item) for item in items]

    def admit(self, items: Sequence[Item], known: Sequence[bool]) -> None:
        """The request reaches the core. Raises ApiError where the copies differ."""
        for item, cached in zip(items, known, strict=True):
            if cached and item.id not in self._core:
                self._server.pop(item.id, None)
                if self._fatal:
                    raise EngineDeadError(f"processor cache: {item.id}")
                raise ApiError(500, "A cached multi-modal item is missing in the engine.", engine=True)
            if not item.reference:
                self._core.add(item.id)

    def clear(self) -> None:
        """Forget everything."""
        self._server.clear()
        self._core.clear()

    def _known(self, item: Item) -> bool:
        self.queries += 1
        found = self._server.get(item.id)
        if found is not None:
            self.hits += 1
            self._server.move_to_end(item.id)
            item.metadata, item.tokens, item.digest = found.metadata, found.tokens, found.digest
            return True
        if not item.digest:
            invalid(f"Cache miss for {item.modality} at index {item.index} but data is not provided.")
        self._server[item.id] = item
        if len(self._server) > self._limit:
            self._core.discard(self._server.popitem(last=False)[0])
        return False
