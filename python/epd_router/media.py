"""Syntax checks for media URLs, before anything is fetched from them."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from epd_router.errors import MediaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_router._core import Item
    from epd_router.options import Settings

LOCAL_NAMES = ("localhost", ".localhost", ".local", ".internal")


class UrlGuard:
    """Refuses media URLs that point where the operator did not allow."""

    def __init__(self, settings: Settings) -> None:
        self._domains = tuple(domain.lower().lstrip(".") for domain in settings.mm_allowed_media_domains)
        self._private = settings.mm_allow_private_media_hosts
        self._images = settings.mm_per_request_image_limit
        self._trusted = settings.trust_client_transfer_params

    def check(self, items: Sequence[Item]) -> None:
        """Raise MediaError naming the first media part that is not acceptable."""
        images = 0
        for item in items:
            images += item.modality == "image"
            if item.source in {"http", "other"}:
                self._check_url(item)
            elif item.source == "none":
                raise MediaError("invalid_value", f"{item.param} holds no media", param=item.param)
            elif item.source == "embeds" and not self._trusted:
                raise MediaError("transfer_params_not_allowed", f"{item.param} holds precomputed embeddings", param=item.param)
        if images > self._images:
            raise MediaError("invalid_value", f"{images} pictures, the limit is {self._images}", param="messages")

    def _check_url(self, item: Item) -> None:
        if reason := self.refusal(item.url or ""):
            raise MediaError("media_not_allowed", f"{item.param}: {reason}", param=item.param)

    def refusal(self, url: str) -> str:
        """Why a URL may not be fetched, or ''."""
        try:
            parts = urlsplit(url.strip())
            host = (parts.hostname or "").rstrip(".").lower()
        except ValueError:
            parts, host = None, ""
        if parts is None or parts.scheme.lower() not in {"http", "https"}:
            return "only http, https and data URLs are fetched"
        if not host or "\\" in url or parts.username is not None:
            return "the URL has no plain host"
        if self._domains and not any(host == domain or host.endswith("." + domain) for domain in self._domains):
            return f"host {host} is not allowed"
        return f"host {host} is private" if not self._private and is_private(host) else ""


def is_private(host: str) -> bool:
    """A host that is an address outside the public Internet, in any spelling that resolvers take, or a local name."""
    if host.endswith(LOCAL_NAMES) or ("." not in host and ":" not in host and not host.isdigit() and not host.startswith("0x")):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.inet_aton(host))  # 127.1, 0x7f.0.0.1, 2130706433
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    return not (mapped or address).is_global or address.is_multicast
