"""Pictures: decode or probe, digest, and the grid that Qwen2-VL's processor makes of a size.

The digest covers the decoded RGB pixels when Pillow is there, so that a picture which the router hands over decoded
(PPM, BMP) is the same picture; without Pillow it covers the bytes.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from epd_router.mock.errors import ApiError

try:
    from PIL import Image, ImageOps
except ImportError:  # pragma: no cover - the demo extra is not installed
    _HAVE_PILLOW = False
else:
    _HAVE_PILLOW = True

PATCH, MERGE, MIN_PIXELS, MAX_PIXELS = 14, 2, 3136, 12_845_056
_UNKNOWN = "cannot identify image file <_io.BytesIO object>"
_TRUNCATED = "image file is truncated (0 bytes not processed)"


@dataclass(frozen=True)
class Picture:
    """Size in pixels and digest of the content."""

    width: int
    height: int
    digest: str


def _bad(message: str) -> ApiError:
    return ApiError(400, f"Failed to load image: {message}")


_known: OrderedDict[tuple[bytes, bool], Picture] = OrderedDict()
_lock = threading.Lock()
_KNOWN_LIMIT = 4096


def load(data: bytes, *, full: bool) -> Picture:
    """Decode (`full`, with Pillow) or probe one encoded picture; broken ones are a 400 in vLLM's words.

    Results are remembered by content for the whole process: several mocks in a test decode one picture once.
    """
    key = (hashlib.sha256(data).digest(), full)
    with _lock:
        found = _known.get(key)
    if found is None:
        found = _decoded(data) if full and _HAVE_PILLOW else _probed(data)
        with _lock:
            _known[key] = found
            if len(_known) > _KNOWN_LIMIT:
                _known.popitem(last=False)
    return found


def _decoded(data: bytes) -> Picture:
    try:
        with Image.open(io.BytesIO(data)) as opened:
            opened.load()
            upright = ImageOps.exif_transpose(opened)
            if upright.has_transparency_data:
                layer = upright.convert("RGBA")
                upright = Image.new("RGBA", layer.size, (255, 255, 255, 255))
                upright.alpha_composite(layer)
            pixels = upright.convert("RGB")
            digest = hashlib.sha256(b"%d %d " % pixels.size + pixels.tobytes()).hexdigest()
            return Picture(*pixels.size, digest)
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise _bad(re.sub(r" at 0x[0-9a-f]+", "", str(error))) from error


def _probed(data: bytes) -> Picture:
    size = _size(data)
    if size is None:
        raise _bad(_UNKNOWN)
    if (data[:2] == b"\xff\xd8" and data[-2:] != b"\xff\xd9") or (data[:4] == b"\x89PNG" and b"IEND" not in data[-16:]):
        raise _bad(_TRUNCATED)
    return Picture(*size, hashlib.sha256(data).hexdigest())


def _size(data: bytes) -> tuple[int, int] | None:
    try:
        if data[:8] == b"\x89PNG\r\n\x1a\n":
            return struct.unpack(">II", data[16:24])
        if data[:2] == b"\xff\xd8":
            return _jpeg_size(data)
        if data[:4] == b"GIF8":
            return struct.unpack("<HH", data[6:10])
        if data[:2] == b"BM":
            width, height = struct.unpack("<ii", data[18:26])
            return width, abs(height)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp_size(data)
        header = re.match(rb"P6\s+(?:#.*\n\s*)*(\d+)\s+(\d+)\s", data)
    except (struct.error, IndexError):
        return None
    return (int(header[1]), int(header[2])) if header else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    position = 2
    while position + 9 < len(data):
        marker, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[position + 5 : position + 9])
            return width, height
        position += 2 + length
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", data[26:30])
    return width & 0x3FFF, height & 0x3FFF


def grid(width: int, height: int, options: dict[str, Any]) -> tuple[int, int]:
    """Rows and columns of patches, as Qwen2-VL's smart_resize; `options` are a request's processor options."""
    size = options.get("size") or {}
    smallest = int(options.get("min_pixels") or size.get("shortest_edge") or MIN_PIXELS)
    largest = int(options.get("max_pixels") or size.get("longest_edge") or MAX_PIXELS)
    unit = PATCH * MERGE
    rows, columns = max(unit, round(height / unit) * unit), max(unit, round(width / unit) * unit)
    if rows * columns > largest:
        beta = math.sqrt(height * width / largest)
        rows, columns = max(unit, int(height / beta / unit) * unit), max(unit, int(width / beta / unit) * unit)
    elif rows * columns < smallest:
        beta = math.sqrt(smallest / (height * width))
        rows, columns = math.ceil(height * beta / unit) * unit, math.ceil(width * beta / unit) * unit
    return rows // PATCH, columns // PATCH
