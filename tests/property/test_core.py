"""Properties of the Rust core, against Python's own parsers."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from epd_router._core import BodyError, ChunkedDecoder, Framer, HttpError, Load, identify, least_loaded, parse_request_head, scan
from hypothesis import given, settings
from hypothesis import strategies as st

settings.register_profile("default", max_examples=200, deadline=None)
settings.load_profile("default")

scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
NAMES = st.text(max_size=6) | st.sampled_from(["kv_transfer_params", "stream", "max_tokens", "a", 'quo"te', "back\\slash"])
READ = {
    "model",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "messages",
    "input",
    "content_parts",
    "prompt",
}
documents = st.dictionaries(NAMES.filter(lambda name: name not in READ), values, max_size=6)


def written(document: object, spaced: bool, ascii_only: bool) -> bytes:
    return json.dumps(document, ensure_ascii=ascii_only, indent=1 if spaced else None).encode("utf-8", "surrogatepass")


def _utf8(document: object) -> bool:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(documents, st.dictionaries(NAMES, values, max_size=3), st.sets(NAMES, max_size=3), st.booleans())
def test_edits_equal_parse_edit_serialise(document: dict[str, Any], changes: dict[str, Any], gone: set[str], spaced: bool) -> None:
    body = written(document, spaced, ascii_only=True)
    edits = scan(body).edit()
    for name, value in changes.items():
        edits.set(name, json.dumps(value).encode())
    for name in gone:
        edits.remove(name)
    pieces, total = edits.apply(body)
    result = b"".join(pieces)
    assert len(result) == total
    assert json.loads(result) == {name: value for name, value in {**document, **changes}.items() if name not in gone}


@given(documents, st.booleans(), st.booleans())
def test_without_edits_every_byte_stays(document: dict[str, Any], spaced: bool, ascii_only: bool) -> None:
    if not ascii_only and not _utf8(document):
        return
    body = written(document, spaced, ascii_only)
    found = scan(body)
    assert found.fields == tuple(document)
    assert b"".join(found.edit().apply(body)[0]) == body


def strict(text: bytes) -> bool:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return isinstance(json.loads(text.decode("utf-8"), parse_constant=refuse), dict)
    except (ValueError, RecursionError):
        return False


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:\\u0123eE+-.tfn alsr\n', max_size=40).map(str.encode))
def test_the_scanner_accepts_what_json_accepts(text: bytes) -> None:
    try:
        scan(text)
        accepted = True
    except BodyError as error:
        accepted = error.code == "invalid_value"  # well-formed, but not for us
        assert 0 <= error.offset <= len(text)
    if accepted or strict(text):
        assert accepted == strict(text) or text.startswith(b"\xef\xbb\xbf")


@given(documents, st.data())
def test_a_broken_document_is_refused_with_its_offset(document: dict[str, Any], data: st.DataObject) -> None:
    body = written(document, spaced=False, ascii_only=True)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(BodyError) as caught:
        scan(body[:cut])
    assert caught.value.code == "invalid_json"


PART: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_uuids_are_set_and_removed_everywhere(shapes: list[tuple[bool, bool]]) -> None:
    parts = [
        {**({"uuid": 'a"b'} if first else {}), **PART, **({"uuid": "z"} if last and not first else {})} for first, last in shapes
    ]
    body = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
    found = scan(body)
    assert [item.client_uuid for item in found.items] == ["uuid" in part for part in parts]
    for uuid in ("x" * 64, None):
        edits = found.edit()
        for index in range(len(parts)):
            edits.set_uuid(index, uuid)
        result = json.loads(b"".join(edits.apply(body)[0]))["messages"][0]["content"]
        assert result == [PART if uuid is None else {**PART, "uuid": uuid} for _ in parts]


def identity(text: str) -> str | None:
    body = json.dumps({"messages": [{"content": [{"image_url": text}]}]}).encode()
    named = identify(body, scan(body), b"salt")[0]
    return named and named.id


@given(st.binary(min_size=1, max_size=300))
def test_spellings_of_one_picture_are_one_picture(content: bytes) -> None:
    plain = base64.b64encode(content).decode()
    right = identity(f"data:image/png;base64,{plain}")
    spellings = [
        f"DATA:image/jpeg;charset=utf-8;BASE64,{plain}",
        f"data:image/png;base64,{plain.rstrip('=')}",
        "data:image/png;base64," + "\n".join(plain[at : at + 7] for at in range(0, len(plain), 7)),
        "data:image/png;base64," + plain.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        f"data:image/png;base64,{base64.urlsafe_b64encode(content).decode()}",
    ]
    assert [identity(spelling) for spelling in spellings] == [right] * len(spellings)
    assert identity("data:image/png;base64," + base64.b64encode(content + b"x").decode()) != right


@pytest.mark.parametrize(
    "text",
    [
        "data:image/png,abcd",
        "data:image/png;base64",
        "data:image/png;base64,",
        "data:;base64,a*b=",
        "data:;base64,+_==",
        "data:;base64,abcde",
    ],
)
def test_what_is_not_base64_names_the_part(text: str) -> None:
    with pytest.raises(BodyError) as caught:
        identity(text)
    assert caught.value.param == "messages[0].content[0]"


def splits(data: bytes, cuts: list[int]) -> list[bytes]:
    points = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in zip(points, points[1:], strict=False)]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 500), max_size=8), st.binary(max_size=5))
def test_chunked_bodies_in_any_pieces(chunks: list[bytes], cuts: list[int], after: bytes) -> None:
    wire = b"".join(b"%x;e=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nA: b\r\n\r\n"
    decoder, out, excess = ChunkedDecoder(1 << 20), b"", 0
    framer, allowed = Framer(None, chunked=True, sse=False), 0
    for piece in splits(wire + after, cuts):
        if decoder.done:
            excess += len(piece)
        else:
            out += decoder.feed(piece)
            excess = decoder.excess
        allowed = framer.feed(piece)
    assert (out, decoder.done, excess) == (b"".join(chunks), True, len(after))
    assert (allowed, framer.done) == (len(wire), True)


@given(
    st.lists(st.sampled_from([b'data: {"a":1}\n\n', b": ping\n\n", b"data: x\r\n\r\n"]), min_size=1, max_size=6),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_event_streams_are_cut_between_events(events: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    ends = [0]
    for event in events:
        ends.append(ends[-1] + len(b"%x\r\n%s\r\n" % (len(event), event)))
    framer, fed = Framer(None, chunked=True, sse=True), 0
    for piece in splits(wire, cuts):
        fed += len(piece)
        assert framer.feed(piece) == max(end for end in ends if end <= fed)
    first = next((event for event in events if event.startswith(b"data")), None)
    assert framer.first_event == (None if first is None else first[6:].strip())


def test_an_error_event_is_seen_wherever_it_comes() -> None:
    framer = Framer(None, chunked=False, sse=True)
    framer.feed(b'data: {"id":"error"}\n\ndata: { "error": {"code": 500}}\n\n')
    assert framer.error_event == b'{ "error": {"code": 500}}'


@given(st.binary(max_size=200))
def test_heads_never_crash(data: bytes) -> None:
    try:
        parse_request_head(data, 0, len(data), 100)
        Framer(None, chunked=True, sse=True).feed(data)
    except HttpError as error:
        assert error.code in {"bad_http", "http_version", "header_too_large"}


def test_hop_by_hop_headers_stay_behind() -> None:
    text = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\nAccept: y\r\nTE: z\r\n"
    text += b"Authorization: k\r\nX-Request-Id: a b\r\n\r\n"
    head = parse_request_head(text, 0, len(text), 1000)
    assert head is not None
    assert (head.forward, head.path, head.target, head.request_id) == (b"accept: y\r\n", "/a", "/a?b=c", None)


def test_leases_cannot_leak() -> None:
    load = Load(2.0)
    lease = load.lease(0.1)
    other = load.lease(0.2)
    assert (load.active, least_loaded([load, Load()], 1)) == (2, 0)
    lease.release()
    lease.release()
    assert load.active == 1
    del other
    assert (load.active, load.outstanding) == (0, 0.0)
    assert least_loaded([], 1) == -1
