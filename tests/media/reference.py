"""What vLLM makes of a picture, in a few lines over Pillow: the reference that decoding is held to."""

import contextlib
import warnings
from io import BytesIO

from PIL import Image, ImageOps

FORMATS = ("AVIF", "BMP", "DIB", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # of the allow-list, those that occur here


def reference(data: bytes) -> tuple[tuple[int, int], bytes] | None:
    """Size and RGB pixels, or None for a picture that the engine refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image: Image.Image = Image.open(BytesIO(data), formats=FORMATS)
            with contextlib.suppress(Exception):
                image = ImageOps.exif_transpose(image)
            image.load()
            return image.size, rgb(image).tobytes()
        except Exception:
            return None


def rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGB", rgba.size, (255, 255, 255))
        white.paste(rgba, mask=rgba.split()[3])
        return white
    return image.convert("RGB")
