"""CPU time of decoding against Pillow, in one process and in turn, as ratios: `python bench/media.py [rounds]`.

Per-thread CPU time of interleaved rounds, medians; what a busy machine does to one it does to the other.
"""

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO

from epd_router._core import Decoded, decode, probe
from PIL import Image, ImageOps

SIZES = {"480p": (854, 480), "1080p": (1920, 1080), "12 MP": (4000, 3000)}


def photo(size: tuple[int, int]) -> Image.Image:
    """Gradients, edges and a little noise: compresses like a photograph."""
    small = Image.effect_noise((size[0] // 24 + 1, size[1] // 24 + 1), 90).resize(size, Image.Resampling.BICUBIC)
    grain = Image.effect_noise(size, 6)
    bands = [Image.blend(small.rotate(turn), grain, 0.12) for turn in (0, 180)]
    return Image.merge("RGB", (bands[0], bands[1], Image.linear_gradient("L").resize(size)))


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    with BytesIO() as file:
        image.save(file, form, **options)
        return file.getvalue()


def theirs(data: bytes) -> Image.Image:
    """What vLLM does with the bytes of a picture without transparency."""
    image: Image.Image = Image.open(BytesIO(data))
    with suppress(Exception):
        image = ImageOps.exif_transpose(image)
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")


def plain(data: bytes) -> None:
    """Pillow alone, without the copy that turning the picture upright makes."""
    image: Image.Image = Image.open(BytesIO(data))
    image.load()
    if image.mode != "RGB":
        image.convert("RGB")


def cpu(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def compare(name: str, data: bytes, rounds: int) -> None:
    found = decode(data)
    assert isinstance(found, Decoded)
    assert found.data == theirs(data).tobytes()
    pixels = found.width * found.height / 1e6
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: decode(data, identify=False),
        "named": lambda: decode(data),
        "pillow": lambda: plain(data),
        "vllm": lambda: theirs(data),
        "probe": lambda: probe(data),
    }
    times: dict[str, list[float]] = {key: [] for key in calls}
    for turn in range(rounds):
        # Either order, so that none always finds the caches as the same other one left them.
        for key in list(calls)[:: 1 if turn % 2 else -1]:
            calls[key]()
            times[key].append(cpu(calls[key]))
    ours, named, pillow, vllm, head = (statistics.median(times[key]) for key in calls)
    print(
        f"{name:28} {ours * 1e3 / pixels:6.2f} ms/MP   {pillow / ours:5.2f} x Pillow   {vllm / ours:5.2f} x vLLM's path   "
        f"with identity {named / ours:4.2f}   probe {head * 1e6:5.0f} us"
    )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    for name, size in SIZES.items():
        image = photo(size)
        few = max(3, rounds // 4) if size[0] > 3000 else rounds
        compare(f"jpeg {name}", encoded(image, "JPEG", quality=86), few)
        compare(f"jpeg progressive {name}", encoded(image, "JPEG", quality=86, progressive=True), few)
        compare(f"png {name}", encoded(image, "PNG", compress_level=4), few)
        if size[0] < 3000:
            compare(f"png palette {name}", encoded(image.quantize(200), "PNG"), few)
            compare(f"webp {name}", encoded(image, "WEBP", quality=80, method=2), few)
            compare(f"webp lossless {name}", encoded(image, "WEBP", lossless=True, method=1, quality=20), few)
            compare(f"gif {name}", encoded(image.quantize(200), "GIF"), few)
            compare(f"tiff lzw {name}", encoded(image, "TIFF", compression="tiff_lzw"), few)
            compare(f"bmp {name}", encoded(image, "BMP"), few)


if __name__ == "__main__":
    main()
