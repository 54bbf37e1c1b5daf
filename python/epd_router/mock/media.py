"""Media items of a request: fetch, decode or take over a reference, name, and count placeholder tokens."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import math
import struct
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import aiohttp
import orjson

from epd_router.mock import pictures
from epd_router.mock.errors import ApiError, invalid

if TYPE_CHECKING:
    from epd_router.mock.state import State

Metadata = dict[str, Any]
# Type of a content part -> modality, and the key that holds the media when it is not the type's own name.
RAW = {"image_url": "image", "input_image": "image", "video_url": "video", "audio_url": "audio", "input_audio": "audio"}
REFERENCES = {"image_embeds": "image", "video_embeds": "video", "audio_embeds": "audio"}
_MIXED = "Mixing raw image and embedding inputs is not allowed"
_GRIDS = {"image": "image_grid_thw", "video": "video_grid_thw"}
_THREAD_FROM = 64 << 10


@dataclass
class Item:
    """One media item. `digest` is None for a reference until its embedding is found."""

    modality: str
    id: str
    metadata: Metadata
    tokens: int
    digest: str | None = None
    reference: bool = False


@dataclass
class Options:
    """What changes preprocessing; part of an item's identity."""

    processor: dict[str, Any] = field(default_factory=dict)
    media_io: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, body: dict[str, Any], state: State) -> Options:
        """Read a request's options, which 0.31+ refuses unless told to trust them."""
        made = cls(body.get("mm_processor_kwargs") or {}, body.get("media_io_kwargs") or {})
        if (made.processor or made.media_io) and state.config.minor >= 31 and not state.config.trust_request_mm_kwargs:
            invalid("Per-request mm_processor_kwargs and media_io_kwargs need `--trust-request-mm-kwargs`.")
        return made

    def factors(self, modality: str, minor: int) -> list[Any]:
        """Hash factors of one modality; empty when the item's own uuid is its identity."""
        media_io = self.media_io.get(modality) if minor >= 30 else None
        return [self.processor, media_io] if self.processor or media_io else []

    def sizes(self) -> dict[str, Any]:
        """Options that change a picture's grid."""
        return {**self.processor, **(self.processor.get("images_kwargs") or {})}


async def resolve(parts: list[dict[str, Any]], options: Options, state: State) -> list[Item]:
    """Items of a request's media parts, in order."""
    kinds = {RAW.get(part["type"]) for part in parts} & {REFERENCES.get(part["type"]) for part in parts} - {None}
    if kinds:
        invalid(_MIXED.replace("image", sorted(str(kind) for kind in kinds)[0]))
    count = sum(part["type"] in ("image_url", "input_image", "image_embeds") for part in parts)
    if count > state.config.max_images:
        invalid(f"At most {state.config.max_images} image(s) may be provided in one prompt.")
    positions: dict[str, int] = {}
    tasks = []
    for part in parts:
        modality = RAW.get(part["type"]) or REFERENCES[part["type"]]
        index = positions.get(modality, 0)
        positions[modality] = index + 1
        tasks.append(_item(part, modality, index, options, state))
    return [await task for task in tasks] if len(tasks) == 1 else await _all(tasks)


async def _all(tasks: list[Any]) -> list[Item]:
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        return list(await asyncio.gather(*running))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _item(part: dict[str, Any], modality: str, index: int, options: Options, state: State) -> Item:
    kind = part["type"]
    uuid = part.get("uuid")
    if kind in REFERENCES:
        return _reference(part[kind], uuid, modality, options, state)
    source = _source(part)
    if source is None:
        return _by_uuid(uuid, modality, index, options, state)
    data = await fetch(source, modality, state)
    # As in vLLM the media are fetched and decoded before the processor cache is asked.
    item = await _measured(data, modality, options, state)
    item.id = _identity(uuid, hashlib.sha256(data).hexdigest(), modality, options, state)
    known = state.processor_cache.get(item.id)
    state.count("mm_cache_queries")
    if known is not None:
        state.count("mm_cache_hits")
        return Item(modality, item.id, known.metadata, known.tokens, known.digest)
    state.processor_cache[item.id] = item
    return item


def _source(part: dict[str, Any]) -> str | None:
    """URL of a raw part, None for a uuid-only part."""
    kind = part["type"]
    if kind == "input_audio":
        audio = part.get("input_audio") or {}
        return f"data:audio/{audio.get('format', 'wav')};base64,{audio['data']}" if audio.get("data") else None
    value = part.get("image_url" if kind == "input_image" else kind)
    if isinstance(value, dict):
        value = value.get("url")
    return value if isinstance(value, str) and value else None


def _by_uuid(uuid: str | None, modality: str, index: int, options: Options, state: State) -> Item:
    state.count("mm_cache_queries")
    known = state.processor_cache.get(_identity(uuid, "", modality, options, state)) if uuid else None
    if known is None:
        invalid(f"Cache miss for {modality} at index {index} but data is not provided.")
    state.count("mm_cache_hits")
    return Item(modality, known.id, known.metadata, known.tokens, known.digest)


