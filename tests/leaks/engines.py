"""Engines that cost next to nothing: one protocol that knows just enough HTTP, with faults drawn from dice.

The mock engines of the package are built on aiohttp and check what they are sent; twenty thousand requests with three legs
each take them minutes. These answer in the shapes of vLLM 0.32 and echo a tag of the prompt, so that a mixed-up answer is seen.
"""

from __future__ import annotations

import asyncio
import collections
import random
import re
from typing import cast

LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)\r\n")
TAG = re.compile(rb"<(tag-\d+)>")
UUID = re.compile(rb'"uuid":"([0-9a-f]+)"')
STREAM = re.compile(rb'"stream": ?true')
HANDLES = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e","remote_block_ids":[[1,2]],'
    b'"remote_host":"h","remote_port":1}'
)
GETS = {
    b"/health": b"",
    b"/version": b'{"version":"0.32.0"}',
    b"/v1/models": b'{"object":"list","data":[{"id":"tiny","object":"model"}]}',
}
# Per leg. The first row is what an engine should do; `late` answers after a while, so that clients can leave in between.
FAULTS = {
    "ok": 86.0,
    "late": 5.0,
    "500": 1.0,
    "503": 1.0,
    "429": 0.5,
    "422": 1.0,
    "502": 0.5,
    "reset": 1.0,
    "half": 0.7,
    "cut": 1.0,
    "error_event": 0.7,
    "garbage": 0.5,
    "odd": 0.3,
    "hang": 0.6,
}


def reply(status: int, body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (status, kind, len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class LeanEngine:
    """A listening engine of one role."""

    def __init__(self, role: str, dice: random.Random) -> None:
        self.role = role
        self.dice = dice
        self.faulty = False
        self.probes = 0
        self.script = "ok"  # what it does when it draws no faults
        self.hung = asyncio.Event()  # a request has just been left without an answer; a new event follows
        self.seen: collections.Counter[str] = collections.Counter()
        self.connections: set[Connection] = set()
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and every connection, as a process that dies."""
        assert self._server is not None
        self._server.close()
        self.drop()
        await self._server.wait_closed()

    def drop(self) -> None:
        """Cut every connection."""
        for connection in tuple(self.connections):
            connection.transport.abort()

    def draw(self) -> str:
        kind = self.dice.choices(list(FAULTS), list(FAULTS.values()))[0] if self.faulty else self.script
        self.seen[kind] += 1
        return kind


class Connection(asyncio.Protocol):
    """One connection of the router, one request at a time."""

    def __init__(self, engine: LeanEngine) -> None:
        self.engine = engine
        self.received = bytearray()
        self.need = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are none by type
        self.engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.need:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return
            length = LENGTH.search(self.received, 0, end + 2)
            self.need = end + 4 + (int(length[1]) if length else 0)
        if len(self.received) >= self.need:
            request, self.received, self.need = bytes(self.received), bytearray(), 0
            self.answer(request)

    def answer(self, request: bytes) -> None:
        if request.startswith(b"GET "):
            path = request.split(b" ", 2)[1]
            self.engine.probes += path == b"/health"
            self.transport.write(reply(200, GETS[path]))
            return
        kind = self.engine.draw()
        write = self.transport.write
        if kind.isdigit():
            write(reply(int(kind), b'{"error":{"message":"injected","type":"x","param":null,"code":%s}}' % kind.encode()))
        elif kind == "reset":
            self.transport.abort()
        elif kind == "garbage":
            write(b"SSH-2.0-OpenSSH_9\r\n\r\n")
        elif kind == "odd":
            write(reply(200, b'"not an object"'))
        elif kind == "hang":
            self.engine.hung.set()
            self.engine.hung = asyncio.Event()
        elif kind == "late":
            asyncio.get_running_loop().call_later(0.02, self.serve, request, kind)
        else:
            self.serve(request, kind)

    def serve(self, request: bytes, kind: str) -> None:
        if self.transport.is_closing():
            return
        if self.engine.role == "decode" and STREAM.search(request):
            self.stream(request, kind)
            return
        body = self.body(request)
        whole = reply(200, body)
        if kind in {"half", "cut"}:
            self.transport.write(whole[: -len(body) // 2])
            self.transport.close()
        else:
            self.transport.write(whole)

    def body(self, request: bytes) -> bytes:
        if self.engine.role == "encode":
            uuid = UUID.findall(request)[-1]
            return b'{"ec_transfer_params":{"%s":{"item_indices":[0],"metadata":{"image_grid_thw":[1,2,2]}}}}' % uuid
        if self.engine.role == "prefill":
            return b'{"choices":["<%s>"],"kv_transfer_params":%s}' % (tag(request), HANDLES)
        return b'{"choices":[{"message":{"content":"<%s>"}}]}' % tag(request)

    def stream(self, request: bytes, kind: str) -> None:
        write = self.transport.write
        write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        if kind == "error_event":
            write(chunk(b'data: {"error":{"message":"injected","code":500}}\n\n') + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return
        event = chunk(b'data: {"choices":[{"delta":{"content":"<%s>"}}]}\n\n' % tag(request))
        write(event)
        if kind == "flood":
            write(event * 200_000)
            return
        if kind in {"half", "cut"}:
            write(event[: len(event) // 2] if kind == "half" else b"")
            self.transport.close()
        elif kind == "late":
            asyncio.get_running_loop().call_later(0.02, self.finish, event)
        else:
            self.finish(event)

    def finish(self, event: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(event + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def tag(request: bytes) -> bytes:
    found = TAG.search(request)
    return found[1] if found else b""
