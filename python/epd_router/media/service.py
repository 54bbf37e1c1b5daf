"""The media side of one router: its parts, made and ended together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from epd_router.errors import ConfigError
from epd_router.media.decoding import Decoder
from epd_router.media.fetch import Fetcher
from epd_router.media.guard import UrlGuard
from epd_router.media.handoff import HandOff, pays_in_json
from epd_router.media.identify import Identifier
from epd_router.media.served import ServedMedia
from epd_router.media.shared import SharedFiles

if TYPE_CHECKING:
    from epd_router.metrics import Metrics
    from epd_router.options import Settings


class MediaService:
    """Fetches, names, decodes and hands on. Raises ConfigError for options that contradict each other."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        check(settings)
        self.guard = UrlGuard(settings)
        self.fetcher = Fetcher(settings, self.guard)
        by_file = settings.media_shm_dir and settings.media_handoff in {"auto", "file"}
        by_url = settings.media_base_url and settings.media_handoff in {"auto", "http"}
        self.files = SharedFiles(settings.media_shm_dir, settings.media_shm_bytes) if by_file else None
        self.served = ServedMedia(settings.media_base_url) if by_url else None
        self.decoder: Decoder | None = None
        if "image" in settings.frontend_decoding:
            keep = pays_in_json if self.served is None else lambda _: True
            self.decoder = Decoder(settings, self.files, metrics, keep=keep)
        self.identifier = Identifier(settings, self.fetcher, self.decoder)
        self.handoff = HandOff(settings, self.decoder, self.files, self.served, metrics)
        metrics.watch_media(self.fetcher.results, self.files)

    async def open(self) -> None:
        """Take what has to be given back. Raises ConfigError."""
        if self.files is not None:
            await asyncio.to_thread(self.files.open)

    async def close(self) -> None:
        """Give it back."""
        await self.fetcher.close()
        if self.decoder is not None:
            self.decoder.close()
        if self.files is not None:
            await asyncio.to_thread(self.files.close)


def check(settings: Settings) -> None:
    """Refuse a way of hand-off that has nothing to work with."""
    if settings.media_handoff == "file" and not settings.media_shm_dir:
        raise ConfigError("--media-handoff file needs --media-shm-dir")
    if settings.media_handoff == "http" and not settings.media_base_url:
        raise ConfigError("--media-handoff http needs --media-base-url")
