"""Media items of a request: load or take over a reference, name, and count placeholder tokens."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from epd_router.mock import pictures
from epd_router.mock.config import EngineConfig
from epd_router.mock.errors import ApiError, invalid
from epd_router.mock.fetch import FRAMES, b64, fetch

Metadata = dict[str, Any]
RAW = {"image_url": "image", "input_image": "image", "video_url": "video", "audio_url": "audio", "input_audio": "audio"}
REFERENCES = {"image_embeds": "image", "video_embeds": "video", "audio_embeds": "audio"}
GRIDS = {"image": "image_grid_thw", "video": "video_grid_thw"}


@dataclass
class Item:
    """One media item. `digest` names the content, and is empty for a reference and for a bare uuid."""

    modality: str
    index: int
    id: str
    metadata: Metadata = field(default_factory=dict)
    tokens: int = 0
    digest: str = ""
    reference: bool = False


class Preprocessing:
    """What a request says about preprocessing; part of an item's identity."""

    def __init__(self, body: dict[str, Any], config: EngineConfig) -> None:
        self.processor: dict[str, Any] = body.get("mm_processor_kwargs") or {}
        self.media_io: dict[str, Any] = body.get("media_io_kwargs") or {}
        self._config = config
        if (self.processor or self.media_io) and config.minor >= 31 and not config.trust_request_mm_kwargs:
            invalid("mm_processor_kwargs and media_io_kwargs of a request need `--trust-request-mm-kwargs`.")

    def identity(self, modality: str, uuid: str | None, content: str) -> str:
        """Key of an item in every cache: its uuid, unless options of the request go into the hash."""
        media_io = self.media_io.get(modality) if self._config.minor >= 30 else None
        if uuid and not self.processor and not media_io:
            return uuid
        text = orjson.dumps(
            [self._config.models[0], modality, uuid or content, self.processor, media_io], option=orjson.OPT_SORT_KEYS
        )
        return hashlib.sha256(text).hexdigest()

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of patches of a picture."""
        options = {**self.processor, **(self.processor.get("images_kwargs") or {})}
        size = options.get("size") or {}
        smallest = options.get("min_pixels") or size.get("shortest_edge") or self._config.min_pixels
        largest = options.get("max_pixels") or size.get("longest_edge") or self._config.max_pixels
        return pictures.grid(width, height, int(smallest), int(largest))


async def load(
    parts: Sequence[dict[str, Any]], options: Preprocessing, config: EngineConfig, session: aiohttp.ClientSession
) -> list[Item]:
    """Items of a request's media parts, in order. Raises ApiError."""
    raw, references = ({kinds[part["type"]] for part in parts if part["type"] in kinds} for kinds in (RAW, REFERENCES))
    for modality in sorted(raw & references):
        invalid(f"Mixing raw {modality} and embedding inputs is not allowed")
    if sum((RAW | REFERENCES)[part["type"]] == "image" for part in parts) > config.max_images:
        invalid(f"At most {config.max_images} image(s) may be provided in one prompt.")
    counts: dict[str, int] = {}
    running = []
    for part in parts:
        modality = (RAW | REFERENCES)[part["type"]]
        index = counts[modality] = counts.get(modality, -1) + 1
        running.append(asyncio.ensure_future(_item(part, Item(modality, index, ""), options, config, session)))
    try:
        return [await task for task in running]
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _item(
    part: dict[str, Any], item: Item, options: Preprocessing, config: EngineConfig, session: aiohttp.ClientSession
) -> Item:
    kind, uuid = part["type"], part.get("uuid")
    if kind in REFERENCES:
        _refer(item, part.get(kind), uuid, options, config)
        return item
    source = _source(part)
    if source is None:
        item.id = options.identity(item.modality, uuid, "") if uuid else ""
        return item
    data = await fetch(source, item.modality, session, config.allowed_local_media_path)
    await _measure(item, data, options)
    item.id = options.identity(item.modality, uuid, hashlib.sha256(data).hexdigest())
    return item


