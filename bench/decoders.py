"""What bench/media.py compares: ways from the bytes of a picture to RGB pixels, all in this process and on one thread."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import systems
from epd_router._core import Decoded, decode
from PIL import Image, ImageOps

Call = Callable[[], object]
CRATE = systems.HERE / "rust"
TARGET = systems.HERE.parent / "target" / "peers"
TITLES = {
    "epd-router": "epd-router, from Python",
    "epd-router reused": "epd-router, Rust, buffer reused",
    "turbo reused": "libjpeg-turbo C API, buffer reused",
    "epd-router fresh": "epd-router, Rust, new buffer",
    "turbo fresh": "libjpeg-turbo C API, new buffer",
    "libwebp reused": "libwebp C API, buffer reused",
    "simplejpeg": "simplejpeg",
    "opencv": "OpenCV",
    "image": "Rust `image` crate",
    "pillow": "Pillow, load",
    "vllm": "Pillow as vLLM uses it",
}


def native() -> ctypes.CDLL:
    """Build and load the decoders that have no Python package."""
    command = ["cargo", "build", "--quiet", "--release", "--manifest-path", str(CRATE / "Cargo.toml"), "--target-dir", str(TARGET)]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(TARGET / "release" / "libepd_router_bench.so"))
    for name in ("ours", "turbo", "webp", "image"):
        getattr(library, name).argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]
    return library


def peers() -> tuple[Any, Any]:
    """Import OpenCV and simplejpeg out of the environment of the peers."""
    systems.install_peers()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.path.append(str(systems.PEER_HOME / "lib" / version / "site-packages"))
    import cv2  # type: ignore[import-not-found,unused-ignore]
    import simplejpeg  # type: ignore[import-not-found,unused-ignore]

    cv2.setNumThreads(1)
    return cv2, simplejpeg


def vllm(data: bytes) -> Image.Image:
    """What vLLM does with the bytes of a picture without transparency; turning it upright always copies."""
    image: Image.Image = Image.open(BytesIO(data))
    with contextlib.suppress(Exception):
        image = ImageOps.exif_transpose(image)
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")


def pillow(data: bytes) -> Image.Image:
    """Pillow alone."""
    image: Image.Image = Image.open(BytesIO(data))
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")


def decoders(form: str, data: bytes, library: ctypes.CDLL, cv2: Any, simplejpeg: Any) -> dict[str, Call]:
    """Give every way for a picture of a format."""
    size = len(pillow(data).tobytes())
    buffer = np.zeros(size, np.uint8)
    raw = np.frombuffer(data, np.uint8)

    def reused(name: str) -> Call:
        def call() -> object:
            assert getattr(library, name)(data, len(data), buffer.ctypes.data, size) == 0
            return buffer

        return call

    def fresh(name: str) -> Call:
        def call() -> object:
            target = bytes(size)  # from the allocator, as a Python caller has it
            assert getattr(library, name)(data, len(data), ctypes.cast(ctypes.c_char_p(target), ctypes.c_void_p), size) == 0
            return target

        return call

    ways: dict[str, Call] = {
        "epd-router": lambda: decode(data, identify=False),
        "epd-router reused": reused("ours"),
        "epd-router fresh": fresh("ours"),
        "pillow": lambda: pillow(data),
        "vllm": lambda: vllm(data),
        "image": lambda: library.image(data, len(data), None, 0),
        "opencv": lambda: cv2.imdecode(raw, cv2.IMREAD_COLOR_RGB),
    }
    if form == "jpeg":
        more = {"turbo reused": reused("turbo"), "turbo fresh": fresh("turbo"), "simplejpeg": lambda: simplejpeg.decode_jpeg(data)}
        ways |= more
    if form == "webp":
        ways["libwebp reused"] = reused("webp")
    if form == "gif":
        del ways["opencv"]  # it reads the whole animation through another interface
    return {name: ways[name] for name in TITLES if name in ways}


def pixels(name: str, call: Call, library: ctypes.CDLL, data: bytes, size: int) -> bytes:
    """Give the pixels of one way, to see whether they are Pillow's."""
    if name == "image":
        target = ctypes.create_string_buffer(size)
        library.image(data, len(data), ctypes.cast(target, ctypes.c_void_p), size)
        return target.raw
    found = call()
    if isinstance(found, Decoded):
        return found.data
    if isinstance(found, Image.Image | np.ndarray):
        return found.tobytes()
    assert isinstance(found, bytes)
    return found
