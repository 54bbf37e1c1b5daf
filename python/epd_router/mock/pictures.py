"""Pictures: decoded as vLLM does, with the digest of their pixels and the grid that Qwen2-VL's processor makes of a size.

The digest covers RGB pixels, so a picture that the router hands over decoded (PPM, BMP) is the same picture.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import math
import re
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass

from PIL import Image, ImageOps

from epd_router.mock.errors import ApiError

PATCH, MERGE = 14, 2
FORMATS = ("AVIF", "BMP", "DDS", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "PSD", "QOI", "SGI", "SUN", "TGA", "TIFF", "WEBP")
THREAD_FROM = 64 << 10  # bytes; smaller pictures are decoded on the loop


@dataclass(frozen=True)
class Picture:
    """Size in pixels and digest of the content."""

    width: int
    height: int
    digest: str


class Memo:
    """Pictures by the digest of their bytes, for the whole process: several engines decode one picture once."""

    def __init__(self, limit: int = 4096) -> None:
        self._known: OrderedDict[bytes, Picture] = OrderedDict()
        self._lock = threading.Lock()
        self._limit = limit

    def get(self, key: bytes) -> Picture | None:
        """The picture, if it is known."""
        with self._lock:
            return self._known.get(key)

    def put(self, key: bytes, picture: Picture) -> Picture:
        """Remember a picture."""
        with self._lock:
            self._known[key] = picture
            if len(self._known) > self._limit:
                self._known.popitem(last=False)
        return picture


_memo = Memo()


async def load(data: bytes) -> Picture:
    """Decode one encoded picture; broken ones are a 400."""
    key = hashlib.sha256(data).digest()
    known = _memo.get(key)
    if known is not None:
        return known
    return _memo.put(key, await asyncio.to_thread(decode, data) if len(data) >= THREAD_FROM else decode(data))


def decode(data: bytes) -> Picture:
    """First frame, upright, on white where it is transparent, as RGB."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            upright = ImageOps.exif_transpose(opened)
            upright.load()
            if upright.has_transparency_data:
                layer = upright.convert("RGBA")
                upright = Image.new("RGBA", layer.size, (255, 255, 255, 255))
                upright.alpha_composite(layer)
            pixels = upright.convert("RGB")
            digest = hashlib.sha256(b"%d %d " % pixels.size + pixels.tobytes()).hexdigest()
            return Picture(*pixels.size, digest)
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise ApiError(400, "Failed to load image: " + re.sub(r" at 0x[0-9a-f]+", "", str(error))) from error


def grid(width: int, height: int, smallest: int, largest: int) -> tuple[int, int]:
    """Rows and columns of patches after the processor's resize to an area between two numbers of pixels."""
    unit = PATCH * MERGE
    if max(width, height) / min(width, height) > 200:
        raise ApiError(400, f"absolute aspect ratio must be smaller than 200, got {max(width, height) / min(width, height)}")
    rows, columns = max(unit, round(height / unit) * unit), max(unit, round(width / unit) * unit)
    if rows * columns > largest:
        shrink = math.sqrt(height * width / largest)
        rows, columns = max(unit, int(height / shrink / unit) * unit), max(unit, int(width / shrink / unit) * unit)
    elif rows * columns < smallest:
        grow = math.sqrt(smallest / (height * width))
        rows, columns = math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
    return rows // PATCH, columns // PATCH
