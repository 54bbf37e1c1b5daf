"""What an engine spends on one picture for each way of hand-off: its own loader and JSON parser, CPU milliseconds.

usage: ENGINE_ENV/bin/python bench/handoff.py [ROUNDS]     (needs vLLM; the router's tests install one)

Columns: the encoded file in a data URL (what clients send), the file in shared memory, its pixels as a PPM in a data URL,
and the PPM in shared memory. The JSON body is parsed with what the engine's server uses; the loader is vLLM's.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from vllm.multimodal.media.connector import MediaConnector
from vllm.multimodal.media.image import ImageMediaIO

SIZES = {"480p": (854, 480), "1080p": (1920, 1080), "12 MP": (4000, 3000)}


def photo(size: tuple[int, int]) -> Image.Image:
    small = Image.effect_noise((size[0] // 16, size[1] // 16), 90).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    return Image.blend(small, Image.effect_noise(size, 40).convert("RGB"), 0.12)


def encoded(image: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **({"quality": 86} if kind == "JPEG" else {}))
    return out.getvalue()


def body(data: bytes) -> bytes:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return json.dumps({"messages": [{"content": [{"type": "image_url", "image_url": {"url": url}}]}]}).encode()


def from_body(text: bytes, connector: MediaConnector) -> None:
    url = json.loads(text)["messages"][0]["content"][0]["image_url"]["url"]
    connector.load_from_url(url, ImageMediaIO())


def from_file(url: str, connector: MediaConnector) -> None:
    connector.load_from_url(url, ImageMediaIO())


def cpu(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1000


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    shared = Path(tempfile.mkdtemp(dir="/dev/shm"))
    connector = MediaConnector(allowed_local_media_path=str(shared))
    print("| picture | bytes in JSON | bytes by file | pixels in JSON | pixels by file |\n|---|---|---|---|---|")
    for name, size in SIZES.items():
        image = photo(size)
        for kind in ("JPEG", "PNG", "WEBP"):
            forms = {"bytes": encoded(image, kind), "pixels": encoded(image, "PPM")}
            calls: list[Callable[[], object]] = []
            for form, data in forms.items():
                path = shared / form
                path.write_bytes(data)
                calls.append(functools.partial(from_body, body(data), connector))
                calls.append(functools.partial(from_file, path.as_uri(), connector))
            times: list[list[float]] = [[] for _ in calls]
            for _ in range(max(3, rounds // (3 if size[0] > 3000 else 1))):
                for call, found in zip(calls, times, strict=True):
                    call()
                    found.append(cpu(call))
            medians = [statistics.median(found) for found in times]
            print(f"| {kind} {name} | " + " | ".join(f"{median:.1f}" for median in medians) + " |", flush=True)
    for path in shared.iterdir():
        path.unlink()
    shared.rmdir()


if __name__ == "__main__":
    main()
