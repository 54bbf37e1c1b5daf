"""Heads and framing: nothing ambiguous may pass, and splits never matter."""

from __future__ import annotations

import pytest
from epd_router._core import ChunkedDecoder, Framer, HttpError, RequestHead, parse_request_head, parse_response_head

HOST = b"Host: a\r\n"


def request(head: bytes, limit: int = 65536) -> RequestHead | None:
    return parse_request_head(head, 0, len(head), limit)


def whole(head: bytes) -> RequestHead:
    parsed = request(head)
    assert parsed is not None
    return parsed


def post(*lines: bytes, version: bytes = b"HTTP/1.1", target: bytes = b"/v1") -> bytes:
    return b"\r\n".join([b"POST " + target + b" " + version, b"Host: a", *lines, b"", b""])


SMUGGLING = {
    "both lengths": post(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "differing lengths": post(b"Content-Length: 5", b"Content-Length: 6"),
    "sign": post(b"Content-Length: +5"),
    "minus": post(b"Content-Length: -5"),
    "list of lengths": post(b"Content-Length: 5, 5"),
    "space in length": post(b"Content-Length: 5 5"),
    "hex length": post(b"Content-Length: 0x5"),
    "empty length": post(b"Content-Length:"),
    "huge length": post(b"Content-Length: 99999999999999999999999"),
    "chunked twice": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "chunked list": post(b"Transfer-Encoding: chunked, chunked"),
    "gzip, chunked": post(b"Transfer-Encoding: gzip, chunked"),
    "chunked, identity": post(b"Transfer-Encoding: chunked, identity"),
    "identity": post(b"Transfer-Encoding: identity"),
    "xchunked": post(b"Transfer-Encoding: xchunked"),
    "vertical tab": post(b"Transfer-Encoding:\x0bchunked"),
    "quoted": post(b'Transfer-Encoding: "chunked"'),
    "space before colon": post(b"Content-Length : 5"),
    "fold": post(b"Content-Length:", b" 5"),
    "fold of coding": post(b"Transfer-Encoding: chunked", b"\tx"),
    "bare CR": post(b"X: a\rContent-Length: 5"),
    "nul": post(b"X: a\0b"),
    "empty name": post(b": x"),
    "two hosts": post(b"Host: b"),
    "no host": b"GET / HTTP/1.1\r\nX: y\r\n\r\n",
    "chunked in 1.0": post(b"Transfer-Encoding: chunked", version=b"HTTP/1.0"),
    "two targets": b"GET /a /b HTTP/1.1\r\n" + HOST + b"\r\n",
    "no target": b"GET  HTTP/1.1\r\n" + HOST + b"\r\n",
    "authority form": post(target=b"host:443"),
}
SMUGGLING_PENDING = {
    "bare LF ends the head": b"GET / HTTP/1.1\nHost: a\n\nGET /x HTTP/1.1\r\n" + HOST + b"\r\n",
    "bare LF in a field": b"POST / HTTP/1.1\r\nHost: a\r\nX: y\nContent-Length: 5\r\n\r\n",
    "bare LF before the end": b"GET / HTTP/1.1\r\nHost: a\n\r\n\r\n",
    "invalid host": b"GET / HTTP/1.1\r\nHost: a b/c\r\n\r\n",
    "fragment": post(target=b"/a#b"),
    "not ASCII": post(target=b"/\xc3\xa9"),
    "no authority": post(target=b"http://"),
    "asterisk": post(target=b"*"),
}


@pytest.mark.parametrize(
    "head",
    [
        *(pytest.param(head, id=name) for name, head in SMUGGLING.items()),
    ],
)
def test_ambiguous_requests_are_refused(head: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        request(head)
    assert caught.value.code in ("bad_http", "http_version")


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/1.2", b"HTTP/3.0"])
def test_other_versions(version: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        request(post(version=version))
    assert caught.value.code == "http_version"


def test_limits() -> None:
    many = post(*(b"X-%d: y" % index for index in range(200)))
    for head, limit in ((post(b"X: " + b"y" * 500), 200), (many, 65536), (b"GET / HTTP/1.1\r\nX: " + b"y" * 500, 200)):
        with pytest.raises(HttpError) as caught:
            request(head, limit)
        assert caught.value.code == "header_too_large"


def test_every_prefix_is_incomplete() -> None:
    head = post(b"Content-Length: 5")
    for end in range(len(head)):
        assert parse_request_head(head, 0, end, 65536) is None
    buffer = bytearray(b"garbage" + head + b"body")
    found = parse_request_head(buffer, 7, len(buffer), 65536)
    assert found is not None
    assert found.size == len(head)
    buffer += b"more"  # nothing holds the buffer


def test_what_a_head_says() -> None:
    head = whole(
        post(
            b"Content-Length: 007",
            b"Connection: keep-alive, X-Own",
            b"X-Own: 1",
            b"Expect: 100-continue",
            b"Authorization: Bearer k",
            b"X-Request-Id: abc-1",
            b"Upgrade: h2c",
            b"TE: trailers",
            b"X-Api-Key: k",
            b"X-Kept: caf\xe9",
            target=b"http://h/v1?x=1",
        )
    )
    assert (head.method, head.target, head.path, head.minor) == ("POST", "/v1?x=1", "/v1", 1)
    assert (head.content_length, head.chunked, head.keep_alive, head.expect_continue) == (7, False, True, True)
    assert (head.request_id, head.authorization, head.get("x-kept"), head.get("no")) == (
        "abc-1",
        "Bearer k",
        "caf\xe9",
        None,
    )
    assert head.forward.lower() == b"x-kept: caf\xe9\r\n"


@pytest.mark.parametrize(
    ("line", "version", "keep"),
    [
        (b"X: y", b"HTTP/1.1", True),
        (b"Connection: close", b"HTTP/1.1", False),
        (b"Connection: Keep-Alive, CLOSE", b"HTTP/1.1", False),
        (b"X: y", b"HTTP/1.0", False),
        (b"Connection: keep-alive", b"HTTP/1.0", True),
    ],
)
def test_keep_alive(line: bytes, version: bytes, keep: bool) -> None:
    assert whole(post(line, version=version)).keep_alive is keep


@pytest.mark.parametrize("value", [b"a b", b"a\xe9", b"x" * 129, b"", b"a/b", b'a"b'])
def test_unsafe_request_ids(value: bytes) -> None:
    assert whole(post(b"X-Request-Id: " + value)).request_id is None


@pytest.mark.parametrize("name", [b"Content_Length: 5", b"Transfer_Encoding: chunked"])
def test_lengths_under_another_name_do_not_pass(name: bytes) -> None:
    assert whole(post(name)).forward == b""


def test_absolute_form_keeps_the_query() -> None:
    assert whole(post(target=b"HTTP://h?x/y")).target == "/?x/y"


def test_response_head() -> None:
    text = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\nx"
    head = parse_response_head(bytearray(text), 65536)
    assert head is not None
    assert (head.status, head.reason, head.minor, head.size) == (200, "OK", 1, len(text) - 1)
    assert (head.chunked, head.event_stream, head.keep_alive, head.content_length) == (True, True, True, None)
    assert head.forward.lower() == b"content-type: text/event-stream; charset=utf-8\r\n"
    assert parse_response_head(text[:30], 65536) is None


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
    ],
)
def test_ambiguous_responses_are_refused(text: bytes) -> None:
    with pytest.raises(HttpError):
        parse_response_head(text, 65536)


@pytest.mark.parametrize(
    "body",
    [
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5;a\rb\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n",
        b"\r\nhello",
        b" 5\r\nhello\r\n",
        b"10000000000000000\r\n",
        b"0\r\n\n",
    ],
)
def test_broken_chunks_are_refused(body: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        ChunkedDecoder(1000).feed(body)
    assert caught.value.code == "bad_http"


def test_chunked_decoder() -> None:
    decoder = ChunkedDecoder(10)
    assert decoder.feed(memoryview(b'5;ext="a"\r\nhel')) + decoder.feed(bytearray(b"lo\r\n0\r\nTrailer: x\r\n\r\nGET")) == b"hello"
    assert decoder.done
    assert decoder.excess == 3
    with pytest.raises(HttpError) as caught:
        ChunkedDecoder(4).feed(b"5\r\nhello\r\n")
    assert caught.value.code == "payload_too_large"
    with pytest.raises(HttpError):
        ChunkedDecoder(4).feed(b"0\r\nX: " + b"y" * 20000)


def test_extensions_are_bounded_over_all_chunks() -> None:
    decoder = ChunkedDecoder(1000)
    for _ in range(3):
        decoder.feed(b"1;" + b"x" * 5000 + b"\r\ny\r\n")
    with pytest.raises(HttpError):
        decoder.feed(b"1;" + b"x" * 5000 + b"\r\ny\r\n")


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def test_framer_of_a_length() -> None:
    framer = Framer(5, False, False)
    assert (framer.feed(b"hel"), framer.done) == (3, False)
    assert (framer.feed(b"loGET"), framer.done, framer.excess) == (5, True, 3)
    assert Framer(0, False, False).done
    endless = Framer(None, False, False)
    assert (endless.feed(b"abc"), endless.done, endless.excess) == (3, False, 0)


def test_framer_cuts_only_between_events_and_chunks() -> None:
    framer = Framer(None, True, True)
    first = chunk(b"data: a\n\n")
    assert framer.feed(first) == len(first)
    half = chunk(b"data: b\n\ndata: ")
    assert framer.feed(half) == len(first)  # an event is open at the boundary
    rest = chunk(b"c\n\n")
    assert framer.feed(rest) == len(first + half + rest)
    end = b"0\r\n\r\n"
    assert framer.feed(end + b"xyz") == len(first + half + rest + end)
    assert (framer.done, framer.excess) == (True, 3)
    with pytest.raises(HttpError):
        Framer(None, True, False).feed(b"zz\r\n")


def test_framer_never_holds_more_than_a_mebibyte() -> None:
    framer = Framer(None, False, True)
    assert framer.feed(b"data: " + b"x" * 1000) == 0
    assert framer.feed(b"x" * (1 << 20)) == 1006 + (1 << 20)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events(end: bytes) -> None:
    stream = end.join([b": ping", b"", b"event: x", b"", b"id: 1", b"data:a", b"data: b", b"", b'data: { "error": {}}', b"", b""])
    for sizes in (1, 2, 3, 7, len(stream)):
        framer = Framer(None, False, True)
        passed = 0
        for at in range(0, len(stream), sizes):
            passed = framer.feed(stream[at : at + sizes])
        assert passed == len(stream)
        assert framer.first_event == b"a\nb"
        assert framer.error_event == b'{ "error": {}}'


def test_only_a_leading_error_counts() -> None:
    framer = Framer(None, False, True)
    framer.feed(b'data: {"choices": [], "error": null}\n\ndata: {"errors": 1}\n\ndata: "error"\n\n')
    assert framer.error_event is None


def test_a_long_first_event_is_whole() -> None:
    framer = Framer(None, False, True)
    framer.feed(b"data: " + b"x" * 200_000 + b"\n\n")
    assert framer.first_event == b"x" * 200_000
