"""Connections to workers, against a server of a few lines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from epd_router.deadlines import Sweeper
from epd_router.relay import Collect
from epd_router.upstream import Endpoint, dispatch

REQUEST = [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"]
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@contextlib.asynccontextmanager
async def endpoint(answers: asyncio.Queue[bytes]) -> AsyncIterator[tuple[Endpoint, Sweeper]]:
    """A server that gives one answer of the queue for each request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(await answers.get())
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.release()

    ended = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sweeper = Sweeper(loop, 0.05)
    sweeper.start()
    place = Endpoint(f"http://127.0.0.1:{port}", sweeper, connect_timeout=2.0, keepalive=60.0)
    yield place, sweeper
    place.close()
    await asyncio.wait_for(ended.acquire(), 5)
    sweeper.stop()
    server.close()


async def test_a_cancel_after_the_answer_leaves_the_next_request_of_the_connection_alone() -> None:
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    next_leg = Collect()

    class Leaving(Collect):
        """Its waiter is cancelled when the answer is complete and the connection has been taken by another request."""

        def on_end(self) -> None:
            super().on_end()
            first.cancel()
            connection = place.idle()
            assert connection is not None
            connection.send(REQUEST, next_leg, (loop.time() + 5, 5), head_only=False)

    async with endpoint(answers) as (place, _):
        first = loop.create_task(dispatch(place, REQUEST, Leaving(), (loop.time() + 5, 5)))
        answers.put_nowait(ANSWER)
        with contextlib.suppress(asyncio.CancelledError):
            await first
        answers.put_nowait(ANSWER)
        assert await asyncio.wait_for(next_leg.done, 5) is None
        assert next_leg.body == b"ok"


async def test_a_connection_lost_before_the_request_is_a_failure_not_silence() -> None:
    loop = asyncio.get_running_loop()
    async with endpoint(asyncio.Queue()) as (place, sweeper):
        connection = await place.connect()
        connection.transport.abort()
        await asyncio.sleep(0)
        leg = Collect()
        connection.send(REQUEST, leg, (loop.time() + 5, 5), head_only=False)
        error = await asyncio.wait_for(leg.done, 5)
        assert error is not None
        assert error.cause == "broken"
        assert len(sweeper) == 0
