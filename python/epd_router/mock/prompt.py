"""What a mock engine makes of a request: media, a token count and a deterministic answer.

The answer depends on the text and on the content of the media, not on how the media came: a reference to an embedding gives
the answer that the picture itself gives. So a router that mixes pictures up is found out.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from typing import Any

import aiohttp

WORDS = [
    "the",
    "a",
    "picture",
    "shows",
    "red",
    "blue",
    "green",
    "small",
    "large",
    "house",
    "tree",
    "car",
    "on",
    "under",
    "beside",
    "with",
    "and",
    "one",
    "two",
    "bright",
]
MEDIA = ("image_url", "video_url", "audio_url", "input_audio", "image_embeds", "video_embeds", "audio_embeds")
ITEM_TOKENS = 64


class RequestError(Exception):
    """The engine refuses the request with this status and message."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


@dataclasses.dataclass
class Media:
    """One media part: its content where it has any, else its name."""

    uuid: str | None
    content: bytes | None
    reference: bool
    metadata: dict[str, Any]

    @property
    def digest(self) -> str:
        """What the engine would call it."""
        return self.uuid or hashlib.sha256(self.content or b"").hexdigest()


@dataclasses.dataclass
class Prompt:
    """A request's input."""

    text: str
    media: list[Media]

    @property
    def tokens(self) -> int:
        """Four characters are a token, a medium is 64."""
        return len(self.text) // 4 + 1 + ITEM_TOKENS * len(self.media)


def answer(text: str, contents: list[str], count: int) -> list[str]:
    """`count` words that depend on everything."""
    seed = hashlib.sha256("\0".join([text, *contents]).encode()).digest()
    return [WORDS[seed[index % 32] % len(WORDS)] + " " for index in range(count)]


async def read(body: dict[str, Any], session: aiohttp.ClientSession) -> Prompt:
    """Text and media of a chat or completion request. Raises RequestError as the engine would."""
    if "messages" not in body:
        return Prompt(str(body.get("prompt", "")), [])
    texts: list[str] = []
    media: list[Media] = []
    for message in body["messages"]:
        texts.append(str(message.get("role")))
        content = message.get("content")
        for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
            kind = next((kind for kind in MEDIA if kind in part), None)
            if kind is None:
                texts.append(str(part.get("text", "")))
            else:
                texts.append("<media>")
                media.append(await _medium(part, kind, len(media), session))
    if len({one.reference for one in media}) > 1:
        raise RequestError(400, "Mixing raw image and embedding inputs is not allowed")
    return Prompt("\n".join(texts), media)


async def _medium(part: dict[str, Any], kind: str, index: int, session: aiohttp.ClientSession) -> Media:
    value, uuid = part[kind], part.get("uuid")
    if kind.endswith("_embeds"):
        return Media(uuid, None, True, value or {})
    url = value.get("url") if isinstance(value, dict) else value
    if not url:
        raise RequestError(400, f"Cache miss for image at index {index} but data is not provided.")
    content = await _load(url, session)
    check_picture(content)
    return Media(uuid, content, False, {})


async def _load(url: str, session: aiohttp.ClientSession) -> bytes:
    if url.startswith("data:"):
        try:
            return base64.b64decode(url.partition(",")[2], validate=True)
        except ValueError:
            raise RequestError(400, "Failed to load image: invalid base64") from None
    try:
        async with session.get(url, raise_for_status=True) as response:
            return await response.read()
    except aiohttp.ClientError as error:
        raise RequestError(422, f"Failed to fetch media: {error}") from None


def check_picture(content: bytes) -> None:
    """Refuse what a decoder would refuse, by the frame of the file."""
    if content.startswith(b"\xff\xd8"):
        if not content.endswith(b"\xff\xd9"):
            raise RequestError(400, "Failed to load image: image file is truncated (16 bytes not processed)")
    elif content.startswith(b"\x89PNG"):
        if b"IEND" not in content[-12:]:
            raise RequestError(400, "Failed to load image: image file is truncated")
    elif not content.startswith((b"RIFF", b"GIF8", b"BM")):
        raise RequestError(400, "Failed to load image: cannot identify image file <_io.BytesIO object>")
