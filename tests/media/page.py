"""Writes the table of docs/pictures.md: what becomes of each kind of picture, tried out with a file of it."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from epd_router._core import Decoded, MediaError, decode, probe

from tests.media.corpus import bmp, chunk, exif, noise, png, saved, tiled

PAGE = Path(__file__).parents[2] / "docs" / "pictures.md"
SIZE = (21, 10)
START, END = "<!-- kinds: written by `make docs` -->\n\n", "\n<!-- end of kinds -->\n"
ROWS = "| format | kind | outcome | `probe` |\n|---|---|---|---|\n"
Sample = tuple[str, str, bytes]


def jpegs() -> Iterator[Sample]:
    image = noise("RGB", SIZE)
    yield "JPEG", "baseline, 4:2:0, 4:2:2, 4:4:4 and other samplings", saved(image, "JPEG")
    yield "JPEG", "progressive", saved(image, "JPEG", progressive=True)
    yield "JPEG", "grey", saved(image.convert("L"), "JPEG")
    yield "JPEG", "CMYK and YCCK, taken as inverted", saved(noise("CMYK", SIZE), "JPEG")
    yield "JPEG", "RGB without transform", saved(image, "JPEG", keep_rgb=True)
    yield "JPEG", "turned by EXIF or XMP", saved(image, "JPEG", exif=exif(6))
    plain = saved(image, "JPEG")
    frame = plain.index(b"\xff\xc0")
    yield "JPEG", "lossless", plain[:frame] + b"\xff\xc3" + plain[frame + 2 :]
    yield "JPEG", "12 bits", plain[: frame + 4] + b"\x0c" + plain[frame + 5 :]
    yield "JPEG", "broken data", broken_jpeg()
    yield "JPEG", "without its end", plain[:-2]


def broken_jpeg() -> bytes:
    plain = saved(noise("RGB", (64, 48)), "JPEG")
    return plain[:-200] + b"\xff\xc4\0\0" + plain[-196:]


def pngs() -> Iterator[Sample]:
    grey, colour = (struct.pack(">H", 5), struct.pack(">HHH", 1, 2, 3))
    palette = chunk(b"PLTE", bytes(range(48)))
    yield "PNG", "grey of 1, 2, 4, 8 bits", png(*SIZE, 4, 0)
    yield "PNG", "grey with a transparent level", png(*SIZE, 8, 0, extra=chunk(b"tRNS", grey))
    yield "PNG", "grey of 16 bits, cut off at 255 as in Pillow", png(*SIZE, 16, 0)
    yield "PNG", "grey of 16 bits with a transparent level", png(*SIZE, 16, 0, extra=chunk(b"tRNS", grey))
    yield "PNG", "RGB of 8 and 16 bits", png(*SIZE, 16, 2)
    yield "PNG", "RGB with a transparent colour, which stays as it is", png(*SIZE, 8, 2, extra=chunk(b"tRNS", colour))
    yield "PNG", "palette of 1, 2, 4, 8 bits, transparent or not", png(*SIZE, 4, 3, extra=palette)
    yield "PNG", "palette that is missing", png(*SIZE, 8, 3)
    yield "PNG", "grey or RGB with alpha, 8 and 16 bits", png(*SIZE, 16, 6)
    yield "PNG", "interlaced", png(*SIZE, 8, 6, interlaced=True)
    frames = [noise("RGB", SIZE, seed) for seed in range(2)]
    yield "PNG", "animated: the default image", saved(frames[0], "PNG", save_all=True, append_images=frames[1:])
    body = zlib.compress(bytes(range(1, 9)) * 9)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    yield (
        "PNG",
        "broken data",
        b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", body[:5] + b"\xff\xff\xff" + body[8:]) + chunk(b"IEND", b""),
    )
    yield "PNG", "data that end early", png(*SIZE, 8, 2)[:-60]
    bomb = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1 << 21)))
    yield "PNG", "a packed text of more than 1 MiB", png(*SIZE, 8, 2, extra=bomb)


def others() -> Iterator[Sample]:
    image, alpha = noise("RGB", SIZE), noise("RGBA", SIZE)
    yield "WebP", "lossy and lossless, with alpha or without", saved(alpha, "WEBP")
    yield "WebP", "animated: the first frame", saved(alpha, "WEBP", save_all=True, append_images=[noise("RGBA", SIZE, 2)])
    yield "WebP", "turned by EXIF or XMP", saved(image, "WEBP", exif=exif(6))
    yield "WebP", "cut", saved(image, "WEBP")[:-9]
    yield "GIF", "still, transparent, interlaced, animated: the first frame", saved(image.quantize(40), "GIF")
    data = bytearray(saved(image.quantize(40), "GIF"))
    yield "GIF", "cut", bytes(data[:-90])
    yield "BMP", "1, 4, 8 bits with a palette", bmp(4, SIZE)
    yield "BMP", "16, 24, 32 bits", bmp(16, SIZE)
    yield (
        "BMP",
        "bit fields that Pillow knows, with alpha or without",
        bmp(32, SIZE, masks=(0xFF, 0xFF00, 0xFF0000, 0xFF000000), header=124),
    )
    yield "BMP", "other bit fields", bmp(32, SIZE, masks=(1, 2, 4, 0))
    runs = bmp(8, SIZE)
    yield "BMP", "run lengths", runs[:30] + struct.pack("<I", 1) + runs[34:]


def tiffs() -> Iterator[Sample]:
    image = noise("RGB", SIZE)
    for mode, title in (
        ("RGB", "RGB of 8 bits"),
        ("L", "grey of 1 to 8 bits"),
        ("RGBA", "RGBA of 8 bits"),
        ("CMYK", "CMYK of 8 bits"),
    ):
        yield "TIFF", title, saved(noise(mode, SIZE), "TIFF")
    yield "TIFF", "palette", saved(noise("P", SIZE), "TIFF")
    yield "TIFF", "grey of 16 bits, 32 bits, floating point", saved(noise("L", SIZE).convert("I;16"), "TIFF")
    yield "TIFF", "YCbCr, Lab", saved(noise("LAB", SIZE), "TIFF")
    for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
        yield "TIFF", f"compression: {name.removeprefix('tiff_').replace('adobe_', '')}", saved(image, "TIFF", compression=name)
    yield "TIFF", "compression: JPEG, fax, Zstandard, LZMA", saved(image, "TIFF", compression="lzma")
    yield "TIFF", "tiles", tiled("<", 2, (8, 8, 8), None)
    yield "TIFF", "turned by its tag", saved(image, "TIFF", tiffinfo={0x0112: 6})
    yield "TIFF", "several pages: the first", saved(image, "TIFF", save_all=True, append_images=[image])
    yield "TIFF", "BigTIFF", saved(image, "TIFF", big_tiff=True)
    yield "TIFF", "data that end early", saved(image, "TIFF")[:-99]


def last() -> Iterator[Sample]:
    image = noise("RGB", SIZE)
    yield "PPM", "binary PBM, PGM, PPM up to 255", saved(image, "PPM")
    yield "PPM", "another maximum, 16 bits", b"P5 2 1 65535\nabcd"
    yield "PPM", "plain (P1 to P3), PFM", b"P3 1 1 255 1 2 3"
    yield "AVIF", "any", saved(image, "AVIF")
    yield "HEIC", "any: engines do not open it", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)
    yield "others", "JPEG 2000, TGA, ICO, QOI, PSD and what else Pillow may open", saved(image, "TGA")


def samples() -> Iterator[Sample]:
    for part in (jpegs, pngs, others, tiffs, last):
        yield from part()


def outcome(data: bytes) -> str:
    try:
        found = decode(data)
    except MediaError as error:
        return f"refused: `{error.code}`"
    return "decoded" if isinstance(found, Decoded) else f"left to the engine: {found.reason}"


def known(data: bytes) -> str:
    try:
        return "yes" if probe(data) else "no"
    except MediaError:
        return "no"


def page() -> str:
    rows = "".join(f"| {form} | {kind} | {outcome(data)} | {known(data)} |\n" for form, kind, data in samples())
    before, _, rest = PAGE.read_text().partition(START)
    return before + START + ROWS + rows + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