def _identity(uuid: str | None, content: str, modality: str, options: Options, state: State) -> str:
    factors = options.factors(modality, state.config.minor)
    if uuid and not factors:
        return uuid
    text = orjson.dumps([state.config.models[0], modality, uuid or content, factors], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()


def _reference(value: Any, uuid: str | None, modality: str, options: Options, state: State) -> Item:
    config = state.config
    if not config.accepts_references or (modality == "video" and config.minor < 29):
        invalid(f"You must set `--enable-mm-embeds` to input `{modality}_embeds`")
    if not isinstance(value, dict) or not value:
        invalid(f"`{modality}_embeds` must map field names to their values.")
    metadata = {name: _array(name, entry, config.minor) for name, entry in value.items()}
    identity = _identity(uuid, orjson.dumps(metadata).decode(), modality, options, state)
    try:
        tokens = count_tokens(modality, metadata)
    except (KeyError, TypeError, ValueError):
        invalid(f"{modality} metadata lacks {_GRIDS.get(modality, 'audio_num_tokens')}.")
    return Item(modality, identity, metadata, tokens, reference=True)


def _array(name: str, value: Any, minor: int) -> Any:
    """A metadata value: JSON numbers from 0.30 on, base64 of an int64 `.npy` file in every release."""
    if not isinstance(value, str):
        if minor < 30:
            invalid(f"`{name}` must be a base64 string of a serialized tensor.")
        return value
    try:
        return _npy(base64.b64decode(value, validate=True))
    except (binascii.Error, ValueError, struct.error) as error:
        raise ApiError(400, f"Failed to load `{name}`: {error}") from error


def _npy(data: bytes) -> list[int]:
    if data[:6] != b"\x93NUMPY":
        raise ValueError("neither a .npy file nor a tensor")
    wide = data[6] > 1
    length = int.from_bytes(data[8 : 12 if wide else 10], "little")
    start = (12 if wide else 10) + length
    if b"'<i8'" not in data[:start]:
        raise ValueError("not little-endian int64")
    body = data[start:]
    return list(struct.unpack(f"<{len(body) // 8}q", body))


def count_tokens(modality: str, metadata: Metadata) -> int:
    """Placeholder tokens that metadata stand for."""
    if modality == "audio":
        return int(metadata["audio_num_tokens"])
    frames, rows, columns = (int(number) for number in metadata[_GRIDS[modality]])
    if min(frames, rows, columns) < 1:
        raise ValueError("grid")
    return max(1, frames * rows * columns // pictures.MERGE**2)


async def _measured(data: bytes, modality: str, options: Options, state: State) -> Item:
    if modality == "audio":
        metadata: Metadata = {"audio_num_tokens": max(1, math.ceil(len(data) / 1280))}
        return Item(modality, "", metadata, count_tokens(modality, metadata), hashlib.sha256(data).hexdigest())
    if modality == "video":
        return await _video(data, options, state)
    picture = await _picture(data, state)
    metadata = {"image_grid_thw": [1, *pictures.grid(picture.width, picture.height, options.sizes())]}
    return Item(modality, "", metadata, count_tokens(modality, metadata), picture.digest)


async def _picture(data: bytes, state: State) -> pictures.Picture:
    full = state.config.full_decode
    if full and len(data) >= _THREAD_FROM:
        return await asyncio.to_thread(pictures.load, data, full=True)
    return pictures.load(data, full=full)


async def _video(data: bytes, options: Options, state: State) -> Item:
    """`data:video/jpeg` frame lists are decoded; any other container counts as eight frames of 336 by 336."""
    frames, size, digest = 8, (24, 24), hashlib.sha256(data).hexdigest()
    if data.startswith(b"frames:"):
        texts = data[len(b"frames:") :].split(b",")
        loaded = [await _picture(_b64(text, "video"), state) for text in texts]
        frames, size = len(loaded), pictures.grid(loaded[0].width, loaded[0].height, options.sizes())
        digest = hashlib.sha256("".join(frame.digest for frame in loaded).encode()).hexdigest()
    metadata: Metadata = {"video_grid_thw": [math.ceil(frames / 2), *size]}
    return Item("video", "", metadata, count_tokens("video", metadata), digest)


async def fetch(url: str, modality: str, state: State) -> bytes:
    """Bytes of a `data:`, `file:` or `http(s):` URL."""
    scheme = url.partition(":")[0]
    if scheme == "data":
        head, _, payload = url.partition(",")
        if not head.endswith(";base64"):
            raise ApiError(400, "Only base64 data URLs are supported for now.")
        return b"frames:" + payload.encode() if "video/jpeg" in head else _b64(payload.encode(), modality)
    if scheme == "file":
        return _local(url, state)
    if scheme not in ("http", "https"):
        invalid("The URL must be either a HTTP, data or file URL.")
    state.count("fetches")
    try:
        async with state.session.get(url) as response:
            if response.status >= 400:
                _unfetched(f"{response.status}, message='{response.reason}', url='{url}'")
            return await response.read()
    except aiohttp.ClientConnectorError as error:
        # Recorded: a refused connection is an unhandled error in vLLM, not a 422.
        raise ApiError(500, str(error)) from error
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        raise ApiError(422, f"Failed to fetch media: {error!r}") from error


def _unfetched(message: str) -> NoReturn:
    raise ApiError(422, message)


def _b64(text: bytes, modality: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error as error:
        raise ApiError(400, f"Failed to load {modality}: {error}") from error


def _local(url: str, state: State) -> bytes:
    root = state.config.allowed_local_media_path
    if root is None:
        invalid("Cannot load local files without `--allowed-local-media-path`.")
    path = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).resolve()
    if not path.is_relative_to(Path(root).resolve()):
        invalid(f"The file path {path} must be a subpath of `--allowed-local-media-path {root}`.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ApiError(400, str(error)) from error
