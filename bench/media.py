"""CPU time of decoding, identity and the decode pool against others, in one process and in turn: `bench/media.py [--rounds N]`.

Per-thread CPU time of interleaved rounds: what a busy machine does to one it does to the other. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import decoders
import machine
import media_report
from epd_router._core import DecodePool, identify, probe, scan
from PIL import Image

HERE = Path(__file__).parent
SIZES = {"480p": (854, 480), "1080p": (1920, 1080), "12 MP": (4000, 3000)}
BATCH = 10
POOL_SECONDS = 1.5


def photo(size: tuple[int, int], grain: float = 0.12, detail: int = 24) -> Image.Image:
    """Gradients, edges every `detail` pixels and some grain, which together decide how many bits a codec spends on it."""
    small = Image.effect_noise((size[0] // detail + 1, size[1] // detail + 1), 90).resize(size, Image.Resampling.BICUBIC)
    noise = Image.effect_noise(size, 6)
    bands = [Image.blend(small.rotate(turn), noise, grain) for turn in (0, 180)]
    return Image.merge("RGB", (bands[0], bands[1], Image.linear_gradient("L").resize(size)))


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    with BytesIO() as file:
        image.save(file, form, **options)
        return file.getvalue()


def pictures() -> dict[str, bytes]:
    """Give what is decoded, by `format detail size`."""
    found = {}
    for name, size in SIZES.items():
        image = photo(size)
        found[f"jpeg {name}"] = encoded(image, "JPEG", quality=86)
        found[f"jpeg light {name}"] = encoded(photo(size, 0.02, 60), "JPEG", quality=75)
        found[f"jpeg progressive {name}"] = encoded(image, "JPEG", quality=86, progressive=True)
        found[f"png {name}"] = encoded(image, "PNG", compress_level=4)
        if size[0] < 3000:
            found[f"png palette {name}"] = encoded(image.quantize(200), "PNG")
            found[f"webp {name}"] = encoded(image, "WEBP", quality=80, method=2)
            found[f"webp lossless {name}"] = encoded(image, "WEBP", lossless=True, method=1, quality=20)
            found[f"gif {name}"] = encoded(image.quantize(200), "GIF")
            found[f"tiff lzw {name}"] = encoded(image, "TIFF", compression="tiff_lzw")
            found[f"bmp {name}"] = encoded(image, "BMP")
    return found


def cpu(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def interleaved(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Give the CPU milliseconds of every call in every round. Every other round goes backwards, so that none always finds the
    caches as the same other one left them; each is called once before its clock starts."""
    times: dict[str, list[float]] = {key: [] for key in calls}
    for turn in range(rounds):
        for key in list(calls)[:: 1 if turn % 2 else -1]:
            calls[key]()
            times[key].append(cpu(calls[key]) * 1e3)
    return times


def apart(name: str, path: Path, rounds: int, used: bool) -> dict[str, Any]:
    """Measure one picture in a process of its own: what was allocated before decides what memory costs."""
    command = [sys.executable, __file__, "--rounds", str(rounds), "--picture", name, str(path), "used" if used else "new"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def use_memory() -> None:
    """Large blocks that were freed make the allocator keep memory, which spares later pictures the page faults."""
    for _ in range(3):
        bytearray(31 << 20)


def decoding(name: str, data: bytes, rounds: int) -> dict[str, Any]:
    cv2, simplejpeg = decoders.peers()
    library = decoders.native()
    calls = decoders.decoders(name.split()[0], data, library, cv2, simplejpeg)
    image = decoders.vllm(data)
    wanted = image.tobytes()
    exact = {key: decoders.pixels(key, call, library, data, len(wanted)) == wanted for key, call in calls.items()}
    if not exact["epd-router"]:
        raise AssertionError(f"{name}: other pixels than Pillow's")
    few = max(3, rounds // 3) if image.width > 3000 else rounds
    return {"bytes": len(data), "pixels": image.width * image.height, "exact": exact, "cpu_ms": interleaved(calls, few)}


def identity(rounds: int) -> dict[str, Any]:
    """A 1.4 MB data URL: identity from the body as sent, and the header."""
    data = encoded(photo((4000, 2656)), "JPEG", quality=80)[: 1050 << 10]
    url = "data:image/jpeg;base64," + base64.b64encode(data).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": [part]}]}).encode()
    found = scan(body)
    calls: dict[str, Callable[[], object]] = {
        "scan": lambda: scan(body),
        "identify": lambda: identify(body, found, b""),
        "probe": lambda: probe(data, complete=False),
        "json": lambda: json.loads(body),
        "python": lambda: hashlib.sha256(base64.b64decode(url.partition(",")[2])).hexdigest(),
    }
    return {"bytes": len(body), "cpu_ms": interleaved(calls, rounds * 4)}


async def lag(during: Awaitable[object]) -> list[float]:
    """Give by how many milliseconds a timer of 1 ms came late while something ran."""
    late: list[float] = []
    work = asyncio.ensure_future(during)
    while not work.done():
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - start) * 1e3 - 1)
    await work
    return late


