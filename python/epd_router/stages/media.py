"""The media of one leg: names, references in their place where that is safe, and how the worker gets the rest."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from epd_router.engines import vllm
from epd_router.failures import Cause
from epd_router.request import Request, StageFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from epd_router._core import Edits
    from epd_router.embeddings import Embedding
    from epd_router.media.handoff import HandOff
    from epd_router.workers import Worker

Found = list["Embedding | None"]


class MediaWriter:
    """Writes media into the edits of a leg."""

    def __init__(self, handoff: HandOff) -> None:
        self._handoff = handoff

    @contextlib.asynccontextmanager
    async def split(
        self, edits: Edits, request: Request, found: Found, worker: Worker, *, refer: bool = True
    ) -> AsyncIterator[bool]:
        """For a leg of a request whose media were encoded elsewhere; True when no media is left in it. What the worker is
        handed lives until the context is left."""
        if not found:
            async with self.whole(edits, request, worker):
                yield False
            return
        # A raw retry goes under new names: under the old ones the engine would look for what failed.
        usable: Found = [None] * len(found) if request.raw else found
        referred = [False] * len(found)
        if refer:
            referred = vllm.refer_media(edits, request.items, usable, request.ids, worker.version)
            request.referenced = request.referenced or all(referred)
        else:
            vllm.name_media(edits, usable, request.ids)
        async with self._handed(edits, request, worker, referred):
            yield all(referred)

    @contextlib.asynccontextmanager
    async def whole(self, edits: Edits, request: Request, worker: Worker) -> AsyncIterator[None]:
        """For a request that one worker serves: no names of a client's own, and ours where the endpoint takes any."""
        if request.scan.client_uuids:
            edits.strip_uuids()
        if request.exchange.head.path in vllm.NAMED_MEDIA:
            for medium in request.media:
                edits.set_uuid(medium.index, medium.id)
        async with self._handed(edits, request, worker, [False] * len(request.media)):
            yield

    @contextlib.asynccontextmanager
    async def _handed(self, edits: Edits, request: Request, worker: Worker, referred: list[bool]) -> AsyncIterator[None]:
        raw = [medium for medium, gone in zip(request.media, referred, strict=True) if not gone]
        handed = await self._handoff.take(request, worker, raw)
        try:
            for index, url in handed.urls.items():
                edits.set_url(index, url)
            yield
        except StageFailedError as failure:
            if failure.answer is not None and self._handoff.refused(worker, handed, failure.answer[1]):
                raise StageFailedError(failure.stage, Cause.GATEWAY, "no access to hand-off files") from failure
            raise
        finally:
            handed.release()
