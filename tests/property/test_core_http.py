"""Framing does not depend on how the bytes arrive."""

from __future__ import annotations

import contextlib
import itertools

from epd_router._core import ChunkedDecoder, Framer, HttpError, parse_request_head, parse_response_head
from hypothesis import given
from hypothesis import strategies as st

PAYLOADS = st.lists(st.binary(min_size=1, max_size=60), max_size=8)
LINES = st.lists(
    st.sampled_from(
        [b"data: a", b"data:b", b'data: {"error":1}', b'data: { "error" :', b": ping", b"event: x", b"id", b"", b"", b"data: \xe9"]
    ),
    max_size=20,
)
EXTENSION = st.sampled_from([b"", b";a=b", b';a="x y"'])


def split(text: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def chunked(payloads: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = [b"%x%s\r\n%s\r\n" % (len(payload), extension, payload) for payload in payloads]
    return b"".join(chunks) + b"0\r\n" + trailer + b"\r\n"


@given(PAYLOADS, EXTENSION, st.sampled_from([b"", b"X: y\r\n"]), st.binary(max_size=9), st.lists(st.integers(0, 999)))
def test_chunked(payloads: list[bytes], extension: bytes, trailer: bytes, rest: bytes, cuts: list[int]) -> None:
    body = chunked(payloads, extension, trailer)
    decoder = ChunkedDecoder(10**6)
    framer = Framer(None, True, False)
    out, passed = b"", 0
    for piece in split(body, cuts):
        out += decoder.feed(memoryview(piece))
        passed += len(piece)
        assert framer.feed(piece) == passed
    assert out == b"".join(payloads)
    assert decoder.done
    assert framer.done
    assert decoder.feed(rest) == b""
    assert framer.feed(rest) == len(body)
    assert (decoder.excess, framer.excess) == (len(rest), len(rest))


@given(st.binary(max_size=80), st.lists(st.integers(0, 99), max_size=9))
def test_garbage_is_refused_wherever_it_is_split(text: bytes, cuts: list[int]) -> None:
    def run(pieces: list[bytes]) -> tuple[bytes, bool] | None:
        decoder = ChunkedDecoder(1000)
        try:
            return b"".join(map(decoder.feed, pieces)), decoder.done
        except HttpError:
            return None

    assert run([text]) == run(split(text, cuts))


@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 999), max_size=30), st.booleans())
def test_events(lines: list[bytes], end: bytes, cuts: list[int], in_chunks: bool) -> None:
    stream = b"".join(line + end for line in lines)
    pieces = [piece for piece in split(stream, cuts) if piece]
    body = chunked(pieces) if in_chunks else stream
    whole, parts = Framer(None, in_chunks, True), Framer(None, in_chunks, True)
    passed = [parts.feed(piece) for piece in split(body, cuts[::-1])]
    assert whole.feed(body) == passed[-1]
    assert passed == sorted(passed)
    assert (whole.first_event, whole.error_event) == (parts.first_event, parts.error_event)
    assert whole.done is parts.done is in_chunks
    events = [event.split(b"\n") for event in stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")[:-1]]
    payloads = [
        b"\n".join(line[5:].removeprefix(b" ") for line in event if line.startswith(b"data:"))
        for event in events
        if any(line.startswith(b"data:") for line in event)
    ]
    assert whole.first_event == (payloads[0] if payloads else None)


@given(st.binary(max_size=200))
def test_heads_never_crash(tail: bytes) -> None:
    for head in (tail, b"GET / HTTP/1.1\r\nHost: a\r\n" + tail, b"GET / HTTP/1.1\r\nHost: a\r\n" + tail + b"\r\n\r\n"):
        with contextlib.suppress(HttpError):
            parsed = parse_request_head(head, 0, len(head), 4096)
            assert parsed is None or head[: parsed.size].endswith(b"\r\n\r\n")
    with contextlib.suppress(HttpError):
        parse_response_head(b"HTTP/1.1 200 OK\r\n" + tail + b"\r\n\r\n", 4096)
