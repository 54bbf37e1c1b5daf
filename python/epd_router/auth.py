"""Client keys in, worker keys out."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING

from epd_router.errors import ClientError

if TYPE_CHECKING:
    from epd_router._core import RequestHead
    from epd_router.options import Settings


def shown(header: Callable[[str], str | None]) -> str:
    """The key that a request shows as bearer token, else as `x-api-key`; '' without one."""
    scheme, _, token = (header("authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else header("x-api-key") or ""


def check_key(header: Callable[[str], str | None], keys: tuple[str, ...], what: str = "API key") -> None:
    """Raise ClientError `invalid_api_key` unless a request with these headers shows one of `keys`, where there are any.
    Compared in constant time."""
    # Headers come as latin-1 from the core and with surrogates from aiohttp; keys are ASCII or never match.
    token = shown(header).encode("utf-8", "surrogateescape") if keys else b""
    if keys and not sum(hmac.compare_digest(token, known.encode()) for known in keys):
        raise ClientError("invalid_api_key", f"no valid {what}")


def worker_authorization(settings: Settings) -> Callable[[RequestHead], bytes]:
    """The authorization header for workers: the configured key; else the client's own when the router asks for none,
    so that workers with keys keep working behind it; else nothing."""
    if settings.worker_api_key:
        line = b"authorization: Bearer %s\r\n" % settings.worker_api_key.encode()
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
