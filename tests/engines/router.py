"""The router as users run it: a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from .fleet import free_port

READY_SECONDS = 60


class Router:
    """A running `epd-router`."""

    def __init__(self, log: Path, *arguments: str, port: int = 0) -> None:
        self.port = port or free_port()
        self.log = log
        command = [str(Path(sys.executable).with_name("epd-router")), "--host", "127.0.0.1", "--port", str(self.port)]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, "--mm-allow-private-media-hosts", *arguments], stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readiness", timeout=5):
                return True
        except OSError:
            return False

    def metric(self, sample: str) -> float:
        """A sample by name and labels as the exposition spells them; 0 when it is not there."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample + " "))

    def wait(self, seconds: float = READY_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not self.ready:
            if self.process.poll() is not None or time.monotonic() > end:
                raise TimeoutError(f"the router is not ready:\n{self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def routing(log: Path, *arguments: str, port: int = 0) -> Iterator[Router]:
    """A router that is ready."""
    router = Router(log, *arguments, port=port)
    try:
        router.wait()
        yield router
    finally:
        router.stop()
