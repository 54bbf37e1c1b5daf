"""Decoding in the router: a picture is named by its pixels, so that every copy and container of it is one picture.

What bytes decode to is remembered by their name: a picture that is known is not decoded again, and its pixels are only
made once more where they are to be handed on and are no longer there.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from epd_router._core import Decoded, DecodePool, Limits, derive_id, item_bytes
from epd_router._core import MediaError as CoreMediaError
from epd_router.errors import MediaError
from epd_router.media.singleflight import SingleFlight
from epd_router.media.threads import off_loop

if TYPE_CHECKING:
    from epd_router._core import PassThrough
    from epd_router.media.medium import Medium
    from epd_router.media.shared import SharedFile, SharedFiles
    from epd_router.metrics import Metrics
    from epd_router.options import Settings
    from epd_router.request import Request

KNOWN = 200_000  # most pictures remembered, 200 bytes each


def limits_of(settings: Settings) -> Limits:
    """The bounds on one picture."""
    return Limits(pixels=settings.mm_max_pixels, encoded=settings.mm_max_item_bytes)


class Decoder:
    """A pool of threads and what it has found out. `keep` says which pixels stay in memory for hand-off."""

    def __init__(self, settings: Settings, files: SharedFiles | None, metrics: Metrics, *, keep: Callable[[Decoded], bool]) -> None:
        self._pool = DecodePool(settings.mm_decode_threads or os.cpu_count() or 1, settings.mm_decode_queue)
        self._limits = limits_of(settings)
        self._files = files
        self._keep = keep
        self._metrics = metrics
        self._known: OrderedDict[str, str] = OrderedDict()  # name of the bytes: name of the pixels, or why there are none
        self._flights: SingleFlight[str, Decoded | PassThrough] = SingleFlight()
        self._again: SingleFlight[str, Decoded | PassThrough | None] = SingleFlight()

    def close(self) -> None:
        """End the threads."""
        self._pool.close()

    async def name(self, request: Request, medium: Medium, salt: bytes) -> None:
        """Name a picture by its pixels, within the scope of `salt`. Raises MediaError for one that is refused."""
        known = self._known.get(medium.id)
        if known is None:
            known = await self._find_out(request, medium)
        else:
            self._known.move_to_end(medium.id)
            self._metrics.decodes.labels("known").inc()
        if known:
            medium.content = known
            medium.id = derive_id([salt, b"pixels", known.encode()])

    async def _find_out(self, request: Request, medium: Medium) -> str:
        with refusals(medium):
            found = await self._flights.get(medium.id, lambda: self._decode(request, medium))
        if isinstance(found, Decoded):
            request.decision.decoded += 1
            if found.data and self._keep(found):
                medium.pixels = found
            known = found.id or ""
        else:
            self._metrics.passed.labels(found.reason).inc()
            known = ""
        self._known[medium.id] = known
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
        return known

    async def _decode(self, request: Request, medium: Medium) -> Decoded | PassThrough:
        """Into shared memory where there is room, else into memory of our own."""
        data = await bytes_of(request, medium)
        found = await self._to_file(data, medium) or await self._pool.decode(data, limits=self._limits, ppm=True)
        self._metrics.decodes.labels("decoded" if isinstance(found, Decoded) else "passed").inc()
        return found

    async def _to_file(self, data: bytes, medium: Medium) -> Decoded | PassThrough | None:
        """None where that cannot be."""
        files, probe = self._files, medium.probe
        if files is None or probe is None:
            return None
        size = len(f"P6\n{probe.width} {probe.height}\n255\n") + 3 * probe.width * probe.height
        return await files.make(
            size,
            lambda path: self._pool.decode_to(data, path, limits=self._limits),
            lambda found: found.id or "" if isinstance(found, Decoded) else "",
        )

    async def file(self, request: Request, medium: Medium) -> SharedFile | None:
        """A hand-off file for a picture whose pixels are known but no longer there; None where there is no room."""
        assert self._files is not None

        async def decode() -> Decoded | PassThrough | None:
            return await self._to_file(await bytes_of(request, medium), medium)

        with refusals(medium):
            await self._again.get(medium.content, decode)
        return self._files.take(medium.content)


async def bytes_of(request: Request, medium: Medium) -> bytes:
    """The encoded bytes of a medium that is here."""
    if medium.resource is not None:
        return medium.resource.data
    return await off_loop(medium.size, item_bytes, request.body, medium.item) or b""


@contextlib.contextmanager
def refusals(medium: Medium) -> Iterator[None]:
    """What the core refuses, as an error that names the item."""
    try:
        yield
    except CoreMediaError as error:
        param = medium.item.param
        raise MediaError(error.code, f"{param}: {error.message}", param=param) from None
