"""Calls that block the event loop, found as they happen: no clock is read, so a busy machine is no fault.

Python raises an audit event for opening files, resolving names, connecting, sleeping and starting processes; what it does
not announce (reading from blocking sockets, waiting for threads) is wrapped. A call counts when a loop runs in its thread
and a frame of the watched code is on the stack.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

EVENTS = {
    "open",
    "time.sleep",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "subprocess.Popen",
    "os.system",
    "os.listdir",
    "shutil",
}
SOCKET_CALLS = ("accept", "connect", "recv", "recv_into", "send", "sendall", "sendto")
# Done once, when a module or a thread starts, and not for each request.
EXCUSED = {("<frozen importlib._bootstrap>", "_find_and_load"), (threading.__file__, "start")}


class Watch:
    """Notes blocking calls below code of `root`, other than that of `exempt`."""

    def __init__(self, root: Path, *exempt: Path) -> None:
        self._root = str(root)
        self._exempt = tuple(map(str, exempt))
        self.found: list[str] = []

    def note(self, what: str) -> None:
        if asyncio._get_running_loop() is None:
            return
        frame: FrameType | None = sys._getframe(1)
        stack = [what]
        ours = False
        while frame is not None:
            file = frame.f_code.co_filename
            if (file, frame.f_code.co_name) in EXCUSED:
                return
            if file.startswith(self._root):
                if file.startswith(self._exempt):
                    return
                ours = True
            stack.append(f"  {file}:{frame.f_lineno} {frame.f_code.co_name}")
            frame = frame.f_back
        if ours:
            self.found.append("\n".join(stack))


_watches: list[Watch] = []


def _note(what: str) -> None:
    for watch in tuple(_watches):
        watch.note(what)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watches and event in EVENTS:
        _note(f"{event} {arguments}")


@functools.cache
def _install() -> None:
    """Once for the process: an audit hook stays."""
    sys.addaudithook(_audit)
    for name in SOCKET_CALLS:
        _wrap(socket.socket, name, lambda sock, *_: sock.gettimeout() != 0)
    _wrap(concurrent.futures.Future, "result", lambda future, *_: not future.done())
    _wrap(threading.Condition, "wait", lambda _, timeout=None: timeout != 0)
    if sys.version_info < (3, 13):  # not announced before
        _wrap(time, "sleep", lambda *_: True)


def _wrap(owner: Any, name: str, blocks: Callable[..., bool]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        if _watches and blocks(*arguments):
            _note(f"{getattr(owner, '__name__', owner)}.{name}")
        return original(*arguments, **named)

    setattr(owner, name, wrapper)


@contextlib.contextmanager
def watching(root: Path, *exempt: Path) -> Iterator[Watch]:
    """Watch for as long as the block lasts; `found` says what was seen."""
    _install()
    watch = Watch(root, *exempt)
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.remove(watch)
