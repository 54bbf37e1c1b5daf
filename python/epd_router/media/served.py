"""Media that workers on other hosts fetch from this router: `/media/<content>/<expiry>/<signature>`.

The signature is this process's own, over content and expiry: nobody reads what nobody handed to them, and a URL in a
worker's log is of no use for long.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

PATH = "/media"
LIFETIME = 900  # seconds a URL is good for: longer than any wait in a worker's queue that is not a time-out anyway


class Served:
    """One content, served until `release`."""

    __slots__ = ("_drop", "data", "url", "users")

    def __init__(self, data: bytes, url: bytes, drop: Callable[[], None]) -> None:
        self.data = data
        self.url = url
        self.users = 1
        self._drop = drop

    def release(self) -> None:
        """Whoever was handed the URL has answered."""
        self.users -= 1
        if not self.users:
            self._drop()


class ServedMedia:
    """What is being served now, by content."""

    def __init__(self, base_url: str, clock: Callable[[], float] = time.time) -> None:
        self._base = base_url.rstrip("/")
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._served: dict[str, Served] = {}

    def __len__(self) -> int:
        return len(self._served)

    def take(self, content: str) -> Served | None:
        """Serve a content that is served already for one more."""
        served = self._served.get(content)
        if served is None:
            return None
        served.users += 1
        served.url = self._url(content)
        return served

    def put(self, content: str, data: bytes) -> Served:
        """Serve these bytes."""
        served = Served(data, self._url(content), lambda: self._drop(content))
        self._served[content] = served
        return served

    def _drop(self, content: str) -> None:
        del self._served[content]

    def get(self, content: str, expiry: str, signature: str) -> Served | None:
        """What a URL stands for, if it is one of ours and still good."""
        if not hmac.compare_digest(self._sign(content, expiry).encode(), signature.encode()):
            return None
        return self._served.get(content) if int(expiry) >= self._clock() else None

    def _url(self, content: str) -> bytes:
        expiry = str(int(self._clock()) + LIFETIME)
        return f"{self._base}{PATH}/{content}/{expiry}/{self._sign(content, expiry)}".encode()

    def _sign(self, content: str, expiry: str) -> str:
        return hmac.new(self._key, f"{content}/{expiry}".encode(), hashlib.sha256).hexdigest()
