"""The scanner against Python's `json`, and splices against parse, edit, serialise."""

from __future__ import annotations

import base64
import json
from typing import Any

from epd_router._core import BodyError, identify, scan
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
# Names the router judges have rules of their own, which the unit tests cover.
ODD = ["seed", "tools", "x y", 'q"', "\\", "\u00e9", "\U0001f600"]
NAMES = st.text(max_size=4).filter(lambda name: name not in ("n", "echo")) | st.sampled_from(ODD)
BODIES = st.dictionaries(NAMES, JSON, max_size=6)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
MEDIA = st.fixed_dictionaries(
    {"type": st.just("image_url"), "image_url": st.sampled_from(["http://x/", "data:;base64,AAAA", None])},
    optional={"uuid": JSON, "detail": st.text()},
)
PARTS = st.lists(MEDIA | st.builds(lambda text: {"type": "text", "text": text}, st.text()), max_size=5)


def constant(name: str) -> Any:
    raise ValueError(name)


def accepted(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text.decode(), parse_constant=constant), dict)
    except (ValueError, RecursionError):
        return False


def refused(text: bytes) -> BodyError | None:
    try:
        scan(text)
    except BodyError as error:
        if not 0 <= error.offset <= len(text):
            raise AssertionError(error.offset) from error
        return error
    return None


@given(BODIES, SEPARATORS, st.booleans())
def test_what_json_writes_is_accepted(value: dict[str, Any], separators: tuple[str, str], ascii_only: bool) -> None:
    text = json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    assert refused(text) is None
    assert scan(text).fields == tuple(value)


@given(BODIES, st.data())
def test_damage_is_judged_as_json_does(value: dict[str, Any], data: st.DataObject) -> None:
    text = bytearray(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(text) - 1, 0)))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2) | st.sampled_from([b'"', b"\\", b"{", b"}", b",", b"1", b"NaN", b"\\ud800"])
        )
    error = refused(bytes(text))
    if error is not None and error.code == "invalid_value":
        return
    assert (error is None) == accepted(bytes(text))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_crash(text: bytes) -> None:
    error = refused(text)
    assert (error is None) == accepted(text) or (error is not None and error.code == "invalid_value")


@given(BODIES, PARTS, st.lists(st.tuples(NAMES, st.none() | JSON), max_size=4), SEPARATORS, st.data())
def test_edits(
    value: dict[str, Any],
    parts: list[dict[str, Any]],
    changes: list[tuple[str, Any]],
    separators: tuple[str, str],
    data: st.DataObject,
) -> None:
    value = {**value, "messages": [{"role": "user", "content": parts}]}
    text = json.dumps(value, separators=separators).encode()
    found = scan(text)
    items = [part for part in parts if part["type"] == "image_url"]
    assert len(found.items) == len(items)
    edits = found.edit()
    for index, part in enumerate(items):
        uuid = data.draw(st.none() | st.just("keep") | st.text("0123456789abcdef", min_size=1), label="uuid")
        if uuid == "keep":
            continue
        edits.set_uuid(index, uuid)
        part.pop("uuid", None)
        if uuid is not None:
            part["uuid"] = uuid
    for name, new in changes:
        if new is None:
            edits.remove(name)
            value.pop(name, None)
        else:
            edits.set(name, json.dumps(new).encode())
            value[name] = new
    pieces, length = edits.apply(text)
    joined = b"".join(pieces)
    assert len(joined) == length
    assert json.loads(joined) == value


@given(BODIES, SEPARATORS, JSON)
def test_bytes_outside_an_edit_stay(value: dict[str, Any], separators: tuple[str, str], new: Any) -> None:
    value.pop("target", None)
    text = json.dumps({"a0": 1, "target": 5, **value}, separators=separators).encode()
    edits = scan(text).edit()
    edits.set("target", json.dumps(new).encode())
    pieces, _ = edits.apply(text)
    key = b'"target"' + separators[1].encode()
    assert b"".join(pieces) == text.replace(key + b"5", key + json.dumps(new).encode(), 1)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_spellings_of_base64(content: bytes, data: st.DataObject) -> None:
    plain = base64.b64encode(content).decode()

    def identity(payload: str) -> str | None:
        text = json.dumps({"content_parts": [{"image_url": "data:image/png;base64," + payload}]}).encode()
        named = identify(text, scan(text), b"")[0]
        return named and named.id

    spelled = plain
    if data.draw(st.booleans(), label="url-safe"):
        spelled = base64.urlsafe_b64encode(content).decode()
    if data.draw(st.booleans(), label="no padding"):
        spelled = spelled.rstrip("=")
    if data.draw(st.booleans(), label="percent"):
        spelled = "".join(f"%{ord(char):02X}" if char in "+/=" else char for char in spelled)
    elif data.draw(st.booleans(), label="blanks"):
        spelled = "".join(char + data.draw(st.sampled_from(["", "", " ", "\n", "\r\n"])) for char in spelled)
    assert identity(spelled) == identity(plain)
    assert identity(base64.b64encode(content + b"x").decode()) != identity(plain)
