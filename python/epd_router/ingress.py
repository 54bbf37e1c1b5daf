"""Client connections: HTTP/1.1 in, one exchange at a time out.

A request is complete before anybody sees it: its body lands in one buffer of the announced length, written by the
event loop straight from the socket. Pipelined requests wait in the scratch buffer, so answers keep their order.
This layer knows HTTP and nothing of models.
"""

from __future__ import annotations

import asyncio
import enum
import select
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol, cast

from epd_router._core import ChunkedDecoder, HttpError, RequestHead, parse_request_head
from epd_router.errors import ClientError, EpdRouterError, from_core

SCRATCH = 16 << 10
LINGER_SECS = 2.0  # how long a refused client may go on sending
HUNG_UP = getattr(select, "POLLRDHUP", 0)  # besides errors, which are always told
MIN_RATE = 500  # bytes a second of a body, over each client timeout; what Apache asks for
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
REASONS = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}


class Phase(enum.Enum):
    """What a connection waits for."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    CHUNKED = 3
    SERVING = 4
    LINGER = 5
    CLOSED = 6


class Limits(Protocol):
    """The options this layer needs."""

    @property
    def max_header_size(self) -> int: ...
    @property
    def max_payload_size(self) -> int: ...
    @property
    def client_timeout_secs(self) -> float: ...
    @property
    def client_keepalive_secs(self) -> float: ...


class Flow(Protocol):
    """The side that produces the answer; told when the client reads too slowly."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Exchange:
    """One request and the way to answer it. `body` must not be changed once served."""

    __slots__ = (
        "_connection",
        "body",
        "cancel",
        "head",
        "producer",
        "request_id",
        "started",
        "status",
        "transport",
    )

    def __init__(self, connection: Ingress, head: RequestHead, body: bytes | bytearray) -> None:
        self._connection = connection
        self.transport = connection.transport
        self.head = head
        self.body = body
        self.request_id = ""
        self.status = 0
        self.started = 0.0
        self.producer: Flow | None = None
        self.cancel: Callable[[], object] | None = None

    @property
    def gone(self) -> bool:
        """The client has left."""
        return self._connection.phase is Phase.CLOSED

    @property
    def paused(self) -> bool:
        """The client reads too slowly; do not produce."""
        return self._connection.paused

    def head_bytes(self, status: int, reason: str, headers: bytes, framing: bytes) -> bytes:
        """Status line and headers of the answer; notes the status."""
        self.status = status
        return b"HTTP/1.1 %d %s\r\n%s%s%s\r\n" % (
            status,
            reason.encode("latin-1"),
            headers,
            framing,
            self._connection.persistence(self.head),
        )

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """Send a whole answer and end the exchange."""
        framing = b"content-length: %d\r\n" % len(body)
        head = self.head_bytes(status, REASONS.get(status, ""), headers, framing)
        self.write(head if self.head.method == "HEAD" else head + body)
        self.finish()

    def write(self, data: bytes) -> None:
        """Send a part of the answer. A client that has left is sent nothing: uvloop takes a write to a closed transport for a
        fault of the caller, here of the worker's connection."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def fail(self, error: EpdRouterError) -> None:
        """Answer with an error object."""
        headers = b"content-type: application/json\r\nx-epd-router-error-code: %s\r\nx-request-id: %s\r\n" % (
            error.code.encode(),
            self.request_id.encode(),
        )
        if error.retry_after is not None:
            headers += b"retry-after: %d\r\n" % error.retry_after
        self.answer(error.status, headers, error.json())

    def close_after(self) -> None:
        """End the connection with this answer."""
        self._connection.close_after()

    def finish(self) -> None:
        """The answer is complete; the next request of the connection may be served."""
        self._connection.answered(self)

    def abort(self) -> None:
        """The answer cannot be completed: cut the connection so that the client notices."""
        self._connection.abort()


Handler = Callable[[Exchange], None]


class Ingress(asyncio.BufferedProtocol):
    """One client connection."""

    __slots__ = (
        "_body", "_checked", "_decoder", "_exchange", "_filled", "_handler", "_head", "_keep_alive", "_limits", "_parts",
        "_register", "_scratch", "_served", "_target", "_unregister", "_view", "paused", "phase", "transport",
    )  # fmt: skip

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        register: Callable[[Ingress], None],
        unregister: Callable[[Ingress], None],
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._register = register
        self._unregister = unregister
        self.phase = Phase.IDLE
        self.paused = False
        self._scratch = bytearray(SCRATCH)
        self._view = memoryview(self._scratch)
        self._filled = 0  # bytes of the scratch in use
        self._target: memoryview | None = None  # rest of the body still to be received
        self._head: RequestHead | None = None
        self._body = bytearray()
        self._decoder: ChunkedDecoder | None = None
        self._parts: list[bytes] = []
        self._exchange: Exchange | None = None
        self._keep_alive = True
        self._served = 0  # requests so far
        self._checked: tuple[Phase, float, int] = (Phase.CLOSED, 0.0, 0)  # last seen by the sweeper: nothing yet

    # --- transport events ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start waiting for a request."""
        self.transport = cast("asyncio.Transport", transport)
        self._register(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what is being served."""
        self.phase = Phase.CLOSED
        self._unregister(self)
        self._target = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.cancel is not None:
            exchange.cancel()

    def eof_received(self) -> bool:
        """A client that closes its sending side has left, as nginx sees it."""
        return False

    def pause_writing(self) -> None:
        """The client reads too slowly: stop the engine's socket."""
        self.paused = True
        if self._exchange is not None and self._exchange.producer is not None:
            self._exchange.producer.pause_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.paused = False
        if self._exchange is not None and self._exchange.producer is not None:
            self._exchange.producer.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: the body's own buffer, else the scratch."""
        if self._target is not None:
            return self._target
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived in what `get_buffer` gave."""
        if self._target is not None:
            self._target = self._target[nbytes:]
            if not self._target:
                self._target = None
                body, self._body = self._body, bytearray()
                self._serve(body)
            return
        if self.phase is Phase.LINGER:
            return
        self._filled += nbytes
        if self.phase is Phase.SERVING:
            if self._filled == len(self._scratch):
                self.transport.pause_reading()  # enough pipelined; `check` looks whether the client is still there
            return
        self._advance()

    # --- parsing ---

    def _advance(self) -> None:
        """Take as many steps as the scratch allows. A loop, so that pipelined errors cannot recurse."""
        try:
            while self._filled:
                if self.phase is Phase.IDLE:
                    self.phase = Phase.HEAD
                if self.phase is Phase.HEAD:
                    if not self._parse_head():
                        return
                elif self.phase is Phase.CHUNKED:
                    if not self._decode_chunks():
                        return
                else:
                    return
        except HttpError as error:
            self._refuse(from_core(error))
        except ClientError as error:
            self._refuse(error)

    def _parse_head(self) -> bool:
        head = parse_request_head(self._scratch, 0, self._filled, self._limits.max_header_size)
        if head is None:
            if self._filled == len(self._scratch):
                self._grow()
            return False
        self._head = head
        if head.chunked:
            self._consume(head.size)
            self._decoder = ChunkedDecoder(self._limits.max_payload_size)
            self.phase = Phase.CHUNKED
            if head.expect_continue and not self._filled:
                self.transport.write(CONTINUE)
            return True
        length = head.content_length or 0
        limit = self._limits.max_payload_size
        if length > limit:
            raise ClientError("payload_too_large", f"the body has {length} bytes, the limit is {limit}")
        end = head.size + length
        if end <= self._filled:
            body = bytes(self._view[head.size : end])
            self._consume(end)
            self._serve(body)
            return True
        self._receive(head, length)
        return False

    def _receive(self, head: RequestHead, length: int) -> None:
        """Point the socket at a buffer of the announced length."""
        start = self._filled - head.size
        self._body = bytearray(length)
        view = memoryview(self._body)
        view[:start] = self._view[head.size : self._filled]
        self._target = view[start:]
        self._filled = 0
        self.phase = Phase.BODY
        if head.expect_continue and start == 0:
            self.transport.write(CONTINUE)

    def _decode_chunks(self) -> bool:
        decoder = self._decoder
        assert decoder is not None
        self._parts.append(decoder.feed(self._view[: self._filled]))
        if not decoder.done:
            self._filled = 0
            return False
        self._consume(self._filled - decoder.excess)
        body = b"".join(self._parts)
        self._parts = []
        self._decoder = None
        self._serve(body)
        return True

    def _consume(self, size: int) -> None:
        rest = self._filled - size
        if rest:
            self._view[:rest] = bytes(self._view[size : self._filled])
        self._filled = rest

    def _grow(self) -> None:
        scratch = bytearray(min(len(self._scratch) * 4, self._limits.max_header_size + 4))
        if len(scratch) <= self._filled:
            raise ClientError("header_too_large", f"the head is longer than {self._limits.max_header_size} bytes")
        scratch[: self._filled] = self._view
        self._scratch = scratch
        self._view = memoryview(scratch)

    # --- serving ---

    def _serve(self, body: bytes | bytearray) -> None:
        assert self._head is not None
        self.phase = Phase.SERVING
        self._served += 1
        self._keep_alive = self._head.keep_alive
        self._exchange = Exchange(self, self._head, body)
        self._head = None
        self._handler(self._exchange)

    def persistence(self, head: RequestHead) -> bytes:
        """The `connection` header this answer needs, if any."""
        if not self._keep_alive:
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if head.minor == 0 else b""

    def close_after(self) -> None:
        """Do not serve another request on this connection."""
        self._keep_alive = False

    def answered(self, exchange: Exchange) -> None:
        """The current answer is written; go on with the next request."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        exchange.producer = None
        if self.phase is Phase.CLOSED:
            return
        if not self._keep_alive:
            self.transport.close()
            return
        self.phase = Phase.IDLE
        if self._filled:
            self.transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._advance)

    def close_idle(self) -> None:
        """Close unless a request is arriving or being served; after that one, close."""
        self._keep_alive = False
        if self.phase is Phase.IDLE:
            self.transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self.transport.abort()

    def _refuse(self, error: ClientError) -> None:
        """Answer what cannot be parsed; where the next request would start is unknown, so close.

        What the client still sends is read and dropped for a while: closing at once would reset the connection and the
        client would never see the answer.
        """
        self._keep_alive = False
        self._target = None
        self._filled = 0
        self.phase = Phase.LINGER
        body = error.json()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nx-epd-router-error-code: %s\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s"
            % (error.status, REASONS.get(error.status, "").encode(), error.code.encode(), len(body), body)
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    # --- deadlines ---

    def check(self, now: float) -> None:
        """Close idle connections, refuse slow senders, drop clients that stopped reading."""
        phase, since, progress = self._checked
        current = self._progress()
        waited = now - since
        if phase is not self.phase or self._moved(phase, abs(current - progress), waited):
            self._checked = (self.phase, now, current)
            return
        if phase is Phase.IDLE and waited > self._limits.client_keepalive_secs:
            self.transport.close()
        elif phase in {Phase.HEAD, Phase.BODY, Phase.CHUNKED} and waited > self._limits.client_timeout_secs:
            self._refuse(ClientError("request_timeout", "the request did not arrive in time"))
        elif (
            (phase is Phase.LINGER and waited > LINGER_SECS)
            or self._has_left()
            or (phase is Phase.SERVING and self.paused and waited > self._limits.client_timeout_secs)
        ):
            self.transport.abort()

    def _has_left(self) -> bool:
        """The client of a connection that is not read from has closed it."""
        if self.phase is not Phase.SERVING or self._filled < len(self._scratch):
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), HUNG_UP)
        return bool(poll.poll(0))

    def _moved(self, phase: Phase, progress: int, waited: float) -> bool:
        """The client gets a new span of time: for any progress, but for none of a head, and for enough of a body."""
        if phase in {Phase.BODY, Phase.CHUNKED}:
            return waited > self._limits.client_timeout_secs and progress >= MIN_RATE * waited
        return progress != 0 and phase is not Phase.HEAD

    def _progress(self) -> int:
        """A number that moves when the client does."""
        if self.phase is Phase.SERVING:
            return self.transport.get_write_buffer_size() if self.paused else -self._served
        if self.phase is Phase.IDLE:
            return self._served  # a busy connection may look idle at every tick
        if self._target is not None:
            return len(self._target)
        return sum(map(len, self._parts)) + self._filled
