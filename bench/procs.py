"""Processes of a run: start, readiness, and what a whole process tree has used."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pathlib import Path

CPU_CLOCK_OF_PROCESS = 2
STOP_SECONDS = 5.0


def free_ports(count: int) -> list[int]:
    """Give ports that nothing listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, so that its whole tree can be ended by id."""
    with log.open("wb") as sink:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and everything that it started."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
            return


def status_of(port: int, path: str) -> int:
    """Give the status of a GET, 0 when nothing answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def wait_ready(process: subprocess.Popen[bytes], port: int, path: str, seconds: float) -> bool:
    """Wait until a GET gives 200; false when the process ends or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if status_of(port, path) == 200:
            return True
        time.sleep(0.1)
    return False


def tree(pid: int) -> list[psutil.Process]:
    """Give a process and all below it."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """Give user and system time of a process tree.

    The process CPU clock counts nanoseconds and keeps what ended threads used; /proc/PID/stat counts the same in 10 ms ticks.
    """
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            total += time.clock_gettime(~process.pid << 3 | CPU_CLOCK_OF_PROCESS)
    return total


def rss_mb(pid: int) -> float:
    """Give the resident memory of a process tree in MB."""
    return sum(process.memory_info().rss for process in tree(pid)) / 1e6
