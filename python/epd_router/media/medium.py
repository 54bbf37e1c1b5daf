"""One media item of a request with everything known of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epd_router._core import Decoded, Item, Probe
    from epd_router.media.fetch import Resource


@dataclasses.dataclass(slots=True, eq=False)
class Medium:
    """`id` names it for caches and engines. Its bytes are in the request (`size` of them, `canonical` when engines take their
    spelling) or were downloaded (`resource`), or nobody here has them. `content` names its pixels once they are known; `pixels`
    are they, when they were decoded for this request and may be handed on."""

    item: Item
    index: int
    id: str
    size: int = 0
    canonical: bool = True
    probe: Probe | None = None
    resource: Resource | None = None
    content: str = ""
    pixels: Decoded | None = None
    text: bytes | None = None  # what stands in the place of its URL, made once for all legs

    @property
    def here(self) -> bool:
        """Its bytes are at hand."""
        return self.resource is not None or self.item.source == "data"