async def pool(data: bytes, threads: int, way: str) -> dict[str, Any]:
    """Decode batches of ten at once for a while: milliseconds and CPU milliseconds of a batch, and the lag of the loop."""
    ours, theirs = DecodePool(threads, 64), ThreadPoolExecutor(threads)
    loop = asyncio.get_running_loop()

    async def batch() -> None:
        if way == "epd-router":
            await asyncio.gather(*(ours.decode(data, identify=False) for _ in range(BATCH)))
        else:
            await asyncio.gather(*(loop.run_in_executor(theirs, decoders.vllm, data) for _ in range(BATCH)))

    walls: list[float] = []

    async def batches() -> None:
        until = time.perf_counter() + POOL_SECONDS
        while time.perf_counter() < until:
            start = time.perf_counter()
            await batch()
            walls.append((time.perf_counter() - start) * 1e3)

    await batch()
    before = time.process_time()
    late = await lag(batches())
    spent = (time.process_time() - before) * 1e3 / len(walls)
    ours.close()
    theirs.shutdown()
    return {"wall_ms": statistics.median(walls), "cpu_ms": spent, "lag_p99_ms": statistics.quantiles(late, n=100)[98]}


def pools(data: bytes, rounds: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for turn in range(rounds):
        for way, threads in [("epd-router", 1), ("epd-router", 2), ("pillow", 1), ("pillow", 2)][:: 1 if turn % 2 else -1]:
            found.setdefault(f"{way} {threads}", []).append(asyncio.run(pool(data, threads, way)))
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of every picture; a third of them for 12 MP (default: 15)")
    parser.add_argument("--only", default="", help="pictures whose name contains this; writes media-partial")
    parser.add_argument("--out", type=Path, help="stem of the result files")
    parser.add_argument("--picture", nargs=3, metavar=("NAME", "FILE", "MEMORY"), help="used by the bench itself")
    options = parser.parse_args(argv)
    if options.picture:
        name, path, memory = options.picture
        if memory == "used":
            use_memory()
        print(json.dumps(decoding(name, Path(path).read_bytes(), options.rounds)))
        return 0
    decoders.peers()
    decoders.native()
    note = machine.note()
    note["packages"] |= {name: machine.version(name) for name in ("pillow", "numpy")}
    samples: dict[str, dict[str, Any]] = {"new": {}, "used": {}}
    with tempfile.TemporaryDirectory(prefix="epd-bench-") as folder:
        path = Path(folder) / "picture"
        for name, data in pictures().items():
            if options.only in name:
                path.write_bytes(data)
                for memory, found in samples.items():
                    found[name] = apart(name, path, options.rounds, memory == "used")
                    print(media_report.line(f"{name} ({memory})", found[name]), flush=True)
    result: dict[str, Any] = {"machine": note, "rounds": options.rounds, "decoding": samples["new"], "used": samples["used"]}
    if not options.only:
        result["identity"] = identity(options.rounds)
        result["pool"] = pools(encoded(photo(SIZES["480p"]), "JPEG", quality=86), 4)
    note["load_average_after"] = os.getloadavg()
    out = options.out or HERE / "results" / ("media-partial" if options.only else "media")
    out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    text = media_report.markdown(result)
    out.with_suffix(".md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
