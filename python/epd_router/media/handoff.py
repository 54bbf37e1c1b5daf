"""How a worker gets the media of a leg: as they came, in a data URL, by a file in shared memory or by a URL of this router.

Which is cheapest was measured (docs/handoff.md): pixels by file always leave the worker less to do, pixels inside JSON only
for small pictures of slow formats. Whatever is handed out is held until the leg has ended.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from epd_router import _core
from epd_router.media.threads import off_loop

if TYPE_CHECKING:
    from pathlib import Path

    from epd_router._core import Decoded
    from epd_router.media.decoding import Decoder
    from epd_router.media.medium import Medium
    from epd_router.media.served import ServedMedia
    from epd_router.media.shared import SharedFile, SharedFiles
    from epd_router.metrics import Metrics
    from epd_router.options import Settings
    from epd_router.request import Request
    from epd_router.workers import Worker

log = logging.getLogger(__name__)

PIXELS_IN_JSON = 1 << 20  # most pixels of a picture that goes decoded into a data URL
SLOW = frozenset(["PNG", "WEBP"])  # formats that engines take longer to decode than to read their pixels from JSON
FLAG = b"--allowed-local-media-path"  # what an engine that reads no files names in its error


class Held(Protocol):
    """Something a worker was told of."""

    def release(self) -> None:
        """The worker has answered."""
        ...


class Handed:
    """The texts that go in the place of the media URLs of one leg, by index of the item; items that go as they came are not
    among them."""

    __slots__ = ("_held", "urls")

    def __init__(self) -> None:
        self.urls: dict[int, bytes] = {}
        self._held: list[Held] = []

    def hold(self, held: Held, index: int, url: bytes) -> None:
        """Hand out a URL."""
        self._held.append(held)
        self.urls[index] = url

    def release(self) -> None:
        """The leg has ended."""
        for held in self._held:
            held.release()
        self._held.clear()


class HandOff:
    """Chooses and prepares."""

    def __init__(
        self, settings: Settings, decoder: Decoder | None, files: SharedFiles | None, served: ServedMedia | None, metrics: Metrics
    ) -> None:
        self._way = settings.media_handoff
        self._decoder = decoder
        self._files = files
        self._served = served
        self._metrics = metrics
        self._refusing: dict[str, int] = {}  # workers that do not read our files, in which of their lives

    async def take(self, request: Request, worker: Worker, media: Iterable[Medium]) -> Handed:
        """Prepare these media of a request for a worker."""
        handed = Handed()
        try:
            for medium in media:
                if medium.here:
                    form = await self._hand(request, worker, medium, handed)
                    self._metrics.handoffs.labels(*form).inc()
        except BaseException:
            handed.release()
            raise
        return handed

    def way(self, worker: Worker) -> str:
        """`file`, `http` or `data`: what reaches this worker."""
        way = worker.spec.media or self._way
        if (way == "file" and self._files is None) or (way == "http" and self._served is None):
            way = "auto"
        if way == "auto":
            way = "file" if self._files is not None and is_local(worker.spec.url) else "data"
        return "data" if way == "file" and self._refusing.get(worker.id) == worker.boot else way

    def refused(self, worker: Worker, handed: Handed, answer: bytes) -> bool:
        """Whether a worker's error is about our files; then it is handed none any more."""
        if self._files is None or not handed.urls:
            return False
        if FLAG not in answer and self._files.folder.name.encode() not in answer:
            return False
        log.warning("%s does not read hand-off files; start it with %s %s", worker.id, FLAG.decode(), self._files.folder.parent)
        self._refusing[worker.id] = worker.boot
        return True

    async def _hand(self, request: Request, worker: Worker, medium: Medium, handed: Handed) -> tuple[str, str]:
        way = self.way(worker)
        if way == "file" and (form := await self._by_file(request, medium, handed)):
            return "file", form
        if way == "http" and (form := await self._by_url(request, medium, handed)):
            return "http", form
        text, form = await self._in_body(request, medium)
        if text is not None:
            handed.urls[medium.index] = text
        return "data" if text is not None else "body", form

    # --- inside the request ---

    async def _in_body(self, request: Request, medium: Medium) -> tuple[bytes | None, str]:
        """None: as it came."""
        pixels = medium.pixels
        if pixels is not None and pays_in_json(pixels):
            if medium.text is None:
                medium.text = await off_loop(len(pixels.data), _core.data_url, pixels.data, "image")
            return medium.text, "pixels"
        if medium.resource is not None and medium.text is None:
            data, kind = medium.resource.data, medium.item.modality
            medium.text = await off_loop(len(data), _core.data_url, data, kind, medium.resource.content_type)
        elif not medium.canonical and medium.text is None:
            medium.text = await off_loop(medium.size, _core.clean_text, request.body, medium.item)
        return medium.text, "bytes"

    # --- by file ---

    async def _by_file(self, request: Request, medium: Medium, handed: Handed) -> str:
        """'' where there is no room for the file."""
        files = self._files
        assert files is not None
        file, form = None, "pixels"
        if self._decoder is not None and medium.content:
            file = files.take(medium.content) or await self._decoder.file(request, medium)
        if file is None and medium.resource is not None:  # else the worker finds the bytes in the request
            form = "bytes"
            file = files.take(medium.id) or await self._write(files, medium.id, medium.resource.data)
        if file is None:
            return ""
        handed.hold(file, medium.index, file.url)
        return form

    @staticmethod
    async def _write(files: SharedFiles, content: str, data: bytes) -> SharedFile | None:
        await files.make(len(data), lambda path: asyncio.to_thread(write_new, path, data), lambda _: content)
        return files.take(content)

    # --- by URL ---

    async def _by_url(self, request: Request, medium: Medium, handed: Handed) -> str:
        served = self._served
        assert served is not None
        if medium.pixels is not None:
            content, data, form = medium.content, medium.pixels.data, "pixels"
        elif medium.resource is not None:
            content, data, form = medium.id, medium.resource.data, "bytes"
        else:
            return ""
        held = served.take(content) or served.put(content, data)
        handed.hold(held, medium.index, held.url)
        return form


def pays_in_json(pixels: Decoded) -> bool:
    """The engine has less to do with these pixels in a data URL than with the file that they came from."""
    return pixels.format in SLOW and pixels.width * pixels.height <= PIXELS_IN_JSON


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, or none at all."""
    try:
        with path.open("xb") as file:
            file.write(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def is_local(url: str) -> bool:
    """The worker is on this host, and so reads the same shared memory."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
