"""Clips: real samplers pick what the router's do, and a list of frames is to a real engine what the file is."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from epd_router.media import sampling
from epd_router.media.frame_list import FrameList, Reader, data_url, plan
from epd_router.media.sampling import FAMILIES, Asked, ClipInfo, Family, SamplingError, sampled
from epd_router.media.video import probe_clip, sample

from ..media import engine_samplers
from ..media.clips import clip
from .conftest import CACHE, ENVIRONMENT
from .fleet import ENVIRONMENT as VARIABLES
from .fleet import tiny_model

AS_ENGINE = Path(__file__).with_name("video_as_engine.py")
LOADERS = {"qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl", "glm4v": "opencv_dynamic", "glm46v": "glm46v"}
CLIPS: dict[str, dict[str, Any]] = {
    "short": {"frames": 60, "gop": 20},
    "long": {"frames": 170, "fps": 10, "gop": 40},
    "one a second": {"frames": 12, "fps": 1},
    "odd rate": {"frames": 75, "fps": Fraction(30000, 1001), "size": (98, 70)},
    "webm": {"frames": 50, "container": "webm", "codec": "libvpx-vp9"},
    "few": {"frames": 3},
}
READERS = {
    "plain": Reader(),
    "two a second": Reader(Asked(num_frames=-1, fps=2)),
    "trusting": Reader(trusts=True),
}


def engine(*command: object) -> Any:
    """What a script of the engine environment prints, as JSON, behind whatever else is said."""
    python = ENVIRONMENT / "bin" / "python"
    run = subprocess.run([python, *map(str, command)], env={**os.environ, **VARIABLES}, stdout=subprocess.PIPE, check=True)
    return json.loads(run.stdout.decode().partition("\nJSON\n")[2])


def test_samplers() -> None:
    found = engine(engine_samplers.__file__, "full")
    assert set(found) == set(engine_samplers.NAMES)
    for rule, rows in found.items():
        family = Family(getattr(sampling, rule), "none")
        wrong = [row for row in rows if engine_samplers.digest(picked(family, row)) != row[-1]]
        assert not wrong, (rule, len(wrong), wrong[:5])


def picked(family: Family, row: list[Any]) -> list[int] | None:
    total, fps, num_frames, rate, _ = row
    try:
        return sampled(family, ClipInfo.of(total, fps), Asked(num_frames, rate)) or None
    except SamplingError:
        return None


def test_lists_of_frames(tmp_path: Path) -> None:
    """Wherever the plan is a list, the engine gets the same; wherever it is not, for the sake of timing, it would not."""
    cases = [(family, name, reader) for family in (*LOADERS, "llava_onevision") for name in CLIPS for reader in READERS]
    requests = [request(tmp_path, *case) for case in cases]
    (tmp_path / "requests.json").write_text(json.dumps(requests))
    *answers, told = engine(AS_ENGINE, tiny_model(ENVIRONMENT, CACHE), tmp_path / "requests.json")
    assert told == {family: FAMILIES[family].timing != "none" for family in FAMILIES}
    kinds = set()
    for case, asked, answer in zip(cases, requests, answers, strict=True):
        assert (answer["file"] is None) == (asked["reason"] == "sampler"), asked
        if asked["list"] is None:
            continue
        kinds.add((case[0], bool(asked["sent"])))
        check(case[0], asked, answer["file"], answer["list"])
    assert kinds >= {
        ("qwen2_vl", False),
        ("qwen2_5_vl", False),
        ("qwen2_5_vl", True),
        ("qwen3_vl", True),
        ("llava_onevision", False),
    }


@functools.cache
def encoded(name: str) -> bytes:
    """Encoders do not give the same bytes twice."""
    return clip(**CLIPS[name])


def request(folder: Path, family: str, name: str, reader_name: str) -> dict[str, Any]:
    data = encoded(name)
    reader, path = READERS[reader_name], folder / f"{name}.clip"
    path.write_bytes(data)
    found, listed = plan(family, probe_clip(data), reader), None
    if isinstance(found, FrameList):
        frames = sample(data, found.indices)
        listed = folder / f"{family} {name} {reader_name}.url"
        listed.write_bytes(data_url(frames.width, frames.height, frames.pixels))
    asked = {"num_frames": reader.asked.num_frames} | ({"fps": reader.asked.fps} if reader.asked.fps else {})
    return {
        "loader": LOADERS.get(family, "opencv"),
        "clip": str(path),
        "list": listed and str(listed),
        "asked": asked,
        "sent": found.io_kwargs["video"] if isinstance(found, FrameList) and found.io_kwargs else None,
        "process": family == "qwen2_vl",
        "reason": None if isinstance(found, FrameList) else found.reason,
    }


def check(family: str, asked: dict[str, Any], file: dict[str, Any], listed: dict[str, Any]) -> None:
    assert listed["frames"] == file["frames"], asked
    if asked["process"]:
        assert listed["input"] == file["input"], asked
    if asked["sent"]:
        assert listed["timing"] == file["timing"], asked
    if FAMILIES[family].timing == "rate":
        assert listed["patch_seconds"] == file["patch_seconds"], asked
    assert FAMILIES[family].timing != "stamps" or asked["sent"], asked


@pytest.mark.parametrize("name", CLIPS)
def test_rate_is_why(name: str) -> None:
    """Without trust Qwen2.5-VL gets a list only from a clip that is sampled at the rate of a list."""
    found = plan("qwen2_5_vl", probe_clip(encoded(name)))
    assert isinstance(found, FrameList) == (name == "one a second")
