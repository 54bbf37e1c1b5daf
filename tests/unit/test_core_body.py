"""Scanner, splices and media identity on chosen bodies."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from epd_router._core import (
    BodyError,
    Item,
    clean_text,
    data_url,
    derive_id,
    error_table,
    identify,
    item_bytes,
    item_pieces,
    name_bytes,
    scan,
)

PNG = "data:image/png;base64,"


def body(*parts: Any, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": list(parts)}], **more}).encode()


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def only(part: Any) -> Item:
    (item,) = scan(body(part)).items
    return item


def code(text: bytes, **limits: int) -> tuple[str, str | None]:
    with pytest.raises(BodyError) as caught:
        scan(text, **limits)
    return caught.value.code, caught.value.param


def test_error_table_is_sound() -> None:
    table = error_table()
    assert len({row[0] for row in table}) == len(table) == 32
    assert ("http_version", 505) in {row[:2] for row in table}


def test_scalars() -> None:
    found = scan(b' { "model" : "m\\u00e9", "stream":true,"n":2, "max_tokens":9, "max_completion_tokens":7, "prompt":["ab","c"]} ')
    assert (found.model, found.stream, found.n, found.max_tokens, found.text_bytes) == ("m\xe9", True, 2, 7, 3)
    assert found.fields == ("model", "stream", "n", "max_tokens", "max_completion_tokens", "prompt")
    empty = scan(b'{"model":null,"stream":null,"n":null,"max_tokens":null,"max_output_tokens":-3}')
    assert (empty.model, empty.stream, empty.n, empty.max_tokens) == (None, False, 1, None)


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (b'{"model":1}', "model"),
        (b'{"stream":"yes"}', "stream"),
        (b'{"max_tokens":"9"}', "max_tokens"),
        (b'{"n":[]}', "n"),
        (b'{"model":"a","mod\\u0065l":"b"}', "model"),
        (b'{"messages":[],"messages":[]}', "messages"),
        (b'{"messages":[{"content":"a","content":[]}]}', "messages[0].content"),
        (b'{"messages":[{"content":[{"type":"text","uuid":"a","uu\\u0069d":"b"}]}]}', "messages[0].content[0].uuid"),
        (b'{"messages":[{"content":[{"image_url":{"url":"a","url":"b"}}]}]}', None),
    ],
)
def test_invalid_values(text: bytes, param: str | None) -> None:
    found = code(text)
    assert found[0] == "invalid_value"
    assert param is None or found[1] == param


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b'"a"', b"{", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{"a":01}', b'{"a":NaN}', b'{"a":-Infinity}',
        b'{"a":1}x', b'{"a":"\x01"}', b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\\x"}', b'{"a":"\\u12"}',
        b'{"a":1.}', b'{"a":.5}', b'{"a":1e}', b"{'a':1}", b'{"a":tru}', b'\xef\xbb\xbf{}', b'{"a":\x00}', b'{"a',
    ],
)  # fmt: skip
def test_invalid_json(text: bytes) -> None:
    with pytest.raises(BodyError) as caught:
        scan(text)
    assert caught.value.code == "invalid_json"
    assert 0 <= caught.value.offset <= len(text)


def test_limits() -> None:
    deep = b'{"a":' + b"[" * 127 + b"]" * 127 + b"}"
    scan(deep)
    assert code(b'{"a":' + b"[" * 128 + b"]" * 128 + b"}")[0] == "invalid_value"
    many = body(*[image("http://x/")] * 3)
    assert len(scan(many, max_items=3).items) == 3
    assert code(many, max_items=2)[0] == "invalid_value"
    for opening in (b"[", b'{"content":['):
        hostile = b'{"messages":' + opening * 200_000
        assert code(hostile, max_depth=10**9)[0] in ("invalid_value", "invalid_json")


@pytest.mark.parametrize(
    ("part", "modality", "source", "url"),
    [
        (image({"url": PNG + "AAAA"}), "image", "data", None),
        (image("HTTPS://x/y"), "image", "http", "HTTPS://x/y"),
        (image("file:///etc/passwd"), "image", "other", "file:///etc/passwd"),
        (image(" data:,"), "image", "data", None),
        (image(None), "image", "none", None),
        (image({}), "image", "none", None),
        (image(""), "image", "none", None),
        ({"type": "image_url", "uuid": "a"}, "image", "none", None),
        ({"image_url": "http://x/"}, "image", "http", "http://x/"),
        ({"type": "text", "text": "t", "image_url": "http://x/"}, "image", "http", "http://x/"),
        ({"type": "input_image", "image_url": "http://x/"}, "image", "http", "http://x/"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "audio", "data", None),
        ({"type": "audio_url", "audio_url": {"url": "http://x/"}}, "audio", "http", "http://x/"),
        ({"type": "video_url", "video_url": {"url": "http://x/"}}, "video", "http", "http://x/"),
        ({"type": "image", "source": {"type": "base64", "data": "AAAA"}}, "image", "data", None),
        ({"type": "image", "source": {"type": "url", "url": "http://x/"}}, "image", "http", "http://x/"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "image", "embeds", None),
        ({"type": "text", "text": "t", "video_embeds": None}, "video", "embeds", None),
        ({"type": "image_url", "image_url": "http://x/", "image_embeds": "A"}, "image", "embeds", None),
        ({"type": "prompt_embeds", "data": "AAAA"}, "prompt", "embeds", None),
    ],
)
def test_parts(part: Any, modality: str, source: str, url: str | None) -> None:
    item = only(part)
    assert (item.modality, item.source, item.url, item.param) == (modality, source, url, "messages[0].content[0]")
    text = body(part)
    assert json.loads(text[slice(*item.span)]) == part


@pytest.mark.parametrize("blank", [" " * 70, "\n" * 40, "\x01" * 20])
def test_blanks_do_not_hide_a_url(blank: str) -> None:
    """URL parsers skip them: an unseen URL would be fetched by the engine, unguarded."""
    assert only(image(blank + "http://169.254.169.254/")).source == "http"


@pytest.mark.parametrize("url", [["http://x/"], {"url": {"url": "http://x/"}}, 5, True])
def test_media_of_a_wrong_type_is_refused(url: Any) -> None:
    assert code(body(image(url)))[0] == "invalid_value"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": "http://a/", "video_url": "http://b/"},
        {"type": "image_url", "image_url": {"url": "http://a/", "data": "AAAA"}},
    ],
)
def test_two_payloads_are_refused(part: Any) -> None:
    assert code(body(part))[0] == "invalid_value"


def test_parts_at_other_places() -> None:
    text = json.dumps(
        {
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://a/"}]}],
            "content_parts": [{"type": "image_url", "url": None, "image_url": "http://c/"}],
            "messages": [{"content": [{"type": "tool_result", "content": [image("http://b/")]}]}],
            "tools": [image("http://no/")],
        }
    ).encode()
    assert [item.url for item in scan(text).items] == ["http://a/", "http://c/", "http://b/"]


def test_parts_in_a_document_are_seen() -> None:
    part = {"type": "document", "source": {"type": "content", "content": [image("http://x/")]}}
    assert only_url(part) == ["http://x/"]


def test_a_source_without_a_type_is_a_part() -> None:
    assert only({"source": {"type": "base64", "data": "AAAA"}}).source == "data"


def only_url(part: Any) -> list[str | None]:
    return [item.url for item in scan(body(part)).items]


def spliced(text: bytes, *calls: tuple[Any, ...]) -> bytes:
    edits = scan(text).edit()
    for name, *arguments in calls:
        getattr(edits, name)(*arguments)
    pieces, length = edits.apply(text)
    joined = b"".join(pieces)
    assert len(joined) == length
    return joined


@pytest.mark.parametrize(
    ("text", "calls", "expected"),
    [
        (b'{ "a" : 1 }', [], b'{ "a" : 1 }'),
        (b'{ "a" : 1 }', [("set", "a", b"2")], b'{ "a" : 2 }'),
        (b'{ "a" : 1 }', [("set", "b", b"2")], b'{"b":2, "a" : 1 }'),
        (b"{}", [("set", "b", b"2")], b'{"b":2}'),
        (b'{"a":1}', [("remove", "a")], b"{}"),
        (b'{"a":1}', [("remove", "a"), ("set", "b", b"2")], b'{"b":2}'),
        (b'{"a":1}', [("remove", "a"), ("set", "a", b"2")], b'{"a":2}'),
        (b'{"a":1,"b":2,"c":3}', [("remove", "a"), ("remove", "b")], b'{"c":3}'),
        (b'{"a":1,"b":2,"c":3}', [("remove", "b"), ("remove", "c")], b'{"a":1}'),
        (b'{"a":1,"b":2,"c":3}', [("remove", "a"), ("remove", "c"), ("set", "b", b"9")], b'{"b":9}'),
        (b'{"x":1,"x":2}', [("remove", "x")], b"{}"),
    ],
)
def test_splices(text: bytes, calls: list[tuple[Any, ...]], expected: bytes) -> None:
    assert spliced(text, *calls) == expected


def test_of_a_repeated_member_the_last_counts() -> None:
    text = b'{"x":1,"x":2}'
    assert scan(text).raw(text, "x") == b"2"


def test_uuid_edits() -> None:
    for part, expected in (
        ({"type": "image_url", "image_url": "http://x/"}, {"uuid": "u"}),
        ({"uuid": "old", "image_url": "http://x/"}, {"uuid": "u"}),
        ({"image_url": "http://x/", "uuid": {"a": [1]}}, {"uuid": "u"}),
    ):
        text = body(part)
        assert json.loads(spliced(text, ("set_uuid", 0, "u")))["messages"][0]["content"][0] == {**part, **expected}
        without = {key: value for key, value in part.items() if key != "uuid"}
        assert json.loads(spliced(text, ("set_uuid", 0, None)))["messages"][0]["content"][0] == without
        assert json.loads(b"".join(item_pieces(text, scan(text).items[0], "u"))) == {**part, **expected}
    with pytest.raises(IndexError):
        scan(b"{}").edit().set_uuid(0, "u")


def test_long_ranges_are_views() -> None:
    text = bytearray(body(image(PNG + "A" * 100_000), stream=True))
    found = scan(text)
    edits = found.edit()
    edits.set_uuid(0, "u" * 64)
    edits.set("stream", b"false")
    pieces, length = edits.apply(text)
    assert [type(piece) for piece in pieces] == [bytes, memoryview, bytes]
    assert length == sum(map(len, pieces))
    with pytest.raises(BufferError):
        text.append(0)
    del pieces
    text.append(0)
    with pytest.raises(ValueError, match="scanned"):
        edits.apply(text)


def identity(text: bytes) -> str | None:
    named = identify(text, scan(text), b"salt")[0]
    return named and named.id


@pytest.mark.parametrize(
    "url",
    [
        "DATA:image/png;base64,+/+/", "data:;charset=utf-8;base64,+/+/", "data:image/png; BASE64 ,+/+/",
        "data:image/png;base64,+/\n+/", "data:image/png;base64, + / + / ", "data:image/png;base64,-_-_",
        "data:image/png;base64,%2B/%2b%2F", "data:;base64,+/+/",
    ],
)  # fmt: skip
def test_spellings_of_one_picture(url: str) -> None:
    assert identity(body(image(url))) == identity(body(image(PNG + "+/+/")))


def test_padding_and_json_escapes() -> None:
    assert identity(body(image(PNG + "QQ"))) == identity(body(image(PNG + "QQ==")))
    assert identity(body(image(PNG + "QQ%3D%3d"))) == identity(body(image(PNG + "QQ==")))
    escaped = body(image(PNG + "+/+/")).replace(b"+/+/", b"\\u002b\\/+\\/")
    assert identity(escaped) == identity(body(image(PNG + "+/+/")))
    audio = {"type": "input_audio", "input_audio": {"data": "+/+/"}}
    assert identity(body(audio)) != identity(body(image(PNG + "+/+/")))


@pytest.mark.parametrize("kind", ["f", "b"])
def test_escapes_are_not_taken_for_letters(kind: str) -> None:
    """Else bytes of one picture could be given the identity of another."""
    strange = body(image(PNG + "AAxA")).replace(b"AAxA", b"AA\\" + kind.encode() + b"A")
    try:
        found = identity(strange)
    except BodyError:
        return
    assert found != identity(body(image(PNG + f"AA{kind}A")))


@pytest.mark.parametrize(
    "url",
    [
        PNG + "A", PNG + "AA=A", PNG + "AAA==", PNG + "+_AA", PNG + "AA!A", PNG, "data:image/png,AAAA", "data:",
        "data:image/png;base64;name=x,AAAA", PNG + "%2", PNG + "é",
    ],
)  # fmt: skip
def test_what_is_not_base64(url: str) -> None:
    with pytest.raises(BodyError) as caught:
        identity(body(image(url)))
    assert (caught.value.code, caught.value.param) == ("invalid_value", "messages[0].content[0]")


def test_percent_escapes_are_for_urls_only() -> None:
    with pytest.raises(BodyError):
        identity(body({"type": "input_audio", "input_audio": {"data": "AA%2B"}}))


def test_a_list_of_frames_is_a_video() -> None:
    def video(frames: str, mime: str = "video/jpeg") -> str | None:
        return identity(body({"type": "video_url", "video_url": {"url": f"data:{mime};base64,{frames}"}}))

    assert len({video("AAAA,BBBB"), video("AAAABBBB"), video("BBBB,AAAA"), video("AAAABBBB", "video/mp4")}) == 4


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("data:image/jpg;base64,R0lGODlh", True),
        ("DATA:image/gif;base64,R0lGODlh", False),
        ("data:image/gif;BASE64,R0lGODlh", False),
        ("data:image/gif;base64,R0lG ODlh", False),
        ("data:image/gif;base64,R0lGODlhQQ", False),
        ("data:image/gif;base64,R0lGODlh%41A==", False),
    ],
)
def test_what_strict_decoders_would_not_take_has_a_clean_spelling(url: str, clean: bool) -> None:
    text = body(image(url))
    (item,), (named,) = (found := scan(text)).items, identify(text, found := scan(text), b"")
    assert named is not None
    assert named.canonical is clean
    content = item_bytes(text, item)
    assert content is not None
    assert content.startswith(b"GIF89a")
    assert clean_text(text, item) == data_url(content, "image") == b"data:image/gif;base64," + base64.b64encode(content)
    edits = found.edit()
    edits.set_url(0, data_url(content, "image"))
    edits.set_uuid(0, "u")
    edited = json.loads(b"".join(edits.apply(text)[0]))["messages"][0]["content"][0]
    assert edited == {**image(data_url(content, "image").decode()), "uuid": "u"}
    part = json.loads(b"".join(item_pieces(text, item, "u", b"file:///x")))
    assert part == {**image("file:///x"), "uuid": "u"}
    for bad in (b'"', b"\\", b"\n", "é".encode()):
        with pytest.raises(ValueError, match="escapes"):
            edits.set_url(0, bad)


def test_identity_depends_on_salt_and_bytes() -> None:
    content = bytes(range(256)) * 1000
    text = body(image(PNG + base64.b64encode(content).decode()), image("http://x/"))
    found = scan(text)
    one, none = identify(text, found, b"a")
    assert none is None
    assert one is not None
    assert len(one.id) == 64
    assert (one.size, one.canonical, one.probe) == (len(content), True, None)
    other = identify(bytearray(text), found, b"b")[0]
    assert other is not None
    assert one.id != other.id
    assert one.id == name_bytes(content, "image", b"a").id != name_bytes(content, "audio", b"a").id
    assert derive_id([b"a", b"bc"]) != derive_id([b"ab", b"c"])
