"""Syntax checks for media URLs, before anything is fetched from them."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from epd_router.errors import MediaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_router._core import Item
    from epd_router.options import Settings

LOCAL_NAMES = (".localhost", ".local", ".internal", ".localdomain", ".lan", ".home.arpa", ".svc")
PLAIN = re.compile(r"[a-z0-9._:-]+")
# IPv6 networks whose last 32 bits are an IPv4 address: compatible, mapped, translated (RFC 7915), NAT64 (RFC 6052).
EMBEDDED = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")


class UrlGuard:
    """Refuses media URLs that point where the operator did not allow."""

    def __init__(self, settings: Settings) -> None:
        self._domains = settings.mm_allowed_media_domains
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
        text = url.strip()
        try:
            parts = urlsplit(text)
        except ValueError:
            return "the URL has no plain host"
        if parts.scheme not in {"http", "https"}:
            return "only http, https and data URLs are fetched"
        try:
            host, _ = plain_host(parts.hostname or ""), parts.port
            if "[" in parts.netloc:
                ipaddress.IPv6Address(host)
        except ValueError:
            host = ""
        # What one reader of URLs drops or turns, another takes for the end of the host.
        if not host or parts.username is not None or any(char in "\\\x7f" or char < " " for char in text):
            return "the URL has no plain host"
        if self._domains and not any(host == domain or host.endswith("." + domain) for domain in self._domains):
            return f"host {host} is not allowed"
        return f"host {host} is private" if not self._private and is_private(host) else ""


def plain_host(host: str) -> str:
    """A host in the one spelling that is compared: ASCII, lower case, without the root's dot. Raises ValueError."""
    if not host.isascii():
        host = host.encode("idna").decode()  # maps circled digits and wide dots as clients do
    host = host.lower().rstrip(".")
    if not PLAIN.fullmatch(host):
        raise ValueError(host)
    return host


def is_private(host: str) -> bool:
    """A plain host that is an address outside the public Internet, in any spelling that resolvers take, or a local name."""
    last = host.rpartition(".")[2]
    try:
        if ":" in host:
            return not is_public_v6(ipaddress.IPv6Address(host))
        if last.isdigit() or last.startswith("0x"):  # 127.1, 0x7f.0.0.1, 2130706433
            return not is_public(ipaddress.IPv4Address(socket.inet_aton(host)))
    except (ValueError, OSError):
        return True  # looks like an address and is none
    return "." not in host or host.endswith(LOCAL_NAMES)


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Of the public Internet, and one machine's."""
    return address.is_global and not address.is_multicast


def is_public_v6(address: ipaddress.IPv6Address) -> bool:
    """The same for IPv6, where an address may stand for an IPv4 one."""
    if any(address in network for network in EMBEDDED):
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour is not None:
        return is_public(address.sixtofour)
    return is_public(address) and address not in LOCAL_NAT64
