"""Connections to workers: raw protocols with their own keep-alive pool, one answer at a time.

An idle connection is used again only while it is younger than `keepalive`, which must be below the worker's own limit:
a worker that closes first answers the next request with a reset. Should that happen all the same, the request is sent
once more on a fresh connection, provided that no byte of an answer had come.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol, cast
from urllib.parse import urlsplit

from epd_router._core import Framer, HttpError, ResponseHead, parse_response_head
from epd_router.deadlines import Sweeper

MAX_HEAD = 64 << 10
SOCKET_BUFFER = 4 << 20  # a large body leaves in few writes
SMALL = 16 << 10  # bytes below which one copy is cheaper than a gathering write
Pieces = Sequence[bytes | bytearray | memoryview]
LegDeadlines = tuple[float, float]  # loop time of the latest first byte, seconds of silence in mid-answer


class UpstreamError(Exception):
    """The worker gave no complete answer. `cause` is a key of the failure table."""

    cause = "broken"


class ConnectError(UpstreamError):
    """No connection could be made; the worker has seen nothing of the request."""

    cause = "connect"


class BrokenError(UpstreamError):
    """The connection ended, or its bytes were not HTTP, before the answer was complete."""


class DeadlineError(UpstreamError):
    """The worker was silent for too long."""

    cause = "timeout"


class Leg(Protocol):
    """Receives one answer. Exactly one of `on_end` and `on_failure` is called, last."""

    def on_head(self, head: ResponseHead, framer: Framer, flow: UpstreamConnection) -> None: ...
    def on_body(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_failure(self, error: UpstreamError) -> None: ...


class UpstreamConnection(asyncio.Protocol):
    """One connection to a worker."""

    __slots__ = (
        "_allowed", "_buffer", "_checked", "_endpoint", "_fed", "_first_byte_by", "_framer", "_head", "_head_only",
        "_idle_timeout", "_leg", "_pending", "_stopped", "idle_since", "received", "transport",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._leg: Leg | None = None
        self._framer: Framer | None = None
        self._buffer = b""
        self._pending = b""
        self._fed = 0
        self._allowed = 0
        self._stopped = False
        self._checked = (0, 0.0)
        self._head: ResponseHead | None = None
        self._head_only = False
        self._first_byte_by = 0.0
        self._idle_timeout = 0.0
        self.received = 0
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to send."""
        self.transport = cast("asyncio.Transport", transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in {socket.AF_INET, socket.AF_INET6}:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)

    def send(self, pieces: Pieces, leg: Leg, deadlines: LegDeadlines, *, head_only: bool) -> None:
        """Send a request and deliver its answer to `leg`; `head_only` for the answer to HEAD."""
        if self.transport.is_closing():  # lost since it was opened: nobody will call us any more
            leg.on_failure(BrokenError("the connection ended before the request was sent"))
            return
        self._leg = leg
        self._head_only = head_only
        self.received = self._fed = self._allowed = 0
        self._checked = (0, 0.0)
        self._first_byte_by, self._idle_timeout = deadlines
        self._endpoint.sweeper.add(self)
        if sum(map(len, pieces)) < SMALL:
            self.transport.write(b"".join(pieces))
        else:
            self.transport.writelines(pieces)

    def data_received(self, data: bytes) -> None:
        """The hot path: find the end of the answer, hand the bytes on."""
        self.received += 1
        leg = self._leg
        framer = self._framer
        if leg is None:
            self.transport.abort()  # a worker that talks unasked
            return
        try:
            if framer is None:
                self._receive_head(data, leg)
                return
            allowed = framer.feed(data)
        except HttpError as error:
            self._fail(BrokenError(f"malformed answer: {error.message}"))
            return
        self._fed += len(data)
        if allowed == self._fed and not self._pending:
            self._allowed = allowed
            leg.on_body(data)
        else:
            self._hold(data, allowed, leg)
        if framer.done:
            self._complete(leg, framer)

    def _hold(self, data: bytes, allowed: int, leg: Leg) -> None:
        """Pass on up to the last cut and keep the rest."""
        held = self._pending + data
        size = allowed - self._allowed
        self._allowed = allowed
        self._pending = held[size:]
        if size:
            leg.on_body(held[:size])

    def _receive_head(self, data: bytes, leg: Leg) -> None:
        buffer = self._buffer + data if self._buffer else data
        self._buffer = b""
        head = parse_response_head(buffer, MAX_HEAD)
        while head is not None and head.status < 200:
            if head.status == 101:
                self._fail(BrokenError("it switched protocols unasked"))
                return
            buffer = buffer[head.size :]
            head = parse_response_head(buffer, MAX_HEAD) if buffer else None
        if head is None:
            self._buffer = buffer
            return
        self._head = head
        bare = self._head_only or head.status in {204, 304}
        framer = self._framer = Framer(0 if bare else head.content_length, head.chunked and not bare, head.event_stream)
        leg.on_head(head, framer, self)
        if head.size < len(buffer):
            self.received -= 1
            self.data_received(buffer[head.size :])
        elif framer.done:
            self._complete(leg, framer)

    def _complete(self, leg: Leg, framer: Framer) -> None:
        """The answer is whole: give the connection back before the leg goes on."""
        head = self._head
        self._reset()
        if head is not None and head.keep_alive and not framer.excess:
            self._endpoint.give_back(self)
        else:
            self.transport.abort()
        leg.on_end()

    def _reset(self) -> None:
        self._leg = self._framer = self._head = None
        self._pending = self._buffer = b""
        self._endpoint.sweeper.discard(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Idle: forget it. In the middle: a failure, unless the body ends with the connection."""
        self._endpoint.forget(self)
        leg, head, pending = self._leg, self._head, self._pending
        self._reset()
        if leg is None:
            return
        if head is not None and exc is None and not head.chunked and head.content_length is None:
            if pending:
                leg.on_body(pending)
            leg.on_end()
        else:
            leg.on_failure(BrokenError("the connection ended before the answer was complete"))

    def _fail(self, error: UpstreamError) -> None:
        leg = self._leg
        if leg is not None:
            self.abandon(leg)
            leg.on_failure(error)

    def abandon(self, leg: Leg) -> None:
        """Nobody wants this answer any more: close, which cancels the work at the engine. Does nothing when the answer is
        complete: the connection may be another request's by now."""
        if self._leg is leg:
            self._reset()
            self.transport.abort()

    def pause_reading(self) -> None:
        """The client is slow; stop taking bytes from the worker."""
        self._stopped = True
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """The client has caught up."""
        self._stopped = False
        self._checked = (0, 0.0)
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def check(self, now: float) -> None:
        """First byte and idle deadlines; a pause that the client caused does not count."""
        if self._leg is None or self._stopped:
            return
        if not self.received:
            if now > self._first_byte_by:
                self._fail(DeadlineError("no answer in time"))
            return
        received, since = self._checked
        if received != self.received or not since:
            self._checked = (self.received, now)
        elif now - since > self._idle_timeout:
            self._fail(DeadlineError("silent in the middle of the answer"))


class Endpoint:
    """Address of a worker and its idle connections, most recently used last."""

    def __init__(
        self, url: str, sweeper: Sweeper, *, connect_timeout: float, keepalive: float, tls: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        self.url = url
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.authority = parts.netloc.encode("latin-1")
        self.sweeper = sweeper
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._connect_timeout = connect_timeout
        self._keepalive = keepalive
        self._idle: list[UpstreamConnection] = []
        self._loop = asyncio.get_running_loop()

    def idle(self) -> UpstreamConnection | None:
        """An idle connection that is young enough to be trusted."""
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing() and now - connection.idle_since < self._keepalive:
                return connection
            connection.transport.abort()
        return None

    async def connect(self) -> UpstreamConnection:
        """A fresh connection. Raises ConnectError."""
        try:
            return await asyncio.wait_for(self._open(), self._connect_timeout)
        except (OSError, asyncio.TimeoutError, ssl.SSLError) as error:
            raise ConnectError(f"cannot connect to {self.host}:{self.port}: {reason(error)}") from error

    async def _open(self) -> UpstreamConnection:
        _, connection = await self._loop.create_connection(lambda: UpstreamConnection(self), self.host, self.port, ssl=self._tls)
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose answer is complete."""
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """Drop a closed connection."""
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def check(self, now: float) -> None:
        """Close connections idle for too long (oldest first)."""
        while self._idle and now - self._idle[0].idle_since > self._keepalive:
            self._idle.pop(0).transport.abort()

    def close(self) -> None:
        """Close every idle connection."""
        for connection in self._idle:
            connection.transport.abort()
        self._idle.clear()


class LocalEndpoint(Endpoint):
    """A server in this process, reached over socket pairs: no port, no address anybody else could use."""

    def __init__(self, serve: Callable[[], asyncio.Protocol], sweeper: Sweeper, *, keepalive: float) -> None:
        super().__init__("http://epd-router", sweeper, connect_timeout=1.0, keepalive=keepalive)
        self._serve = serve

    async def _open(self) -> UpstreamConnection:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        await self._loop.connect_accepted_socket(self._serve, theirs)
        _, connection = await self._loop.create_connection(lambda: UpstreamConnection(self), sock=ours)
        return connection


class Answering(Leg, Protocol):
    """A leg with a future for its end; `reset` forgets a try that brought nothing."""

    done: asyncio.Future[UpstreamError | None]

    def reset(self) -> None: ...


async def dispatch(
    endpoint: Endpoint, pieces: Pieces, leg: Answering, deadlines: LegDeadlines, *, head_only: bool = False
) -> UpstreamError | None:
    """Send a request and wait for the end of its answer; cancelling closes the connection.

    Returns None when the answer is complete, else why it is not.
    """
    connection = endpoint.idle()
    reused = connection is not None
    stale: UpstreamError | None = None
    try:
        while True:
            if connection is None:
                try:
                    connection = await endpoint.connect()
                except ConnectError as refused:
                    return stale or refused  # an engine that died of the first try refuses the second
            connection.send(pieces, leg, deadlines, head_only=head_only)
            error = await leg.done
            if error is None or not reused or connection.received or error.cause != "broken":
                return error
            connection, reused, stale = None, False, error
            leg.reset()
    except asyncio.CancelledError:
        if connection is not None:
            connection.abandon(leg)
        raise


def reason(error: BaseException) -> str:
    """An error in a few words, also where its text is empty."""
    return str(error) or type(error).__name__
