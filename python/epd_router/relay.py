"""What receives a worker's answer: `Collect` keeps it, `Relay` passes it to the client as it comes.

`Relay` commits at the first sign of a right answer: a head that is no failure and, for an event stream, a first event
that is no error (engines report failures inside a 200 stream). Before that nothing has reached the client and the request
can be sent elsewhere; after it a failure becomes one error event and the end of the connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson

from epd_router._core import ChunkedDecoder
from epd_router.upstream import BrokenError, UpstreamError

if TYPE_CHECKING:
    from epd_router._core import Framer, ResponseHead
    from epd_router.ingress import Exchange
    from epd_router.upstream import UpstreamConnection

MAX_REPLY = 64 << 20  # bytes of a kept answer
RETRYABLE = frozenset({429, 500, 502, 503, 504})


class Collect:
    """Keeps a whole answer."""

    __slots__ = ("_decoder", "_parts", "_size", "done", "head")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start over for another try."""
        self.done: asyncio.Future[UpstreamError | None] = asyncio.get_running_loop().create_future()
        self.head: ResponseHead | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._decoder: ChunkedDecoder | None = None

    def on_head(self, head: ResponseHead, framer: Framer, flow: UpstreamConnection) -> None:
        """Note the head."""
        self.head = head
        if head.chunked:
            self._decoder = ChunkedDecoder(MAX_REPLY)

    def on_body(self, data: bytes) -> None:
        """Keep the payload."""
        if self._decoder is not None:
            data = self._decoder.feed(data)
        self._size += len(data)
        if self._size <= MAX_REPLY:
            self._parts.append(data)

    def on_end(self) -> None:
        """The answer is whole."""
        resolve(self.done, None if self._size <= MAX_REPLY else BrokenError("the answer is too long"))

    def on_failure(self, error: UpstreamError) -> None:
        """The answer is not whole."""
        resolve(self.done, error)

    @property
    def status(self) -> int:
        """Status of the answer, 0 without one."""
        return 0 if self.head is None else self.head.status

    @property
    def body(self) -> bytes:
        """Payload so far."""
        return b"".join(self._parts)


class Relay:
    """Passes an answer to the client. Its state after `done`:

    - `committed`: the client has (part of) the answer, the exchange is over;
    - not `committed`, `head` set: a failure answer of the worker, kept in `status` and `body`;
    - not `committed`, no `head`: no answer.
    """

    __slots__ = (
        "_code", "_decoder", "_exchange", "_extra", "_flow", "_framer", "_keep_failures", "_kept", "_streaming", "_write",
        "committed", "done", "first_byte_at", "head",
    )  # fmt: skip

    def __init__(
        self, exchange: Exchange, extra_headers: bytes, *, keep_failures: bool = True, code: str = "worker_failed"
    ) -> None:
        self._code = code  # of an error in mid-stream
        self._keep_failures = keep_failures
        self._exchange = exchange
        self._write = exchange.write
        self._extra = extra_headers
        self.reset()

    def reset(self) -> None:
        """Start over for another try."""
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[UpstreamError | None] = loop.create_future()
        self.head: ResponseHead | None = None
        self.committed = False
        self.first_byte_at = 0.0
        self._framer: Framer | None = None
        self._flow: UpstreamConnection | None = None
        self._kept: Collect | None = None
        self._streaming = False
        self._decoder: ChunkedDecoder | None = None

    def on_head(self, head: ResponseHead, framer: Framer, flow: UpstreamConnection) -> None:
        """Decide between relaying and keeping."""
        self.head = head
        self._framer = framer
        self._flow = flow
        self._streaming = head.event_stream
        if self._keep_failures and head.status in RETRYABLE:
            self._keep()

    def on_body(self, data: bytes) -> None:
        """The hot path once committed."""
        if self.committed:
            self._write(data if self._decoder is None else self._decoder.feed(data))
        elif self._kept is not None:
            self._kept.on_body(data)
        elif self._streaming and self._begins_with_error():
            self._keep()
            self.on_body(data)
        else:
            self._commit(data)

    def _begins_with_error(self) -> bool:
        framer = self._framer
        return framer is not None and framer.error_event is not None and framer.error_event == framer.first_event

    def _keep(self) -> None:
        assert self.head is not None
        assert self._framer is not None
        assert self._flow is not None
        self._kept = Collect()
        self._kept.on_head(self.head, self._framer, self._flow)

    def _commit(self, data: bytes) -> None:
        """Send the head together with the first bytes."""
        head = self.head
        assert head is not None
        exchange = self._exchange
        self.committed = True
        self.first_byte_at = asyncio.get_running_loop().time()
        if head.content_length is not None:
            framing = b"content-length: %d\r\n" % head.content_length
        elif head.chunked and exchange.head.minor:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing = b""
            exchange.close_after()
            if head.chunked:
                self._decoder = ChunkedDecoder(1 << 62)
                data = self._decoder.feed(data)
        exchange.producer = self._flow
        self._write(exchange.head_bytes(head.status, head.reason, head.forward + self._extra, framing) + data)
        if exchange.paused and self._flow is not None:
            self._flow.pause_reading()

    def on_end(self) -> None:
        """The answer is whole."""
        if not self.committed and self._kept is None:
            self._commit(b"")
        if self.committed:
            self._exchange.finish()
        resolve(self.done, None)

    def on_failure(self, error: UpstreamError) -> None:
        """Too late to go elsewhere once committed: say so in the stream, or cut the connection."""
        if self.committed:
            self._end_broken(error)
        resolve(self.done, error)

    def _end_broken(self, error: UpstreamError) -> None:
        exchange = self._exchange
        if not self._streaming:
            exchange.abort()
            return
        exchange.close_after()
        code = "stage_timeout" if error.cause == "timeout" else self._code
        event = b"data: %s\n\n" % orjson.dumps(
            {"error": {"message": str(error), "type": "server_error", "param": None, "code": code}}
        )
        chunked = self.head is not None and self.head.chunked and self._decoder is None
        self._write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event) if chunked else event)
        exchange.finish()

    @property
    def kept_body(self) -> bytes:
        """Payload of an answer that was kept because it is a failure."""
        return b"" if self._kept is None else self._kept.body

    @property
    def stream_error(self) -> bytes | None:
        """The error event that a stream began with."""
        return self._framer.error_event if self._framer is not None and self._begins_with_error() else None


def resolve(future: asyncio.Future[UpstreamError | None], value: UpstreamError | None) -> None:
    """Set a result unless the waiter has left."""
    if not future.done():
        future.set_result(value)
