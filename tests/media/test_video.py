"""Clips: samplers as the engines have them, frames as the engines' reader gives them, and when a list of them is the same."""

from __future__ import annotations

import base64
import contextlib
import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from epd_router.errors import ConfigError
from epd_router.media import frame_list, sampling, video
from epd_router.media.frame_list import AsFile, FrameList, Reader, data_url, plan
from epd_router.media.sampling import FAMILIES, Asked, ClipInfo, Family, SamplingError, frame_indices, sampled
from epd_router.media.video import Clip, ClipError, VideoLimits, probe_clip, sample, sample_by
from PIL import Image

from .clips import clip, doubled, nearly_even, trimmed, turned, uneven
from .engine_samplers import digest
from .opencv import seen

GOLDEN = Path(__file__).parents[1] / "fixtures" / "video" / "sampled.json"
FIXED = {"sc_threshold": "0"}
X265 = {"preset": "veryfast"}
TIMES: dict[str, dict[str, Any]] = {
    "even": {},
    "ntsc": {"fps": Fraction(30000, 1001)},
    "late": {"at": lambda index: index + 10},
    "uneven": {"scale": 1000, "at": uneven()},
    "nearly even": {"scale": 1000, "at": nearly_even()},
}
CODECS: dict[str, dict[str, Any]] = {
    "h264": {},
    "h264 without b": {"b_frames": 0, "options": FIXED},
    "h264 open gop": {"options": {"x264-params": "open-gop=1:keyint=24:scenecut=0"}},
    "h264 refresh": {"b_frames": 0, "options": {"x264-params": "intra-refresh=1:keyint=24:scenecut=0"}},
    "hevc": {"codec": "libx265", "options": X265 | {"x265-params": "log-level=none:pools=1:keyint=24:bframes=4"}},
    "hevc open gop": {"codec": "libx265", "options": X265 | {"x265-params": "log-level=none:pools=1:keyint=24:open-gop=1"}},
    "vp9": {"codec": "libvpx-vp9"},
    "vp9 hidden": {
        "codec": "libvpx-vp9",
        "options": {"auto-alt-ref": "1", "lag-in-frames": "16", "deadline": "good", "cpu-used": "5"},
    },
    "vp8": {"codec": "libvpx"},
    "vp8 hidden": {"codec": "libvpx", "options": {"auto-alt-ref": "1", "lag-in-frames": "16", "deadline": "good", "cpu-used": "5"}},
    "mjpeg": {"codec": "mjpeg", "pixels": "yuvj420p"},
}
FORMS: dict[str, dict[str, Any]] = {
    "mp4": {"container": "mp4"},
    "fragments": {"container": "mp4", "muxing": {"movflags": "frag_keyframe+empty_moov"}},
    "matroska": {"container": "matroska"},
    "avi": {"container": "avi"},
}
PIXELS: dict[str, dict[str, Any]] = {
    **{f"h264 {name}": {"pixels": name} for name in ("yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuvj420p", "yuvj444p")},
    **{f"h264 {size}": {"size": size} for size in ((66, 50), (130, 98), (854, 480))},
    **{f"vp9 {size}": {"size": size, "container": "webm", "codec": "libvpx-vp9"} for size in ((65, 49), (64, 49), (1, 1), (7, 5))},
    **{f"mjpeg {name}": {"pixels": name, "codec": "mjpeg", "size": (64, 49)} for name in ("yuvj420p", "yuvj422p", "yuvj444p")},
    "rgb": {"codec": "libx264rgb", "pixels": "rgb24"},
    "grey": {"codec": "libx265", "pixels": "gray"},
    "bt709": {"codec_set": {"colorspace": 1, "color_primaries": 1, "color_trc": 1}},
    "bt601": {"codec_set": {"colorspace": 6, "color_primaries": 6, "color_trc": 6}},
    "bt709, full range": {"codec_set": {"colorspace": 1, "color_range": 2}},
    "fcc": {"codec_set": {"colorspace": 4}},
}
TURNS = {"cw": (0, 65536, -65536, 0), "180": (-65536, 0, 0, -65536), "ccw": (0, -65536, 65536, 0), "mirror": (-65536, 0, 0, 65536)}


