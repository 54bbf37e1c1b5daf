"""A mock engine server. It punishes what a real engine would punish: a reference to an embedding that is missing or half
written, or a decode without blocks and without media, kills it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import time
from collections.abc import Coroutine
from typing import Any

import aiohttp
from aiohttp import web

from epd_router.mock import ec, kv, server
from epd_router.mock.config import EngineConfig
from epd_router.mock.faults import FOREVER, Fault
from epd_router.mock.memory import Memory
from epd_router.mock.stores import Shared


class Engine:
    """One mock engine. Start it on a running loop."""

    session: aiohttp.ClientSession
    memory: Memory

    def __init__(self, config: EngineConfig, shared: Shared | None = None) -> None:
        self.config = config
        self.shared = shared or Shared()
        self.requests: collections.deque[dict[str, Any]] = collections.deque(maxlen=1000)
        self.faults: list[Fault] = []
        self.cancelled = 0
        self.died = 0
        self.died_of = ""
        self.active = 0
        self.port = 0
        self.bootstrap = 0
        self.dead = False
        self.ended = asyncio.Event()
        self.works: set[asyncio.Task[web.StreamResponse]] = set()
        self.kv = kv.connector(self)
        self.ec = ec.connector(self)
        self._host = "127.0.0.1"
        self._ready_at = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._listeners: list[asyncio.Server] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def consumer_zmq(self) -> str:
        """Where an encoder with Mooncake pushes to."""
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def engine_id(self) -> str:
        """Its id in KV transfers."""
        return self.memory.engine_id

    @property
    def pinned_blocks(self) -> int:
        """Blocks that a prefill engine keeps for decode."""
        return self.memory.leases.pinned

    @property
    def starting(self) -> bool:
        """Whether the model is still being loaded."""
        return time.monotonic() < self._ready_at

    # --- life ---

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Begin with nothing remembered, and listen."""
        self._host = host
        self.dead = False
        self.ended.clear()
        self.memory = Memory(self.config)
        self.memory.events.start()
        self._ready_at = time.monotonic() + self.config.slow_start_ms / 1000
        self.session = aiohttp.ClientSession()
        self._runner = web.AppRunner(
            server.application(self), access_log=None, keepalive_timeout=5.0, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await self._listen(port or self.port)

    async def _listen(self, port: int) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        listener = socket.create_server((self._host, port), reuse_port=False, backlog=1024)
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._listeners.append(await loop.create_server(self._runner.server, sock=listener))
        if self.config.kv_connector == "mooncake" and self.config.role == "prefill":
            listener = socket.create_server((self._host, self.config.bootstrap_port or self.bootstrap), backlog=64)
            self.bootstrap = listener.getsockname()[1]
            self._listeners.append(await loop.create_server(self._runner.server, sock=listener))

    async def stop(self) -> None:
        """Stop listening and drop every connection and all that runs."""
        self._close()
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for task in [*self.works, *self._tasks]:
            task.cancel()
        await asyncio.gather(*self.works, *self._tasks, return_exceptions=True)
        await runner.cleanup()
        await self.session.close()
        await self.memory.events.stop()

    async def restart(self) -> None:
        """Come back on the same port with nothing remembered."""
        if self._ending is not None:
            await asyncio.wait([self._ending])
        await self.stop()
        await self.start(self._host, self.port)

    def die(self, reason: str = "") -> None:
        """The engine process ends: what runs fails, health says 503 for a moment, then nobody listens."""
        if self.dead:
            return
        self.dead = True
        self.died += 1
        self.died_of = reason
        current = asyncio.current_task()
        for work in self.works:
            if work is not current:
                work.cancel()
        self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        await asyncio.sleep(self.config.death_ms / 1000)
        await self.stop()
        self.ended.set()

    # --- faults ---

    def fault(self, kind: str, times: int = FOREVER, path: str | None = None, ms: float = 0.0) -> None:
        """Make something go wrong from now on; `faults.KINDS` says what."""
        self.add_fault(Fault(kind, times, path, ms))

    def add_fault(self, fault: Fault) -> None:
        """Make something go wrong from now on."""
        if fault.kind == "refuse":
            self._close()
            self.cut_all()
            if fault.ms:
                self.background(self._open_after(fault.ms))
        elif fault.kind == "slow_start":
            self._ready_at = time.monotonic() + (fault.ms or 1000.0) / 1000
        else:
            self.faults.append(fault)

    async def clear_faults(self) -> None:
        """Nothing goes wrong any more."""
        self.faults.clear()
        self._ready_at = 0.0
        if not self._listeners and self._runner is not None:
            await self._listen(self.port)

    def cut(self, request: web.Request) -> None:
        """Reset the connection of a request and stop working on it."""
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError

    def cut_all(self) -> None:
        """Reset every connection."""
        if self._runner is not None and self._runner.server is not None:
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()

    def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def _open_after(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000)
        await self._listen(self.port)

    # --- work ---

    async def sleep(self, ms: float) -> None:
        """Let work take its time."""
        if ms > 0:
            await asyncio.sleep(ms / 1000)

    async def encode(self, item: Any) -> None:
        """Run the encoder, one picture after the other; known ones cost nothing."""
        memory = self.memory.embeddings
        if memory.get(item.id) is None:
            async with memory.encoder:
                if memory.get(item.id) is None:
                    await self.sleep(self.config.encode_ms)
                    memory.put(item.id, ec.embedding(item))

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that outlives its request."""
        self.spawn(work)  # type: ignore[unused-awaitable]

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something that outlives its request, and may be waited for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait_end(self) -> None:
        """Wait until a dead engine's server is gone."""
        if self._ending is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._ending
