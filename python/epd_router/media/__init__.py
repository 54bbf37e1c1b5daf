"""Pictures as the router sees them: headers, content identity, pixels. Usable alone.

decoded = media.decode(data)                     # or PassThrough: a kind that is not reproduced exactly
pixels = numpy.frombuffer(decoded.data, "uint8").reshape(decoded.height, decoded.width, 3)   # no copy
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from epd_router._core import Decoded, Limits, MediaError, PassThrough, Probe, decode, name_bytes, probe

__all__ = [
    "Decoded",
    "Limits",
    "MediaError",
    "PassThrough",
    "Probe",
    "content_hash",
    "content_id",
    "decode",
    "decode_many",
    "probe",
]


def content_id(data: bytes, kind: Literal["image", "audio", "video"] = "image", *, salt: bytes = b"") -> str:
    """Identity of encoded bytes within the scope of `salt`: 64 lower-case hex characters, BLAKE3. The router names media so,
    its salt being `derive_id` of model, processor options and cache salt. Raises MediaError for what no engine takes."""
    return name_bytes(data, kind, salt).id


def content_hash(data: bytes) -> str:
    """The public identity that SGLang gives media: `sha256:` and 64 hex characters."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def decode_many(
    pictures: Iterable[bytes], *, threads: int = 0, limits: Limits | None = None
) -> list[Decoded | PassThrough | MediaError]:
    """Decode side by side, on as many threads as there are cores by default. In the order of the pictures; one that is
    refused has its error in its place."""

    def one(data: bytes) -> Decoded | PassThrough | MediaError:
        try:
            return decode(data, limits=limits)
        except MediaError as error:
            return error

    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        return list(pool.map(one, pictures))
