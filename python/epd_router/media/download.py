"""One exchange with a media server: which address is dialled, what its answer says, how its body is read."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from urllib.parse import urljoin, urlsplit

import aiohttp
import yarl
from aiohttp.abc import AbstractResolver, ResolveResult

from epd_router.media.guard import UrlGuard, is_private, plain_host
from epd_router.options import Settings

URI = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")  # RFC 3986
REDIRECTS = frozenset({301, 302, 303, 307, 308})
NO_CONTENT = frozenset({204, 205, 206})  # successes without the whole file
CONNECTIONS, CONNECTIONS_PER_HOST = 512, 32  # one slow host cannot take all
# Shares of the whole fetch's time after which a try has failed: a second one must fit in.
CONNECT_SHARE, SILENCE_SHARE = 0.25, 0.5


class FetchError(Exception):
    """Why there is no file. `code` is a key of `ERRORS`; `reason` may be shown to a client; `again` says that a second
    try may go better."""

    def __init__(self, code: str, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.again = again


class PrivateAddressError(OSError):
    """A name of the public Internet that stands for an address outside it."""


class PublicResolver(AbstractResolver):
    """Refuses names any of whose addresses is private. The addresses that are checked are those that are dialled."""

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if any(is_private(result["host"]) for result in found):
            raise PrivateAddressError(host)
        return found

    async def close(self) -> None:
        await self._inner.close()


class Downloader:
    """Connections to media servers, made on the loop of the first request and kept alive."""

    def __init__(self, settings: Settings, guard: UrlGuard, resolver: Callable[[], AbstractResolver]) -> None:
        self._settings = settings
        self._guard = guard
        self._new_resolver = resolver
        self._resolver: AbstractResolver | None = None
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def ask(self, url: str, questions: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a GET with more fields, its body unread; closes the connection unless that is read to its end.
        Raises FetchError, also for what goes wrong inside the block."""
        target = dialled(url, self._guard)
        with _explained(target):
            async with self._open().get(target, headers=questions, allow_redirects=False) as answer:
                yield answer

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            total = self._settings.mm_fetch_timeout_secs
            resolver = self._resolver = self._new_resolver()
            if not self._settings.mm_allow_private_media_hosts:
                resolver = PublicResolver(resolver)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=resolver, limit=CONNECTIONS, limit_per_host=CONNECTIONS_PER_HOST),
                cookie_jar=aiohttp.DummyCookieJar(),
                # Media are compressed by themselves, and a length that counts their own bytes is worth more. Encodings that
                # come all the same are undone.
                headers={"User-Agent": self._settings.mm_user_agent, "Accept-Encoding": "identity"},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=total * CONNECT_SHARE, sock_read=total * SILENCE_SHARE),
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        """Close every connection."""
        session, resolver = self._session, self._resolver
        self._session = self._resolver = None
        if session is not None:
            await session.close()
        if resolver is not None:
            await resolver.close()


def dialled(url: str, guard: UrlGuard) -> yarl.URL:
    """The URL that is asked for, which has the host that `guard` has seen. Raises FetchError."""
    if reason := guard.refusal(url):
        raise FetchError("media_not_allowed", reason)
    try:
        # A signature covers the spelling, so a URL that is one already stays as it is.
        target = yarl.URL(url, encoded=URI.fullmatch(url) is not None)
        host = plain_host(urlsplit(url).hostname or "")
        if plain_host(target.raw_host or "") == host:
            return target.with_host(host)
    except ValueError:
        pass
    raise FetchError("media_not_allowed", "the URL has no plain host")


def redirected(url: str, location: str | None) -> str:
    """Where an answer for `url` leads. Raises FetchError."""
    if not location:
        raise FetchError("media_fetch_failed", "its server redirects to nowhere")
    try:
        target = urljoin(url, location).partition("#")[0]
    except ValueError:
        raise FetchError("media_not_allowed", "the URL has no plain host") from None
    if urlsplit(url).scheme == "https" and urlsplit(target).scheme == "http":
        raise FetchError("media_not_allowed", "it redirects from https to http")
    return target


def check_status(status: int) -> None:
    """Raise FetchError unless the body is a file."""
    if not 200 <= status < 300 or status in NO_CONTENT:
        raise FetchError("media_fetch_failed", f"its server answered {status}", again=status >= 500)


async def read(answer: aiohttp.ClientResponse, limit: int, claim: Callable[[int], Awaitable[None]]) -> bytes:
    """The body, decoded; `claim` is asked for every piece. Raises FetchError when there are more than `limit` bytes or none."""
    too_large = FetchError("media_too_large", f"it is larger than {limit} bytes")
    if (answer.content_length or 0) > limit:
        raise too_large
    # The cheapest way to one `bytes`: BytesIO gives out its own buffer, where a list of pieces or a bytearray would
    # be there twice at the end.
    body = io.BytesIO()
    async for piece in answer.content.iter_any():
        if body.tell() + len(piece) > limit:
            raise too_large
        await claim(len(piece))
        body.write(piece)
    if not body.tell():
        raise FetchError("media_fetch_failed", "its server sent nothing")
    return body.getvalue()


@contextlib.contextmanager
def _explained(target: yarl.URL) -> Iterator[None]:
    """Errors of the network as FetchError. They say nothing of addresses, and the same of a name that does not exist and
    a port that is closed."""
    try:
        yield
    except asyncio.TimeoutError as error:
        raise FetchError("media_fetch_timeout", "its server is silent", again=True) from error
    except aiohttp.ClientSSLError as error:
        raise FetchError("media_fetch_failed", "TLS with its server failed") from error
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, PrivateAddressError):
            raise FetchError("media_not_allowed", f"host {target.host} is private") from error
        raise FetchError("media_fetch_failed", "its server cannot be reached", again=True) from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:  # no answer; aiohttp has asked a second time
        raise FetchError("media_fetch_failed", "its server broke off") from error
    except (aiohttp.ClientError, OSError, UnicodeError) as error:
        raise FetchError("media_fetch_failed", "its server broke off", again=True) from error
