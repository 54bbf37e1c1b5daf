"""Clips made on the spot: every container, codec, frame rate, size and oddity that sampling has to deal with."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from io import BytesIO

import av
import numpy as np
from av.video.frame import PictureType

Timing = Callable[[int], int]


def picture(index: int, size: tuple[int, int], seed: int = 0) -> av.VideoFrame:
    """A moving gradient with grain and a block that says which frame it is."""
    width, height = size
    y, x = np.mgrid[0:height, 0:width]
    grain = np.random.default_rng(1000 * seed + index).integers(0, 24, (height, width))
    planes = [(x * 2 + index * 5 + grain) % 256, (y * 3 + index * 7) % 256, (x + y + index * 11 + grain) % 256]
    array = np.stack(planes, -1).astype(np.uint8)
    array[: height // 4, : width // 4] = (index * 37 % 256, index * 59 % 256, index * 83 % 256)
    return av.VideoFrame.from_ndarray(array, format="rgb24")


def clip(
    frames: int = 48,
    size: tuple[int, int] = (64, 48),
    *,
    fps: Fraction | int = 24,
    container: str = "mp4",
    codec: str = "libx264",
    pixels: str = "yuv420p",
    options: dict[str, str] | None = None,
    gop: int = 12,
    b_frames: int = 2,
    at: Timing | None = None,
    scale: int = 1,
    muxing: dict[str, str] | None = None,
    seekable: bool = True,
    codec_set: dict[str, object] | None = None,
) -> bytes:
    """Encode `frames` pictures; `at` gives the time of each in ticks of 1 / (fps * scale) seconds."""
    file = BytesIO() if seekable else Stream()
    with av.open(file, "w", format=container, options=muxing or {}) as output:
        stream = output.add_stream(codec, rate=fps, options=quiet(codec) | (options or {}))
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        if codec in ("libx264", "libx265", "mpeg4"):
            stream.codec_context.max_b_frames = b_frames
        stream.codec_context.time_base = 1 / (Fraction(fps) * scale)
        for name, value in (codec_set or {}).items():
            setattr(stream.codec_context, name, value)
        for index in range(frames):
            frame = picture(index, size).reformat(format=pixels)
            frame.pts = at(index) if at else index * scale
            frame.time_base = stream.codec_context.time_base
            frame.pict_type = PictureType.NONE
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


class Stream(BytesIO):
    """A file that cannot be gone back in, so that no length is written into its head."""

    def seekable(self) -> bool:
        return False

    seek = None  # type: ignore[assignment]
    tell = None  # type: ignore[assignment]


def quiet(codec: str) -> dict[str, str]:
    return {
        "libx264": {"preset": "veryfast", "crf": "28"},
        "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:pools=1"},
        "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "b": "300k"},
        "libvpx": {"deadline": "realtime", "cpu-used": "8", "b": "300k"},
        "libsvtav1": {"preset": "12"},
        "libaom-av1": {"cpu-used": "8", "usage": "realtime"},
    }.get(codec, {})
