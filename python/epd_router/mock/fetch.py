"""Bytes of a media URL: `data:`, `file:` or `http(s):`."""

from __future__ import annotations

import asyncio
import base64
import binascii
import urllib.parse
from pathlib import Path

import aiohttp

from epd_router.mock.errors import ApiError, invalid

FRAMES = b"frames:"  # marks the payload of data:video/jpeg, a list of frames


async def fetch(url: str, modality: str, session: aiohttp.ClientSession, root: str) -> bytes:
    """Load media. `root` is the folder that files may come from. Raises ApiError."""
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        head, _, payload = url.partition(",")
        if not head.endswith(";base64"):
            invalid("Only base64 data URLs are supported for now.")
        return FRAMES + payload.encode() if "video/jpeg" in head else b64(payload, modality)
    if scheme == "file":
        return _local(url, root)
    if scheme not in {"http", "https"}:
        invalid("The URL must be either a HTTP, data or file URL.")
    try:
        async with session.get(url) as response:
            if response.status >= 400:
                raise ApiError(422, f"{response.status}, message='{response.reason}', url='{url}'")
            return await response.read()
    except aiohttp.ClientConnectorError as error:
        # Recorded: a refused connection is an error nobody handles, not a 422.
        raise ApiError(500, str(error), handled=False) from error
    except (aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
        raise ApiError(422, f"Failed to fetch media: {error!r}") from error


def b64(text: str | bytes, modality: str) -> bytes:
    """Strict base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(400, f"Failed to load {modality}: {error}") from error


def _local(url: str, root: str) -> bytes:
    if not root:
        invalid("Cannot load local files without `--allowed-local-media-path`.")
    path = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).resolve()
    if not path.is_relative_to(Path(root).resolve()):
        invalid(f"The file path {path} must be a subpath of `--allowed-local-media-path {root}`.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ApiError(400, str(error)) from error
