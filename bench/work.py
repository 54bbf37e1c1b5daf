"""The rows of the benchmark: what is sent, over how many connections, and what a right answer looks like."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

import engine

NONCE = b"NONCE-00"
TEXT_BYTES = 2048
PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Row:
    """One kind of work. `topology` is the set of workers that it needs, `seconds` the length of one measurement."""

    name: str
    title: str
    connections: int
    topology: str = "aggregated"
    pictures: int = 0
    picture_bytes: int = 0
    stream: bool = False
    seconds: float = 2.0


ROWS = (
    Row("text-c1", "text 2 kB, 1 connection", 1),
    Row("text-c32", "text 2 kB, 32 connections", 32),
    Row("stream-c64", "64 streams of 64 chunks at 10 ms", 64, stream=True, seconds=2.0),
    Row("picture-c1", "one 1.4 MB picture, 1 connection", 1, pictures=1, picture_bytes=1_400_000),
    Row("picture-c8", "one 1.4 MB picture, 8 connections", 8, pictures=1, picture_bytes=1_400_000),
    Row("ten-pictures-c4", "ten 60 kB pictures, 4 connections", 4, pictures=10, picture_bytes=60_000),
    Row("pd-text-c1", "P+D: text 2 kB, 1 connection", 1, topology="pd"),
    Row("pd-text-c32", "P+D: text 2 kB, 32 connections", 32, topology="pd"),
    Row("epd-c1", "E+P+D: four 60 kB pictures, 1 connection", 1, topology="epd", pictures=4, picture_bytes=60_000),
    Row("epd-c4", "E+P+D: four 60 kB pictures, 4 connections", 4, topology="epd", pictures=4, picture_bytes=60_000),
)
BY_NAME = {row.name: row for row in ROWS}


def noise(size: int, seed: int) -> bytes:
    """Give `size` bytes that no compressor or cache shortens, the same in every run; 0xFF never occurs."""
    return hashlib.shake_256(seed.to_bytes(4, "big")).digest(size).replace(b"\xff", b"\xfe")


def jpeg(size: int, seed: int) -> bytes:
    """Give a file of `size` bytes with the header of a 1024 x 768 JPEG; its scan is noise, nothing here decodes it."""
    app0 = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    table = b"\xff\xdb" + struct.pack(">H", 67) + b"\x00" + bytes(range(1, 65))
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, 768, 1024, 3) + b"\x01\x22\x00\x02\x11\x00\x03\x11\x00"
    scan = b"\xff\xda" + struct.pack(">HB", 12, 3) + b"\x01\x00\x02\x11\x03\x11\x00\x3f\x00"
    head = b"\xff\xd8" + app0 + table + frame + scan
    return head + noise(size - len(head) - 2, seed) + b"\xff\xd9"


def picture_part(encoded_bytes: int, seed: int) -> dict[str, Any]:
    """Give a media part whose base64 text is about `encoded_bytes` long and holds a mark to be made unique."""
    text = base64.b64encode(jpeg(encoded_bytes // 4 * 3, seed)).decode()
    middle = len(text) // 8 * 4
    text = text[:middle] + NONCE.decode().replace("-", "+") + text[middle + len(NONCE) :]
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{text}"}}


def text_of(size: int) -> str:
    """Give prose of `size` characters that ends in a mark to be made unique."""
    prose = "The router reads the request once, picks a worker and then gets out of the way. "
    return (prose * (size // len(prose) + 1))[: size - len(NONCE)] + NONCE.decode()


def chat_body(row: Row) -> dict[str, Any]:
    """Give the request of a row."""
    parts = [picture_part(row.picture_bytes, seed) for seed in range(row.pictures)]
    body: dict[str, Any] = {"model": engine.MODEL, "max_tokens": 64, "temperature": 0, "stream": row.stream}
    if parts:
        content: Any = [*parts, {"type": "text", "text": "Describe the pictures. " + NONCE.decode()}]
    else:
        content = text_of(TEXT_BYTES - 180)
    system = {"role": "system", "content": "You are a helpful assistant."}
    return body | {"messages": [system, {"role": "user", "content": content}]}


def request_bytes(body: dict[str, Any], port: int) -> bytes:
    """Give the whole HTTP request, as an ordinary client library sends it."""
    data = json.dumps(body).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: application/json\r\n"
        f"user-agent: OpenAI/Python 2.0\r\nauthorization: Bearer none\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Template:
    """A request whose marks are rewritten in place before each use: no two requests are the same."""

    def __init__(self, request: bytes, first: int) -> None:
        self.data = bytearray(request)
        self.count = first
        self.places = [*self._find(NONCE), *self._find(NONCE.replace(b"-", b"+"))]

    def _find(self, mark: bytes) -> list[int]:
        places, at = [], self.data.find(mark)
        while at >= 0:
            places.append(at)
            at = self.data.find(mark, at + 1)
        return places

    def next(self) -> bytearray:
        """Give the next request; the one before must have been answered."""
        self.count += 1
        nonce = b"%08d" % (self.count % 100_000_000)
        for place in self.places:
            self.data[place : place + 8] = nonce
        return self.data


def templates(row: Row, port: int, first: int) -> list[Template]:
    """Give one template for each connection, counting in separate ranges from `first`."""
    request = request_bytes(chat_body(row), port)
    return [Template(request, first + place * 1_000_000) for place in range(row.connections)]
