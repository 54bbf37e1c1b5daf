"""Media servers that answer as they are told, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import epd_router
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from epd_router import options
from epd_router.errors import MediaError
from epd_router.media.fetch import Fetcher
from epd_router.media.guard import UrlGuard

from tests.blocking import watching

PARAM = "messages[0].content[1].image_url.url"
MEDIA = Path(epd_router.__file__).parent / "media"
PICTURE = b"picture" * 100
Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def reply(body: bytes = PICTURE, status: str = "200 OK", **fields: object) -> bytes:
    """An answer; `content_length=None` leaves the length out."""
    fields = {"content_length": len(body), **fields}
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items() if value is not None]
    return f"HTTP/1.1 {status}\r\n{''.join(lines)}\r\n".encode() + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    return reply(b"", status, location=location)


async def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@dataclasses.dataclass
class Seen:
    path: str
    fields: dict[str, str]


class Origin:
    """Answers the first request with the first of `answers` and so on, the last for good. After an answer that is not
    complete it waits for the client to leave, which `left` counts."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.seen: list[Seen] = []
        self.connections = 0
        self.left = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Origin]:
        server = await asyncio.start_server(self._serve, host, port, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, path: str = "/a.png", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                await self._exchange(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            self.left += 1
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(map(_field, head[1:-2]))
        self.seen.append(Seen(head[0].split()[1], fields))
        answer = self.answers[min(len(self.seen), len(self.answers)) - 1]
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
            if b"connection: close" in answer:
                raise asyncio.IncompleteReadError(b"", None)
        else:
            await answer(writer)


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name.lower(), value


class Names(AbstractResolver):
    """A name server that answers the next of `answers[host]`, the last for good; for unknown hosts as for no such name."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {host.replace("_", "."): list(found) for host, found in answers.items()}
        self.asked: list[str] = []

    def __call__(self) -> Names:
        return self

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        self.asked.append(host)
        answers = self.answers.get(host.rstrip("."))
        if answers is None:
            raise OSError("no such name")
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ResolveResult(hostname=host, host=ip, port=port, family=2, proto=0, flags=0) for ip in found]

    async def close(self) -> None:
        pass


@contextlib.asynccontextmanager
async def fetching(*, private: bool = True, more: dict[str, Any] | None = None, **given: object) -> AsyncIterator[Fetcher]:
    """A fetcher that blocks no loop. `more` is for its constructor."""
    values = {"mm_allow_private_media_hosts": private, **given}
    settings = options.load({name: str(value) for name, value in values.items()}, {})
    fetcher = Fetcher(settings, UrlGuard(settings), **(more or {}))
    with watching(MEDIA) as watch:
        try:
            yield fetcher
        finally:
            await fetcher.close()
    assert not watch.found, "\n".join(watch.found)


async def get(fetcher: Fetcher, url: str) -> bytes:
    return (await fetcher.get(url, "image", PARAM)).data


async def refused(fetcher: Fetcher, url: str, status: int, code: str, param: str = PARAM) -> str:
    """The reason for which there is no file at `url`."""
    with pytest.raises(MediaError) as caught:
        await fetcher.get(url, "image", param)
    error = caught.value
    assert (error.status, error.code, error.param) == (status, code, param)
    start, hint = f"{param}: image not fetched: ", f". {error.kind.hint}"
    assert error.message.startswith(start)
    assert error.message.endswith(hint)
    assert "secret" not in error.message
    return error.message[len(start) : -len(hint)]
