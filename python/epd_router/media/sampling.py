"""Which frames of a clip an engine shows to its model: the samplers of vLLM 0.32, by family. Arithmetic only, no files.

Rules are those of `vllm/multimodal/video.py`, to the last bit: numpy's `linspace` and `round` in float64, and for Qwen2-VL
the float32 of `torch.arange` as it is vectorised on x86. An engine picks its rule by the class of the checkpoint's video
processor; the table is keyed on `model_type`, which implies that class unless a checkpoint overrides it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

PATCH = 2  # frames that one temporal patch of Qwen and GLM holds
MIN_FRAMES, MAX_FRAMES, MAX_FPS = 4, 768, 30  # Qwen
MAX_DURATION = 300  # seconds up to which GLM-4V samples by rate
UNKNOWN_FPS = 24.0  # what Qwen3-VL takes for a clip that does not say
LANES = 8  # float32 values that torch makes at a time


@dataclass(frozen=True, slots=True)
class ClipInfo:
    """A clip as the engine's reader sees it: frames, frames per second (0 when unknown) and seconds (0 when unknown)."""

    total_frames: int
    fps: float
    duration: float

    @classmethod
    def of(cls, total_frames: int, fps: float) -> ClipInfo:
        """The duration that vLLM derives."""
        return cls(total_frames, fps, total_frames / fps if fps > 0 else 0)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a worker was started with: `--media-io-kwargs '{"video": {"num_frames": ..., "fps": ...}}'`. -1 is no limit."""

    num_frames: int = 32
    fps: float | None = None


class SamplingError(ValueError):
    """A clip that the engine refuses as well."""


Rule: TypeAlias = Callable[[ClipInfo, Asked], list[int]]
Timing: TypeAlias = Literal["none", "rate", "stamps"]


@dataclass(frozen=True, slots=True)
class Family:
    """How a model takes clips. `timing` is what it is told beside the frames: nothing, the sampled rate (Qwen2.5-VL's
    `second_per_grid_ts`), or everything (time stamps in the prompt)."""

    rule: Rule
    timing: Timing


def frame_indices(family: Family, info: ClipInfo, asked: Asked | None = None) -> list[int]:
    """The frames that are read, in order and once each. Raises SamplingError."""
    picked = sorted(set(sampled(family, info, asked)))
    if not picked:
        raise SamplingError("no frame is sampled")
    return picked


def sampled(family: Family, info: ClipInfo, asked: Asked | None = None) -> list[int]:
    """What the rule gives, repetitions included. Raises SamplingError."""
    try:
        return family.rule(info, asked or Asked())
    except ZeroDivisionError:
        raise SamplingError("the clip is too short for its sampler") from None


# --- rules ---


def uniform(info: ClipInfo, asked: Asked) -> list[int]:
    """vLLM's generic reader: a number of frames evenly over the clip, or one for each 1/fps seconds if these are fewer."""
    total, fps = info.total_frames, asked.fps if asked.fps is not None else -1
    count = min(asked.num_frames, total) if asked.num_frames > 0 else total
    if fps > 0:
        count = min(count, math.floor(info.duration * fps))
    count = max(1, count)
    return list(range(total)) if count == total else truncated(total - 1, count)


def qwen2_vl(info: ClipInfo, asked: Asked) -> list[int]:
    """Qwen2-VL and Qwen2.5-VL: two frames a second, an even number."""
    total = info.total_frames
    if info.fps <= 0:
        raise SamplingError("the frame rate is unknown")
    most = min(MAX_FRAMES, total) // PATCH * PATCH
    count = total / info.fps * min(rate(asked), MAX_FPS)
    count = math.floor(min(max(count, MIN_FRAMES), most, total) / PATCH) * PATCH
    return [min(int(value), total - 1) for value in arange(total, total / count)]


def qwen3_vl(info: ClipInfo, asked: Asked) -> list[int]:
    """Qwen3-VL and Qwen3.5: two frames a second, rounded."""
    total, fps = info.total_frames, info.fps if info.fps > 0 else UNKNOWN_FPS
    count = int(total / fps * min(rate(asked), MAX_FPS))
    count = min(max(count, MIN_FRAMES), MAX_FRAMES, total)
    return [round(value) for value in linspace(total - 1, count)]


