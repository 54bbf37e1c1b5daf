"""CPU time of the sampled frames of a clip against OpenCV's grab and retrieve, in one process and in turn:
`python bench/video.py [rounds]` prints a Markdown table.

CPU of the whole process with its decoder threads, medians of interleaved rounds; what a busy machine does to one it does to
the other. OpenCV reads as vLLM does: it looks for the end of the clip, then grabs every frame up to the last that is wanted.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import av
import numpy as np
from epd_router.media.video import probe_clip, sample

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.media.opencv import seen

SIZE, RATE, SECONDS = (1280, 720), 24, 10
GOPS, COUNTS = (250, 48, 24), (8, 20, 32)


def scene(index: int, ground: np.ndarray, grain: np.ndarray) -> av.VideoFrame:
    """A picture that moves over another, with noise: compresses like a film."""
    picture = np.roll(ground, (index * 3, index * 5), (0, 1))
    picture[200:500, 300:700] = ground[index : 300 + index, 2 * index : 400 + 2 * index]
    return av.VideoFrame.from_ndarray(np.clip(picture + np.roll(grain, index * 977, 1), 0, 255).astype(np.uint8), format="rgb24")


def film(gop: int) -> bytes:
    dice, file = np.random.default_rng(1), BytesIO()
    coarse = dice.integers(20, 235, (SIZE[1] // 20, SIZE[0] // 20, 3))
    ground = np.kron(coarse, np.ones((20, 20, 1), np.int64)).astype(np.int16)
    grain = dice.normal(0, 4, (SIZE[1], SIZE[0], 3)).astype(np.int16)
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=RATE, options={"preset": "medium", "crf": "23", "sc_threshold": "0"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.gop_size = gop
        for index in range(RATE * SECONDS):
            output.mux(stream.encode(scene(index, ground, grain)))
        output.mux(stream.encode(None))
    return file.getvalue()


def spent(call: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall milliseconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return (time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3


def row(gop: int, data: bytes, count: int, rounds: int) -> str:
    total = RATE * SECONDS
    wanted = sorted({index * (total - 1) // (count - 1) for index in range(count)})
    found, expected = sample(data, wanted), seen(data, lambda _: wanted)
    assert expected is not None
    assert found.pixels == tuple(pixels for _, pixels in expected.frames.values())
    calls: list[Callable[[], object]] = [
        lambda: sample(data, wanted),
        lambda: seen(data, lambda _: wanted),
        lambda: probe_clip(data),
    ]
    times: list[list[tuple[float, float]]] = [[] for _ in calls]
    for turn in range(rounds):
        for place in (range(len(calls)), reversed(range(len(calls))))[turn % 2]:
            times[place].append(spent(calls[place]))
    ours, theirs, probe = (tuple(statistics.median(column) for column in zip(*each, strict=True)) for each in times)
    return (
        f"| {gop} | {count} | {ours[0]:.0f} | {theirs[0]:.0f} | **{ours[0] / theirs[0]:.2f}** "
        f"| {ours[1]:.0f} | {theirs[1]:.0f} | {probe[0]:.0f} |"
    )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print(f"{SIZE[1]}p{RATE}, {SECONDS} s, H.264 medium with B-frames; milliseconds\n")
    print("| frames a key frame | frames sampled | CPU, ours | CPU, OpenCV | ratio | wall, ours | wall, OpenCV | CPU, probe |")
    print("|---|---|---|---|---|---|---|---|")
    for gop in GOPS:
        data = film(gop)
        for count in COUNTS:
            print(row(gop, data, count, rounds), flush=True)


if __name__ == "__main__":
    main()
