"""Naming the media of a request, cheapest way first.

Bytes that are in the request are hashed where they stand; what a URL leads to is downloaded once and hashed; with frontend
decoding a picture is named by its pixels. What nobody here has seen gets a name for this request only, because what a
URL leads to may change from one request to the next.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from epd_router import _core
from epd_router._core import BodyError, derive_id
from epd_router.errors import from_core
from epd_router.media.decoding import limits_of, refusals
from epd_router.media.medium import Medium
from epd_router.media.threads import off_loop, together

if TYPE_CHECKING:
    from epd_router._core import Item, Named
    from epd_router.media.decoding import Decoder
    from epd_router.media.fetch import Fetcher
    from epd_router.options import Settings
    from epd_router.request import Request

SCOPES = 64  # most scopes for which the name of a kept download is remembered
SCOPE = ("model", "mm_processor_kwargs", "media_io_kwargs", "cache_salt")  # what changes an embedding, and whom it is for


class Identifier:
    """Names media."""

    def __init__(self, settings: Settings, fetcher: Fetcher, decoder: Decoder | None) -> None:
        self._limits = limits_of(settings)
        self._fetcher = fetcher
        self._fetches = settings.mm_fetch == "router" or decoder is not None
        self._decoder = decoder

    async def identify(self, request: Request) -> list[Medium]:
        """All media of a request, in order. Raises ClientError and MediaError naming the item at fault."""
        scan, body = request.scan, request.body
        salt = derive_id([scan.raw(body, name) or b"" for name in SCOPE]).encode()
        try:
            found = await off_loop(len(body), _core.identify, body, scan, salt, limits=self._limits)
        except BodyError as error:
            raise from_core(error) from None
        # An engine told to decode otherwise does not get our pixels.
        decoder = None if "media_io_kwargs" in scan.fields else self._decoder
        media = [known(item, index, named, salt) for index, (item, named) in enumerate(zip(request.items, found, strict=True))]
        await together([self._complete(request, medium, salt, decoder) for medium in media if self._incomplete(medium, decoder)])
        return media

    def _incomplete(self, medium: Medium, decoder: Decoder | None) -> bool:
        return (self._fetches and medium.item.source == "http") or (decoder is not None and medium.item.modality == "image")

    async def _complete(self, request: Request, medium: Medium, salt: bytes, decoder: Decoder | None) -> None:
        item = medium.item
        if self._fetches and item.source == "http":
            await self._download(medium, salt)
        if decoder is not None and medium.here and item.modality == "image":
            await decoder.name(request, medium, salt)

    async def _download(self, medium: Medium, salt: bytes) -> None:
        item = medium.item
        resource = medium.resource = await self._fetcher.get(item.url or "", item.modality, item.param)
        key = (item.modality, salt)
        named = resource.names.get(key)
        if named is None:
            with refusals(medium):
                named = await off_loop(
                    len(resource.data), _core.name_bytes, resource.data, item.modality, salt, limits=self._limits
                )
            if len(resource.names) >= SCOPES:
                resource.names.clear()
            resource.names[key] = named
        medium.id, medium.size, medium.probe = named.id, named.size, named.probe


def known(item: Item, index: int, named: Named | None, salt: bytes) -> Medium:
    """What the request itself says of an item."""
    if named is None:
        return Medium(item, index, derive_id([salt, secrets.token_bytes(16), (item.url or "").encode()]))
    return Medium(item, index, named.id, named.size, named.canonical, named.probe)