def _source(part: dict[str, Any]) -> str | None:
    """URL of a raw part, None for a bare uuid."""
    kind = part["type"]
    if kind == "input_audio":
        audio = part.get("input_audio") or {}
        return f"data:audio/{audio.get('format', 'wav')};base64,{audio['data']}" if audio.get("data") else None
    value = part.get("image_url" if kind == "input_image" else kind)
    if isinstance(value, dict):
        value = value.get("url")
    return value if isinstance(value, str) and value else None


async def _measure(item: Item, data: bytes, options: Preprocessing) -> None:
    if item.modality == "image":
        picture = await pictures.load(data)
        item.metadata = {"image_grid_thw": [1, *options.grid(picture.width, picture.height)]}
        item.digest = picture.digest
    elif item.modality == "audio":
        item.metadata = {"audio_num_tokens": max(1, math.ceil(len(data) / 1280))}
        item.digest = hashlib.sha256(data).hexdigest()
    else:
        await _measure_video(item, data, options)
    item.tokens = count_tokens(item.modality, item.metadata)


async def _measure_video(item: Item, data: bytes, options: Preprocessing) -> None:
    """Frame lists are decoded; any other container counts as eight frames of 336 by 336."""
    count, size, item.digest = 8, (24, 24), hashlib.sha256(data).hexdigest()
    if data.startswith(FRAMES):
        frames = [await pictures.load(b64(text, "video")) for text in data.removeprefix(FRAMES).split(b",")]
        count, size = len(frames), options.grid(frames[0].width, frames[0].height)
        item.digest = hashlib.sha256("".join(frame.digest for frame in frames).encode()).hexdigest()
    item.metadata = {"video_grid_thw": [math.ceil(count / 2), *size]}


def _refer(item: Item, value: Any, uuid: str | None, options: Preprocessing, config: EngineConfig) -> None:
    modality = item.modality
    if not config.accepts_references or (modality == "video" and config.minor < 29):
        invalid(f"You must set `--enable-mm-embeds` to input `{modality}_embeds`")
    if not isinstance(value, dict) or not value:
        invalid(f"`{modality}_embeds` must map field names to their values.")
    item.metadata = {name: _array(name, entry, config.minor) for name, entry in value.items()}
    item.id = options.identity(modality, uuid, orjson.dumps(item.metadata).decode())
    item.reference = True
    try:
        item.tokens = count_tokens(modality, item.metadata)
    except (KeyError, TypeError, ValueError):
        invalid(f"{modality} metadata lacks {GRIDS.get(modality, 'audio_num_tokens')}.")


def count_tokens(modality: str, metadata: Metadata) -> int:
    """Placeholder tokens that metadata stand for."""
    if modality == "audio":
        return int(metadata["audio_num_tokens"])
    frames, rows, columns = (int(number) for number in metadata[GRIDS[modality]])
    if min(frames, rows, columns) < 1:
        raise ValueError("grid")
    return max(1, frames * rows * columns // pictures.MERGE**2)


def _array(name: str, value: Any, minor: int) -> Any:
    """A metadata value: JSON numbers from 0.30 on, base64 of an int64 `.npy` file in every release."""
    if not isinstance(value, str):
        if minor < 30:
            invalid(f"`{name}` must be a base64 string of a serialized tensor.")
        return value
    try:
        return _npy(base64.b64decode(value, validate=True))
    except (binascii.Error, ValueError, struct.error, IndexError) as error:
        raise ApiError(400, f"Failed to load `{name}`: {error}") from error


def _npy(data: bytes) -> list[int]:
    if data[:6] != b"\x93NUMPY":
        raise ValueError("neither a .npy file nor a tensor")
    wide = data[6] > 1
    start = (12 if wide else 10) + int.from_bytes(data[8 : 12 if wide else 10], "little")
    if b"'<i8'" not in data[:start]:
        raise ValueError("not little-endian int64")
    return list(struct.unpack(f"<{len(data[start:]) // 8}q", data[start:]))