def defaults(**options: Any) -> dict[str, Any]:
    return options


def evenly(count: int) -> Callable[[int], list[int]]:
    return lambda total: sorted({index * (total - 1) // (count - 1) for index in range(count)}) if total > 0 else []


def compare(data: bytes, choose: Callable[[int], Sequence[int]]) -> None:
    """Raises ClipError where ours refuses."""
    ours = sample_by(data, lambda info: choose(info.total_frames))
    theirs = seen(data, choose)
    assert theirs is not None
    assert (ours.info.total_frames, ours.info.fps) == (theirs.total, theirs.fps)
    assert ours.indices == tuple(theirs.frames)
    for pixels, (size, expected) in zip(ours.pixels, theirs.frames.values(), strict=True):
        assert (ours.height, ours.width) == size
        assert pixels == expected


def refusal(data: bytes, limits: VideoLimits | None = None) -> str:
    with pytest.raises(ClipError) as caught:
        sample_by(data, lambda info: evenly(4)(info.total_frames), limits)
    return caught.value.reason


# --- samplers ---


@pytest.mark.parametrize("rule", ["uniform", "qwen2_vl", "qwen3_vl", "glm4v", "glm46v"])
def test_golden(rule: str) -> None:
    rows = json.loads(GOLDEN.read_text())[rule]
    family = Family(getattr(sampling, rule), "none")
    for total, fps, num_frames, rate, expected in rows:
        try:
            found = sampled(family, ClipInfo.of(total, fps), Asked(num_frames, rate)) or None
        except SamplingError:
            found = None
        assert digest(found) == expected, (total, fps, num_frames, rate)
    assert len(rows) > 200


def test_worked_examples() -> None:
    ten_seconds = ClipInfo.of(240, 24.0)
    assert frame_indices(FAMILIES["qwen2_vl"], ten_seconds) == list(range(0, 240, 12))
    assert frame_indices(FAMILIES["qwen3_vl"], ten_seconds)[:4] == [0, 13, 25, 38]
    assert frame_indices(FAMILIES["internvl"], ten_seconds)[-3:] == [223, 231, 239]
    assert len(frame_indices(FAMILIES["glm46v"], ten_seconds)) == 60
    assert frame_indices(FAMILIES["gemma4"], ClipInfo.of(5, 24.0)) == [0, 1, 2, 3, 4]
    assert frame_indices(FAMILIES["llava_onevision"], ten_seconds, Asked(-1, 0.5)) == [0, 59, 119, 179, 239]


def test_frames_are_read_once() -> None:
    """GLM evens an odd number of frames by the last one a second time, which the engine's reader does not see."""
    info = ClipInfo.of(35, 11.0)
    assert sampled(FAMILIES["glm46v"], info)[-4:] == [30, 32, 33, 33]
    assert frame_indices(FAMILIES["glm46v"], info)[-3:] == [30, 32, 33]


@pytest.mark.parametrize(
    ("family", "info"), [("qwen2_vl", ClipInfo(9, 0, 0)), ("qwen2_vl", ClipInfo.of(1, 2)), ("glm4v", ClipInfo.of(3, 24))]
)
def test_refused_by_samplers(family: str, info: ClipInfo) -> None:
    with pytest.raises(SamplingError):
        frame_indices(FAMILIES[family], info)
    assert plan(family, info) == AsFile("sampler")


# --- frames ---


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", CODECS)
def test_timelines(codec: str, form: str) -> None:
    tried = 0
    for name, times in TIMES.items():
        if form == "avi" and name not in ("even", "ntsc"):
            continue
        if codec not in ("h264", "hevc", "vp9") and name not in ("even", "uneven"):
            continue
        try:
            data = clip(**defaults(frames=72, gop=20) | CODECS[codec] | FORMS[form] | times)
        except (ValueError, OSError):
            continue  # a pair that cannot be
        for count in (4, 30):
            compare(data, evenly(count))
        tried += 1
    assert tried or (codec[:3], form) in {("vp8", "mp4"), ("vp8", "fragments"), ("hev", "avi")}


@pytest.mark.parametrize("name", PIXELS)
def test_pixels(name: str) -> None:
    compare(clip(**defaults(frames=5) | PIXELS[name]), evenly(3))


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("size", [(64, 48), (66, 50)])
def test_turned(turn: str, size: tuple[int, int]) -> None:
    data = turned(clip(20, size), TURNS[turn])
    compare(data, evenly(5))
    frames = sample(data, [0])
    assert (frames.width, frames.height) == (size[::-1] if "cw" in turn else size)


@pytest.mark.parametrize("start", [0.1, 0.5, 1.3, 2.05])
@pytest.mark.parametrize("end", [3.3, 9.0])
def test_edit_lists(start: float, end: float) -> None:
    for options in (defaults(), defaults(b_frames=3), CODECS["hevc"]):
        data = trimmed(clip(120, gop=30, **options), start, end)
        for count in (4, 60):
            compare(data, evenly(count))


@pytest.mark.parametrize("frames", [2, 3, 16, 17, 18, 33])
def test_short(frames: int) -> None:
    for codec in ("h264", "hevc", "vp9", "mjpeg"):
        data = clip(**defaults(frames=frames, container="matroska") | CODECS[codec])
        if codec.startswith("h") and frames < 4:  # FFmpeg does not find out when they start
            with contextlib.suppress(ClipError):
                compare(data, evenly(5))
        else:
            compare(data, evenly(5))


def test_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from end to end, a clip with bits flipped or its end missing gives the engine's frames or none."""
    monkeypatch.setattr(video, "JUMPS", frozenset())
    dice, exact, refused = random.Random(3), 0, 0
    for codec, form in (
        ("h264", "mp4"),
        ("hevc", "mp4"),
        ("vp9", "matroska"),
        ("mjpeg", "avi"),
        ("vp8", "matroska"),
    ):
        whole = clip(**defaults(frames=50) | CODECS[codec] | FORMS[form])
        for _ in range(25):
            data = bytearray(whole[: dice.choice((len(whole), len(whole), dice.randrange(len(whole) // 3, len(whole))))])
            for _ in range(dice.choice((1, 1, 6))):
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            try:
                compare(bytes(data), evenly(dice.choice((3, 6, 25))))
                exact += 1
            except ClipError:
                refused += 1
    assert exact > 40
    assert refused > 20


def test_jumps() -> None:
    """Only what leads up to a wanted frame is decoded, where there are key frames to jump to."""

    def work(data: bytes, indices: list[int]) -> float:
        with Clip(data, VideoLimits()) as opened:
            before = opened.work
            opened.frames(indices)
            return (opened.work - before) / (64 * 48)

    short, long = (clip(240, gop=gop, options=FIXED) for gop in (24, 500))
    assert work(short, [0, 120, 239]) < 60
    assert work(short, list(range(0, 240, 12))) < 160
    assert work(short, list(range(0, 240, 6))) > 200
    assert work(long, [0, 120, 239]) >= 240


def test_key_frames_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intra refresh calls frames key frames from which pictures only become whole by and by: they are not landed on."""
    monkeypatch.setattr(video, "WORTH_A_JUMP", 1)
    data = clip(**defaults(frames=100) | CODECS["h264 refresh"])
    for count in (2, 3, 9):
        compare(data, evenly(count))


def test_side_by_side() -> None:
    clips = [clip(60, gop=gop, size=(128, 96)) for gop in (10, 20, 30, 60)]
    alone = [sample(data, [0, 30, 59]) for data in clips]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda data: sample(data, [0, 30, 59]), clips * 6)) == alone * 6


def test_probe() -> None:
    assert probe_clip(clip(48)) == ClipInfo(48, 24.0, 2.0)
    assert probe_clip(clip(30, fps=Fraction(30000, 1001), container="matroska")) == ClipInfo.of(30, 30000 / 1001)


# --- refusals ---


def test_refused() -> None:
    with_gaps = CODECS["mjpeg"] | defaults(container="avi", at=lambda index: index + 9 * (index > 5))
    assert refusal(clip(30, codec="libsvtav1")) == "codec"  # the engine's reader cannot either
    assert refusal(clip(30, codec="mpeg4")) == "codec"  # hides damage
    assert refusal(clip(30, container="matroska", seekable=False)) == "length"
    assert refusal(clip(1)) == "length"
    assert refusal(clip(30, **with_gaps)) == "timing"
    assert refusal(clip(30, codec_set={"color_primaries": 9, "color_trc": 16, "colorspace": 9})) == "colours"
    assert refusal(clip(60, size=(64, 48))[:1500]) == "broken"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#EXTM3U\nhttp://127.0.0.1/a.ts\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<MPD></MPD>",
        b"GIF89a" + bytes(40),
        b"G" * 400,
    ],
)
def test_only_plain_containers(data: bytes) -> None:
    assert refusal(data) == "container"


def test_limits() -> None:
    data = clip(40)
    assert refusal(data, VideoLimits(pixels=64 * 48 - 1)) == "size"
    assert refusal(data, VideoLimits(frames=3)) == "size"
    assert refusal(data, VideoLimits(bytes=4 * 64 * 48 * 3 - 1)) == "size"
    assert refusal(data, VideoLimits(packets=39)) == "length"
    assert refusal(data, VideoLimits(work=64 * 48 * 5)) == "length"
    with pytest.raises(ValueError, match="not in the clip"):
        sample(data, [40])


def test_several_streams() -> None:
    assert refusal(doubled(clip(20))) == "streams"


# --- plans ---


def test_plans() -> None:
    info, sampled_at_1 = ClipInfo.of(240, 24.0), ClipInfo.of(12, 1.0)
    assert plan("qwen2_vl", info) == FrameList(tuple(range(0, 240, 12)))
    assert plan("qwen2_5_vl", info) == AsFile("timing")
    assert plan("qwen2_5_vl", sampled_at_1) == FrameList(tuple(range(12)))
    assert plan("qwen2_5_vl", info, Reader(Asked(-1, 2.0))) == FrameList(tuple(range(0, 240, 12)))
    assert plan("qwen2_5_vl", ClipInfo.of(241, 24.0), Reader(Asked(-1, 2.0))) == AsFile("timing")
    assert plan("qwen3_vl", sampled_at_1) == AsFile("timing")
    assert plan("internvl", info) == FrameList(tuple(frame_indices(FAMILIES["internvl"], info)))
    assert plan("gemma4", info) == AsFile("timing")
    assert plan("a_new_one", info) == AsFile("family")


def test_count() -> None:
    minute = ClipInfo.of(1440, 24.0)
    assert plan("qwen2_vl", minute) == AsFile("count")
    assert isinstance(plan("qwen2_vl", minute, Reader(Asked(-1))), FrameList)
    assert isinstance(plan("qwen2_vl", minute, Reader(trusts=True)), FrameList)
    assert plan("qwen2_vl", minute, Reader(trusts=True), clips=2) == AsFile("count")


def test_timing_is_sent_along() -> None:
    found = plan("qwen3_vl", ClipInfo.of(48, 24.0), Reader(trusts=True))
    said = {"num_frames": -1, "fps": 24.0, "frames_indices": [0, 16, 31, 47], "total_num_frames": 48, "duration": 2.0}
    assert found == FrameList((0, 16, 31, 47), {"video": said | {"do_sample_frames": False}})
    assert plan("qwen3_vl", ClipInfo.of(48, 24.0), Reader(trusts=True), clips=2) == AsFile("clips")
    everything = plan("qwen3_vl", ClipInfo.of(4, 2.0), Reader(trusts=True))
    assert isinstance(everything, FrameList)
    assert everything.io_kwargs is not None
    assert everything.io_kwargs["video"]["do_sample_frames"] is True


def test_data_url() -> None:
    frames = sample(clip(20, (66, 50)), [0, 7, 19])
    head, *parts = data_url(frames.width, frames.height, frames.pixels).split(b",")
    assert head == b"data:video/jpeg;base64"
    pictures = [Image.open(BytesIO(base64.b64decode(part, validate=True))) for part in parts]
    assert [(picture.size, picture.mode, picture.tobytes()) for picture in pictures] == [
        ((66, 50), "RGB", rgb) for rgb in frames.pixels
    ]


def test_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    frame_list.check_installed()
    monkeypatch.setattr(frame_list, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"epd-router\[video\]"):
        frame_list.check_installed()
