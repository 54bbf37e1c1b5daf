"""The router as users run it: a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from types import TracebackType

from tests.engines.fleet import free_port


class Router:
    """Starts `epd-router` and waits until it is ready."""

    def __init__(self, *arguments: str) -> None:
        self.port = free_port()
        self._arguments = arguments

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Router:
        command = [sys.executable, "-m", "epd_router", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--mm-allow-private-media-hosts", "--log-requests", *self._arguments]
        self._process = subprocess.Popen(command)
        self.wait_ready(60)
        return self

    def wait_ready(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(self.url + "/readiness", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise TimeoutError("the router does not get ready")

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(60)
