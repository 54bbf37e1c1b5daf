"""Clips as lists of frames: whether a worker gets the same from them as from the file, and how they are written.

vLLM takes `data:video/jpeg;base64,F1,F2,...`, every part a picture of any kind, and reads at most `num_frames` of them. A list
says nothing of time: the engine calls it a clip of 1 frame per second whose frames are all there, unless `media_io_kwargs`
say otherwise, which a client may only send to a worker started with `--trust-request-mm-kwargs` and which hold for all clips
of a request (`VideoMediaIO.load_base64` of vLLM 0.32). So a list is the same as the file for models that are told nothing of
time, for the others where the numbers happen to agree or may be sent along, and else not: frames go with their timing or not
at all.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from epd_router.errors import ConfigError
from epd_router.media.sampling import FAMILIES, PATCH, Asked, ClipInfo, Family, SamplingError, frame_indices

LIST_FPS = 1.0  # of a list without timing


@dataclass(frozen=True, slots=True)
class Reader:
    """How a worker reads clips: what its `--media-io-kwargs` ask for, and whether it was started with
    `--trust-request-mm-kwargs`."""

    asked: Asked = field(default_factory=Asked)
    trusts: bool = False


@dataclass(frozen=True, slots=True)
class FrameList:
    """Hand on these frames; `io_kwargs`, where there are any, are the request's `media_io_kwargs`."""

    indices: tuple[int, ...]
    io_kwargs: dict[str, dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class AsFile:
    """Hand on the file. `reason`: `family` (unknown sampler), `sampler` (the engine refuses such a clip), `count` (more frames
    than the worker takes from a list), `timing` (the model would be told other times), `clips` (times for one clip only)."""

    reason: str


def plan(model_type: str, info: ClipInfo, reader: Reader | None = None, *, clips: int = 1) -> FrameList | AsFile:
    """What a worker of this `model_type` is to get in a request with so many clips."""
    family, reader = FAMILIES.get(model_type), reader or Reader()
    if family is None:
        return AsFile("family")
    try:
        indices = tuple(frame_indices(family, info, reader.asked))
    except SamplingError:
        return AsFile("sampler")
    if same_without_timing(family, info, len(indices), reader):
        if 0 <= reader.asked.num_frames < len(indices):
            return AsFile("count") if not reader.trusts or clips > 1 else FrameList(indices, timing(info, indices))
        return FrameList(indices)
    if not reader.trusts:
        return AsFile("timing")
    return FrameList(indices, timing(info, indices)) if clips == 1 else AsFile("clips")


def same_without_timing(family: Family, info: ClipInfo, frames: int, reader: Reader) -> bool:
    """Whether the model is told the same of a bare list of this many frames as of the file."""
    if family.timing != "rate":
        return family.timing == "none"
    listed = LIST_FPS if reader.asked.fps is None else float(reader.asked.fps)
    return patch_seconds(frames / frames * listed) == patch_seconds(frames / info.total_frames * info.fps)


def patch_seconds(sampled_fps: float) -> float:
    """Qwen2.5-VL's `second_per_grid_ts`, a float32."""
    return array("f", [PATCH / sampled_fps])[0]


def timing(info: ClipInfo, indices: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """What the engine's reader says of the file, as request parameters."""
    return {
        "video": {
            "num_frames": -1,
            "fps": info.fps,
            "frames_indices": list(indices),
            "total_num_frames": info.total_frames,
            "duration": info.duration,
            "do_sample_frames": len(indices) == info.total_frames,
        }
    }


def data_url(width: int, height: int, frames: Iterable[bytes]) -> bytes:
    """Frames as RGB bytes in one data URL of portable pixmaps, which cost an engine least to open."""
    head = b"P6\n%d %d\n255\n" % (width, height)
    return b"data:video/jpeg;base64," + b",".join(b64encode(head + pixels) for pixels in frames)


def check_installed() -> None:
    """Raise ConfigError where clips cannot be decoded."""
    if find_spec("av") is None:
        raise ConfigError("reading clips needs PyAV: pip install 'epd-router[video]'")
