"""Client keys in, worker keys out."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING

from epd_router.errors import ClientError

if TYPE_CHECKING:
    from epd_router._core import RequestHead
    from epd_router.options import Settings


def matches(shown: str | None, keys: tuple[str, ...]) -> bool:
    """`shown` is one of `keys`, compared in constant time."""
    token = (shown or "").removeprefix("Bearer ").strip().encode()
    return sum(hmac.compare_digest(token, key.encode()) for key in keys) > 0


def check_key(settings: Settings, head: RequestHead) -> None:
    """Raise ClientError `invalid_api_key` unless the client shows a configured key."""
    if settings.api_key and not matches(head.authorization or head.get("x-api-key"), settings.api_key):
        raise ClientError("invalid_api_key", "no valid API key")


def worker_authorization(settings: Settings) -> Callable[[RequestHead], bytes]:
    """The authorization header for workers: the configured key; else the client's own when the router asks for none,
    so that workers with keys keep working behind it; else nothing."""
    if settings.worker_api_key:
        line = b"authorization: Bearer %s\r\n" % settings.worker_api_key.encode("latin-1")
        return lambda head: line
    if settings.api_key:
        return lambda head: b""

    def passed_on(head: RequestHead) -> bytes:
        shown = head.authorization
        if shown is not None:
            return b"authorization: %s\r\n" % shown.encode("latin-1")
        key = head.get("x-api-key")
        return b"x-api-key: %s\r\n" % key.encode("latin-1") if key is not None else b""

    return passed_on
