"""Recorded samples, how they are replayed, and how two bodies are compared field by field."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from PIL import Image

from tests.conftest import data_url

FOLDER = Path(__file__).parent.parent / "fixtures" / "wire" / "vllm-0.32"
# What differs from run to run; each value is only compared by type. Numbers of list members are left out of the paths.
RANDOM = re.compile(
    r"""(^|\.)(
        id | created | system_fingerprint | remote_engine_id | remote_request_id | remote_port
        | choices\.(token_ids|message\.content|text|delta\.content) | remote_block_ids
    )$""",
    re.VERBOSE,
)
HEADERS = {"server", "content-type", "vary", "x-request-id"}


def sample(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return document


def text(name: str) -> tuple[int, str]:
    status, _, body = (FOLDER / f"{name}.txt").read_text().partition("\n")
    return int(status), body


def events(name: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return listed


def noise(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.effect_noise((width, height), 80).convert("RGB").save(out, "JPEG")
    return out.getvalue()


# The recorded requests have these pictures, whose data was cut out.
FIRST, SECOND = noise(448, 336), noise(640, 480)
PICTURES = {
    "<41807 characters>": data_url(FIRST),
    "<84855 characters>": data_url(SECOND),
    "<20915 characters>": data_url(FIRST[: len(FIRST) // 2]),
    "<26 characters>": data_url(b"this is no picture"),
}


def fill(value: Any) -> Any:
    """A recorded request with its pictures put back."""
    if isinstance(value, dict):
        return {name: fill(each) for name, each in value.items()}
    if isinstance(value, list):
        return [fill(each) for each in value]
    return PICTURES.get(value.rpartition(",")[2], value) if isinstance(value, str) else value


def differences(right: Any, got: Any, path: str = "") -> list[str]:
    """Where two documents differ in names, types and values."""
    if type(right) is not type(got):
        return [f"{path}: {type(right).__name__} is {type(got).__name__} {str(got)[:80]}"]
    if isinstance(right, dict):
        found = [f"{path}: missing {name}" for name in right.keys() - got.keys()]
        found += [f"{path}: new {name}" for name in got.keys() - right.keys()]
        for name in right.keys() & got.keys():
            found += differences(right[name], got[name], f"{path}.{name}" if path else name)
        return found
    if isinstance(right, list):
        found = [] if len(right) == len(got) else [f"{path}: {len(right)} members are {len(got)}"]
        if right and isinstance(right[0], int) and not RANDOM.search(path) and right != got:
            return [*found, f"{path}: other numbers"]
        for one, other in zip(right, got, strict=False):
            found += differences(one, other, path)
        return found
    return [] if right == got or RANDOM.search(path) else [f"{path}: {right!r} is {got!r}"]
