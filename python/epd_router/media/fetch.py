"""Media by URL: each file is downloaded once for everybody who asks for it, and again only when its server wants that."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver

from epd_router.errors import MediaError
from epd_router.media.download import REDIRECTS, Downloader, FetchError, check_status, read, redirected
from epd_router.media.freshness import confirmed, relevant, validity
from epd_router.media.guard import UrlGuard
from epd_router.media.memory import Entry, Memory, Resource
from epd_router.media.singleflight import SingleFlight
from epd_router.options import Settings

__all__ = ["Fetcher", "Resource"]
MAX_REDIRECTS = 5


class Found(NamedTuple):
    """A file, and how it was come by: `hit`, `revalidated`, `joined` or `fetched`."""

    resource: Resource
    result: str


class Fetcher:
    """Downloads media. `results` counts the ends of `get` by what `Found` says, and `failed`."""

    def __init__(
        self,
        settings: Settings,
        guard: UrlGuard,
        *,
        clock: Callable[[], float] = time.monotonic,
        resolver: Callable[[], AbstractResolver] = aiohttp.DefaultResolver,
    ) -> None:
        self.results: Counter[str] = Counter()
        self._limit = settings.mm_max_item_bytes
        self._timeout = settings.mm_fetch_timeout_secs
        self._clock = clock
        self._memory = Memory(settings.mm_cache_bytes)
        self._flights: SingleFlight[str, Found] = SingleFlight()
        self._downloader = Downloader(settings, guard, resolver)

    async def get(self, url: str, modality: str, param: str) -> Resource:
        """The file at a URL. Raises MediaError for the part that `param` names."""
        try:
            found = await self._get(url.strip().partition("#")[0])
        except FetchError as error:
            self.results["failed"] += 1
            raise MediaError(error.code, f"{param}: {modality} not fetched: {error.reason}", param=param) from error
        self.results[found.result] += 1
        return found.resource

    async def close(self) -> None:
        """Cancel what is under way and close every connection."""
        await self._flights.close()
        await self._downloader.close()

    async def _get(self, url: str) -> Found:
        if entry := self._fresh(url):
            return Found(entry.resource, "hit")
        joined = url in self._flights
        found = await self._flights.get(url, lambda: self._fetch(url))
        return Found(found.resource, "joined") if joined else found

    def _fresh(self, url: str) -> Entry | None:
        entry = self._memory.get(url)
        return entry if entry is not None and self._clock() < entry.expires else None

    async def _fetch(self, url: str) -> Found:
        try:
            return await asyncio.wait_for(self._twice(url), self._timeout)
        except asyncio.TimeoutError:
            raise FetchError("media_fetch_timeout", f"it took longer than {self._timeout:g} s") from None

    async def _twice(self, url: str) -> Found:
        try:
            return await self._follow(url)
        except FetchError as error:
            if not error.again:
                raise
        return await self._follow(url)

    async def _follow(self, url: str) -> Found:
        """Through redirects to the file. They are asked for each time; what they lead to may be kept."""
        first = url
        for _ in range(1 + MAX_REDIRECTS):
            try:
                found = await self._hop(url)
            except FetchError as error:
                if error.code == "media_not_allowed" and url != first:  # whose host is not the client's to know
                    raise FetchError(error.code, "it redirects to where nothing is fetched from") from error
                raise
            if isinstance(found, Found):
                return found
            url = found
        raise FetchError("media_fetch_failed", "it redirects too often")

    async def _hop(self, url: str) -> Found | str:
        """The file, or the URL to ask next."""
        if entry := self._fresh(url):
            return Found(entry.resource, "hit")
        entry = self._memory.get(url)
        asked = self._clock()
        async with self._downloader.ask(url, entry.questions if entry else {}) as answer:
            if answer.status in REDIRECTS:
                return redirected(url, answer.headers.get("Location"))
            if answer.status == 304 and entry is not None:
                return self._not_modified(url, entry, answer, asked)
            check_status(answer.status)
            with self._memory.claim() as claim:
                data = await read(answer, self._limit, claim.grow)
            resource = Resource(data, answer.content_type)
            self._keep(url, resource, relevant(answer.headers.items()), asked, final=answer.status == 200)
            return Found(resource, "fetched")

    def _not_modified(self, url: str, entry: Entry, answer: aiohttp.ClientResponse, asked: float) -> Found | str:
        fields = confirmed(entry.fields, relevant(answer.headers.items()))
        if fields is None:  # it speaks of another file than ours: ask for that one
            self._memory.drop(url)
            return url
        self._keep(url, entry.resource, fields, asked)
        return Found(entry.resource, "revalidated")

    def _keep(self, url: str, resource: Resource, fields: dict[str, str], asked: float, *, final: bool = True) -> None:
        valid = validity(fields, time.time())
        if valid.keep and final:
            self._memory.put(url, Entry(resource, fields, asked + valid.lifetime, valid.questions))
        else:
            self._memory.drop(url)
