"""KV events over ZMQ: a PUB socket for what happens, a ROUTER socket for what happened.

A message is topic, sequence number (u64, big endian, from 0) and a msgpack array of time, events and rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from epd_router.mock.config import EngineConfig

END = (-1).to_bytes(8, "big", signed=True)
BUFFER_QUEUE = 100_000


class Publisher:
    """The events of one engine process. Without an endpoint nothing is sent."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._topic = config.kv_events_topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.kv_events_buffer)
        self._next = 0
        self._context: zmq.asyncio.Context | None = None
        self._pub: zmq.asyncio.Socket | None = None
        self._server: asyncio.Task[None] | None = None
        self.endpoint = ""
        self.replay_endpoint = ""

    def start(self) -> None:
        """Bind the sockets."""
        if not self._config.kv_events_endpoint:
            return
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self.endpoint = _bind(self._pub, self._config.kv_events_endpoint)
        if self._config.kv_events_replay_endpoint:
            router = self._context.socket(zmq.ROUTER)
            self.replay_endpoint = _bind(router, self._config.kv_events_replay_endpoint)
            self._server = asyncio.get_running_loop().create_task(self._replay(router))

    async def stop(self) -> None:
        """Close the sockets."""
        if self._server is not None:
            self._server.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._server
        if self._context is not None:
            self._context.destroy(linger=0)
        self._context = self._pub = self._server = None

    def publish(self, events: list[dict[str, Any]]) -> None:
        """Send a batch."""
        if self._pub is None or not events:
            return
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        number, self._next = self._next, self._next + 1
        self._kept.append((number, payload))
        with contextlib.suppress(zmq.Again):
            # The plain socket: PUB never blocks, it drops what a subscriber does not take.
            zmq.Socket.shadow(self._pub).send_multipart([self._topic, number.to_bytes(8, "big"), payload], zmq.NOBLOCK)

    def sources(self) -> dict[str, Any]:
        """The answer of `GET /kv_event_sources`."""
        if self._pub is None:
            return {}
        config = self._config
        source = {
            "endpoint": self.endpoint, "replay_endpoint": self.replay_endpoint or None, "topic": config.kv_events_topic,
            "buffer_steps": config.kv_events_buffer, "hwm": BUFFER_QUEUE, "max_queue_size": BUFFER_QUEUE, "publisher": "zmq",
        }  # fmt: skip
        return {"0": source}

    async def _replay(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3:
                continue
            client, start = frames[0], int.from_bytes(frames[2], "big")
            for number, payload in list(self._kept):
                if number >= start:
                    await router.send_multipart([client, b"", self._topic, number.to_bytes(8, "big"), payload])
            await router.send_multipart([client, b"", b"", END, b""])


def _bind(socket: zmq.asyncio.Socket, endpoint: str) -> str:
    """Bind and return the endpoint with its real port."""
    socket.bind(endpoint)
    bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return f"tcp://*:{bound.rpartition(':')[2]}" if "://*" in endpoint else bound
