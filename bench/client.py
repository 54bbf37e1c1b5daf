"""Client side of the benchmark: checked keep-alive connections on raw uvloop protocols, and their closed loops."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import engine
import work

if TYPE_CHECKING:
    from collections.abc import Callable

ROOM = 256 * 1024
GRACE = 30.0
EVENTS = engine.CHUNKS + 1


class Answer:
    """What one connection learned about its last request."""

    def __init__(self) -> None:
        self.started = 0.0
        self.took = 0.0
        self.status = 0
        self.length = 0
        self.chunk_delays: list[float] = []
        self.problem = ""


class Connection(asyncio.BufferedProtocol):
    """One keep-alive connection; calls `on_answer` when an answer is complete or the connection broke."""

    def __init__(self, on_answer: Callable[[Connection], None], stream: bool) -> None:
        self.on_answer = on_answer
        self.stream = stream
        self.buffer = bytearray(ROOM)
        self.filled = 0
        self.body_at = 0
        self.length = -1
        self.scanned = 0
        self.events = 0
        self.answer = Answer()
        self.busy = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.busy:
            self.finish(f"connection lost: {exc}")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)[self.filled :]

    def send(self, data: bytes | bytearray) -> None:
        """Send one request; its clock starts here."""
        self.filled = self.body_at = self.scanned = self.events = 0
        self.length = -1
        self.answer = Answer()
        self.busy = True
        self.answer.started = time.perf_counter()
        if self.transport is None:
            self.finish("not connected")
        else:
            self.transport.write(data)

    def buffer_updated(self, nbytes: int) -> None:
        self.filled += nbytes
        if not self.busy:
            return
        if self.filled == len(self.buffer):
            self.finish("answer larger than any answer of the engine")
            return
        if not self.body_at and not self.take_head():
            return
        if self.length >= 0:
            if self.filled - self.body_at >= self.length:
                self.finish("")
            return
        if self.stream:
            self.take_events()
        if self.buffer.startswith(b"0\r\n\r\n", self.filled - 5):
            self.finish_chunked()

    def take_head(self) -> bool:
        end = self.buffer.find(b"\r\n\r\n", 0, self.filled)
        if end < 0:
            return False
        self.body_at = self.scanned = end + 4
        head = bytes(self.buffer[:end]).lower()
        self.answer.status = int(head[9:12])
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            self.length = int(head[at + 17 :].split(b"\r\n", 1)[0])
        return True

    def take_events(self) -> None:
        """Note for each event how long ago the engine stamped it."""
        now = time.monotonic()
        at = self.buffer.find(engine.STAMP, self.scanned, self.filled)
        while 0 <= at <= self.filled - len(engine.STAMP) - engine.STAMP_DIGITS:
            start = at + len(engine.STAMP)
            stamp = self.buffer[start : start + engine.STAMP_DIGITS]
            self.answer.chunk_delays.append(now - float(stamp))
            self.events += 1
            self.scanned = start + engine.STAMP_DIGITS
            at = self.buffer.find(engine.STAMP, self.scanned, self.filled)

    def finish_chunked(self) -> None:
        raw = bytes(self.buffer[self.body_at : self.filled])
        if self.stream:
            complete = self.events == engine.CHUNKS and raw.count(b"data: ") == EVENTS and b"[DONE]" in raw[-64:]
            self.finish("" if complete else f"stream with {self.events} events")
            return
        self.length = len(dechunk(raw))
        self.finish("")

    def finish(self, problem: str) -> None:
        self.busy = False
        self.answer.took = time.perf_counter() - self.answer.started
        self.answer.length = self.length
        self.answer.problem = problem or self.judge()
        self.on_answer(self)

    def judge(self) -> str:
        """Give what is wrong with a complete answer, or nothing."""
        if self.stream and self.length >= 0 and self.answer.status == 200:
            return "a whole answer where a stream was asked for"
        if self.answer.status != 200:
            return f"status {self.answer.status}: {bytes(self.buffer[self.body_at : self.body_at + 300])!r}"
        return ""


def dechunk(raw: bytes) -> bytes:
    """Give the payload of a complete chunked body."""
    parts: list[bytes] = []
    at = 0
    while True:
        end = raw.index(b"\r\n", at)
        size = int(raw[at:end].split(b";")[0], 16)
        if not size:
            return b"".join(parts)
        parts.append(raw[end + 2 : end + 2 + size])
        at = end + 4 + size


class Tally:
    """Results of one measurement."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.chunk_delays: list[float] = []
        self.problems: list[str] = []

    def add(self, answer: Answer, expected_length: int) -> None:
        if not answer.problem and expected_length >= 0 and answer.length != expected_length:
            answer.problem = f"body of {answer.length} bytes, expected {expected_length}"
        if answer.problem:
            self.problems.append(answer.problem)
            return
        self.latencies.append(answer.took)
        self.chunk_delays += answer.chunk_delays

    def report(self, seconds: float) -> dict[str, Any]:
        delays = self.chunk_delays or self.latencies
        result: dict[str, Any] = {"count": len(self.latencies), "chunks": len(self.chunk_delays), "seconds": seconds}
        result |= {"errors": len(self.problems), "problem": self.problems[0] if self.problems else ""}
        result |= {"p50_ms": percentile(delays, 0.5), "p99_ms": percentile(delays, 0.99)}
        return result


def percentile(values: list[float], share: float) -> float:
    """Give a percentile in milliseconds (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000 if ordered else 0.0


class Session:
    """Open connections for one row: each sends its next request as soon as its answer is there."""

    expected_length = len(engine.ANSWER_BODY)

    def __init__(self, row: work.Row, loop: asyncio.AbstractEventLoop) -> None:
        self.row = row
        self.loop = loop
        self.tally = Tally()
        self.connections: list[Connection] = []
        self.templates: dict[Connection, work.Template] = {}
        self.deadline = 0.0
        self.active = 0
        self.idle = asyncio.Event()
        if row.stream:
            self.expected_length = -1

    async def connect(self, port: int, on_answer: Callable[[Connection], None]) -> Connection:
        stream = self.row.stream
        _, connection = await self.loop.create_connection(lambda: Connection(on_answer, stream), "127.0.0.1", port)
        self.connections.append(connection)
        return connection

    async def open(self, ports: dict[str, int], first: int) -> None:
        for template in work.templates(self.row, ports["front"], first):
            connection = await self.connect(ports["front"], self.answered)
            self.templates[connection] = template

    def start(self) -> None:
        """Start every connection's loop."""
        for connection, template in self.templates.items():
            connection.send(template.next())

    async def run(self, seconds: float) -> dict[str, Any]:
        self.tally = Tally()
        self.idle.clear()
        started = time.perf_counter()
        self.deadline = started + seconds
        self.active = self.row.connections
        self.start()
        try:
            await asyncio.wait_for(self.idle.wait(), seconds + GRACE)
        except asyncio.TimeoutError:
            self.tally.problems.append(f"{self.active} requests unanswered after {GRACE:.0f} s")
        return self.tally.report(time.perf_counter() - started)

    def answered(self, connection: Connection) -> None:
        answer = connection.answer
        self.tally.add(answer, self.expected_length)
        if answer.problem or time.perf_counter() >= self.deadline:
            self.stop_one()
        else:
            connection.send(self.templates[connection].next())

    def stop_one(self) -> None:
        self.active -= 1
        if self.active <= 0:
            self.idle.set()

    async def close(self) -> None:
        for connection in self.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)