def glm4v(info: ClipInfo, asked: Asked) -> list[int]:
    """GLM-4V: two frames a second up to 300 s, then evenly over the clip."""
    total, fps, last = info.total_frames, rate(asked), info.total_frames - 1
    duration = known_duration(info)
    if duration <= MAX_DURATION:
        picked = [i * info.fps / fps for i in range(math.floor(duration * fps))]
    elif (count := int(MAX_DURATION * fps)) >= total:
        return list(range(total))
    else:
        picked = [second * info.fps for second in linspace(duration, count)]
    return sorted({min(last, math.ceil(value)) for value in picked})


def glm46v(info: ClipInfo, asked: Asked) -> list[int]:
    """GLM-4.6V: 3, 1 or 0.5 temporal patches a second by length, at most 640 frames, an even number."""
    total, duration = info.total_frames, known_duration(info)
    counted = min(duration, 2400)
    fps = 3.0 if counted <= 30 else 1.0 if counted <= 300 else 0.5
    count = min(int(counted * fps * PATCH), 640)
    picked = truncated(total - 1, count) if total < count else walked(info, int(duration), 1 / (PATCH * fps))
    if len(picked) < count:
        picked = truncated(picked[-1] if picked else max(total - 1, 0), count)
    elif len(picked) > count:
        picked = truncated(total - 1, count)
    picked = list(dict.fromkeys(picked))
    return picked + picked[-1:] if len(picked) % 2 else picked


def walked(info: ClipInfo, seconds: int, step: float) -> list[int]:
    """The first frame at or after each step; sums of steps round as the engine's do."""
    picked, due, each = [], 0.0, 1 / info.fps if info.fps > 0 else 0
    for index in range(info.total_frames):
        if index * each >= due:
            due += step
            picked.append(index)
            if due >= seconds:
                break
    return picked


def rate(asked: Asked) -> float:
    """Frames per second that are asked for; two unless the worker was told otherwise."""
    return 2 if asked.fps is None else asked.fps


def known_duration(info: ClipInfo) -> float:
    """GLM's estimate where a clip has no duration."""
    if info.duration or info.fps <= 0:
        return info.duration
    return round((info.total_frames - 1) / info.fps) + 1


# --- numpy and torch ---


def linspace(stop: float, count: int) -> list[float]:
    """`numpy.linspace(0, stop, count)`."""
    if count < 2:
        return [0.0] * count
    step = stop / (count - 1)
    if step == 0:
        return [i / (count - 1) * stop for i in range(count - 1)] + [float(stop)]
    return [i * step for i in range(count - 1)] + [float(stop)]


def truncated(stop: int, count: int) -> list[int]:
    """`numpy.linspace(0, stop, count, dtype=int)`."""
    return [math.floor(value) for value in linspace(stop, count)]


def arange(stop: int, step: float) -> array[float]:
    """`torch.arange(0, stop, step)` in float32: products are taken in float64, but within whole pairs of vectors from the
    rounded first value of the vector. `array("f")` rounds to nearest."""
    count = math.ceil(stop / step)
    paired = count - count % (2 * LANES)
    first = array("f", [step * index for index in range(0, paired, LANES)])
    values = [base + lane * step for base in first for lane in range(LANES)]
    return array("f", values + [step * index for index in range(paired, count)])


# Families whose checkpoints name no other video processor, by `model_type` of config.json.
FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family(qwen2_vl, "none"),
    "qwen2_5_vl": Family(qwen2_vl, "rate"),
    "qwen3_vl": Family(qwen3_vl, "stamps"),
    "qwen3_vl_moe": Family(qwen3_vl, "stamps"),
    "qwen3_5": Family(qwen3_vl, "stamps"),
    "qwen3_5_moe": Family(qwen3_vl, "stamps"),
    "glm4v": Family(glm4v, "stamps"),
    "glm4v_moe": Family(glm4v, "stamps"),
    "glm46v": Family(glm46v, "stamps"),
    "gemma4": Family(uniform, "stamps"),
    "internvl": Family(uniform, "none"),
    "internvl_chat": Family(uniform, "none"),
    "llava_next_video": Family(uniform, "none"),
    "llava_onevision": Family(uniform, "none"),
    "minicpmv": Family(uniform, "none"),
}
