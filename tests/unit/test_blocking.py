"""The detector of blocking calls sees them, and only them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.blocking import watching

HERE = Path(__file__)


def receive() -> None:
    one, other = socket.socketpair()
    with one, other:
        other.send(b"x")
        one.recv(1)


def connect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        pass


def wait_for_a_thread() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 0.05).result()


BLOCKING: list[Callable[[], object]] = [
    lambda: time.sleep(0),
    lambda: HERE.read_bytes(),
    lambda: socket.getaddrinfo("127.0.0.1", 1),
    lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    lambda: threading.Event().wait(0.001),
    receive,
    connect,
    wait_for_a_thread,
]


@pytest.mark.parametrize("call", BLOCKING, ids=range(len(BLOCKING)))
async def test_a_blocking_call_on_the_loop_is_seen(call: Callable[[], object]) -> None:
    with watching(HERE.parent) as watch:
        call()
    assert watch.found


@pytest.mark.parametrize("call", BLOCKING, ids=range(len(BLOCKING)))
async def test_it_is_not_counted_in_another_thread_or_in_code_that_is_not_watched(call: Callable[[], object]) -> None:
    with watching(HERE.parent) as watch:
        await asyncio.to_thread(call)
    assert not watch.found
    with watching(HERE.parent / "elsewhere") as watch:
        call()
    assert not watch.found
    with watching(HERE.parent, HERE) as watch:
        call()
    assert not watch.found


def test_it_is_not_counted_without_a_loop() -> None:
    with watching(HERE.parent) as watch:
        HERE.read_bytes()
    assert not watch.found


async def test_what_asyncio_does_is_not_counted() -> None:
    with watching(HERE.parent) as watch:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        await asyncio.to_thread(HERE.read_bytes)
        await asyncio.sleep(0.001)
    assert not watch.found
