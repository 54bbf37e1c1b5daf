"""What vLLM's reader of clips does, in a few lines over OpenCV: the reference that decoding is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import NamedTuple, cast

import cv2


class Seen(NamedTuple):
    """Frames counted, their rate, and RGB bytes and (height, width) of those asked for, by index."""

    total: int
    fps: float
    frames: dict[int, tuple[tuple[int, int], bytes]]


def seen(data: bytes, choose: Callable[[int], Sequence[int]]) -> Seen | None:
    """None for a clip that is not opened."""
    cap = cv2.VideoCapture(cast("cv2.IStreamReader", BytesIO(data)), cv2.CAP_FFMPEG, [])
    if not cap.isOpened():
        return None
    total, fps = counted(cap), cap.get(cv2.CAP_PROP_FPS)
    frames, wanted = {}, set(choose(total))
    for index in range(max(wanted, default=-1) + 1):
        if cap.grab() and index in wanted:
            there, bgr = cap.retrieve()
            if there:
                rgb = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
                frames[index] = (rgb.shape[0], rgb.shape[1]), rgb.tobytes()
    return Seen(total, fps, frames)


def counted(cap: cv2.VideoCapture) -> int:
    """The frames of the head, or fewer where a seek to the end of the stream shows fewer."""
    total = int(cap.get(cv2.CAP_PROP_FRAME_COUNT))
    if total > 0 and cap.set(cv2.CAP_PROP_POS_AVI_RATIO, 1.0):
        visible, at_end = int(cap.get(cv2.CAP_PROP_POS_FRAMES)), not cap.grab()
        cap.set(cv2.CAP_PROP_POS_FRAMES, 0)
        if at_end and 0 < visible < total - 1:
            return visible
    return total
