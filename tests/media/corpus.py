"""Pictures of every kind, drawn and damaged by script. Names say what they are."""

import random
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from PIL import Image, ImageFilter, PngImagePlugin

Picture = tuple[str, bytes]

SIZES = ((1, 1), (7, 5), (16, 16), (33, 17), (64, 48))
XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><r tiff:Orientation="{}"/></x:xmpmeta>'


def noise(mode: str, size: tuple[int, int], seed: int = 1) -> Image.Image:
    """Blurred noise with hard edges: every value occurs, and codecs find something to predict."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    draw = random.Random(f"{seed} {size}")
    planes = []
    for _ in range(bands):
        plane = Image.frombytes("L", size, draw.randbytes(size[0] * size[1])).filter(ImageFilter.BoxBlur(1))
        plane = plane.point([min(255, max(0, (value - 64) * 2)) for value in range(256)])
        planes.append(plane)
    if mode == "1":
        return planes[0].point([0] * 128 + [255] * 128).convert("1", dither=Image.Dither.NONE)
    if mode == "P":
        return noise("RGB", size, seed).quantize(64)
    return Image.merge(mode, planes) if bands > 1 else planes[0].convert(mode)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    with BytesIO() as file:
        image.save(file, form, **options)
        return file.getvalue()


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, depth: int, color: int, *, extra: bytes = b"", interlaced: bool = False, seed: int = 1) -> bytes:
    """A PNG of random samples with every filter; `extra` goes before the data."""
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    draw = random.Random(f"{seed} {width} {height} {depth} {color}")
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b""
    for left, top, across, down in passes:
        columns, lines = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0:
            for _ in range(max(0, lines)):
                rows += bytes([draw.randrange(5)]) + draw.randbytes(-(-columns * bits // 8))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)
    data = zlib.compress(rows)
    half = len(data) // 2
    body = chunk(b"IHDR", header) + extra + chunk(b"IDAT", data[:half]) + chunk(b"IDAT", data[half:]) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def jpegs() -> Iterator[Picture]:
    for size in SIZES:
        for sampling in ("4:4:4", "4:2:2", "4:2:0"):
            for quality in (20, 75, 100):
                for progressive in (False, True):
                    name = f"jpeg {size} {sampling} {quality}{' progressive' * progressive}"
                    yield name, saved(noise("RGB", size), "JPEG", quality=quality, subsampling=sampling, progressive=progressive)
        yield f"jpeg {size} grey", saved(noise("L", size), "JPEG")
        yield f"jpeg {size} grey progressive", saved(noise("L", size), "JPEG", progressive=True)
        yield f"jpeg {size} cmyk", saved(noise("CMYK", size), "JPEG")
        yield f"jpeg {size} cmyk progressive", saved(noise("CMYK", size), "JPEG", progressive=True)
        yield f"jpeg {size} rgb", saved(noise("RGB", size), "JPEG", keep_rgb=True)
        yield f"jpeg {size} restarts", saved(noise("RGB", size), "JPEG", restart_marker_blocks=1)
        yield f"jpeg {size} optimised", saved(noise("RGB", size), "JPEG", optimize=True)
        data = saved(noise("CMYK", size), "JPEG")
        yield f"jpeg {size} ycck", data.replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\x02")
    # Other sampling factors: two vertically, four across, odd ones.
    base = saved(noise("RGB", (50, 38)), "JPEG", subsampling="4:4:4")
    at = base.index(b"\xff\xc0")
    for factors in (0x12, 0x21, 0x22, 0x41, 0x31, 0x14, 0x44):
        yield f"jpeg sampling {factors:x}", base[: at + 11] + bytes([factors]) + base[at + 12 :]


def turned() -> Iterator[Picture]:
    image = noise("RGB", (21, 10))
    for turn in range(10):
        yield f"jpeg exif {turn}", saved(image, "JPEG", exif=exif(turn))
        yield f"jpeg xmp {turn}", saved(image, "JPEG", xmp=XMP.format(turn).encode())
        yield f"jpeg exif 1 over xmp {turn}", saved(image, "JPEG", exif=exif(1), xmp=XMP.format(turn).encode())
        yield (
            f"jpeg exif without a turn, xmp {turn}",
            saved(image, "JPEG", exif=bytes(Image.Exif().tobytes()), xmp=XMP.format(turn).encode()),
        )
        yield f"webp exif {turn}", saved(image, "WEBP", exif=exif(turn), lossless=True)
        yield f"webp xmp {turn}", saved(image, "WEBP", xmp=XMP.format(turn).encode())
        yield f"png exif {turn}", saved(image, "PNG", exif=exif(turn))
        yield f"png exif interlaced grey alpha {turn}", png(9, 4, 8, 4, extra=chunk(b"eXIf", exif(turn)[6:]), interlaced=True)
        yield f"tiff exif {turn}", saved(image, "TIFF", tiffinfo={0x0112: turn})
        if 0 < turn < 9:  # libtiff writes no other
            yield f"tiff lzw exif {turn}", saved(image, "TIFF", tiffinfo={0x0112: turn}, compression="tiff_lzw")
        yield f"tiff xmp {turn}", saved(image, "TIFF", tiffinfo={700: XMP.format(turn).encode()})
        yield f"gif {turn}", saved(image, "GIF")
        if turn:
            yield f"avif {turn}", saved(image, "AVIF", exif=exif(turn))
    plain = png(12, 5, 8, 2)
    end = plain.index(b"IEND") - 4
    raw = "\nexif\n      {}\n{}\n"
    for turn in (3, 6):
        block = exif(turn)
        after = chunk(b"eXIf", block[6:])
        yield f"png exif behind the data {turn}", plain[:end] + after + plain[end:]
        yield f"png exif behind the data, then junk {turn}", plain[:end] + after + b"junk"
        yield f"png exif behind the data, then a broken chunk {turn}", plain[:end] + after + chunk(b"gAMA", b"") + plain[end:]
        yield f"png exif behind the data, then a cut chunk {turn}", plain[:end] + after + b"\0\0\xff\xfftEXtcomment\0x"
        text = b"Raw profile type exif\0" + raw.format(len(block), block.hex()).encode()
        zipped = b"Raw profile type exif\0\0" + zlib.compress(raw.format(len(block), block.hex()).encode())
        yield f"png raw profile {turn}", png(12, 5, 8, 2, extra=chunk(b"tEXt", text))
        yield f"png packed raw profile {turn}", png(12, 5, 8, 2, extra=chunk(b"zTXt", zipped))
        yield f"png broken raw profile {turn}", png(12, 5, 8, 2, extra=chunk(b"tEXt", text[:-3]))
        for packed in (False, True):
            body = XMP.format(turn).encode()
            body = b"XML:com.adobe.xmp\0" + bytes([packed, 0]) + b"\0\0" + (zlib.compress(body) if packed else body)
            yield f"png xmp {turn} {packed}", png(12, 5, 8, 2, extra=chunk(b"iTXt", body))
        yield f"jpeg two exif segments {turn}", saved(image, "JPEG", exif=block).replace(b"Exif\0\0", b"Exif\0\0Exif\0\0", 1)
        for kind in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 99):
            for count in (0, 1, 2):
                value = struct.pack("<f", turn) if kind == 11 else struct.pack("<I", turn)
                field = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01" + struct.pack("<HI", kind, count) + value + b"\0\0\0\0"
                yield f"jpeg exif type {kind} count {count} {turn}", saved(image, "JPEG", exif=field)
        for cut in range(6, len(block)):
            yield f"jpeg exif cut at {cut} {turn}", saved(image, "JPEG", exif=block[:cut])


def pngs() -> Iterator[Picture]:
    kinds = [
        (0, 1),
        (0, 2),
        (0, 4),
        (0, 8),
        (0, 16),
        (2, 8),
        (2, 16),
        (3, 1),
        (3, 2),
        (3, 4),
        (3, 8),
        (4, 8),
        (4, 16),
        (6, 8),
        (6, 16),
    ]
    for color, depth in kinds:
        palette = chunk(b"PLTE", random.Random(3).randbytes(3 << depth)) if color == 3 else b""
        for size in ((1, 1), (3, 2), (9, 9), (33, 17)):
            for interlaced in (False, True):
                name = f"png {size} {color} {depth}{' interlaced' * interlaced}"
                yield name, png(*size, depth, color, extra=palette, interlaced=interlaced)
        if color == 3:
            yield f"png 3 {depth} without a palette", png(9, 9, depth, 3)
            yield f"png 3 {depth} short palette", png(9, 9, depth, 3, extra=chunk(b"PLTE", b"\x10\x20\x30"))
            yield (
                f"png 3 {depth} short palette, transparency",
                png(9, 9, depth, 3, extra=chunk(b"PLTE", b"\x10\x20\x30") + chunk(b"tRNS", b"\x80")),
            )
            for trns in (b"\0", b"\xff\0", b"\x80\x10", b"\xff" * 300, bytes(range(2))):
                yield f"png 3 {depth} trns {trns[:4].hex()}", png(9, 9, depth, 3, extra=palette + chunk(b"tRNS", trns))
        if color in (0, 2):
            for key in (0, 1, 2, 5, 15, 17, 34, 85, 255, 256, 257, 0x1234):
                trns = struct.pack(">H", key) * (3 if color == 2 else 1)
                yield f"png {color} {depth} key {key}", png(17, 9, depth, color, extra=chunk(b"tRNS", trns))
        yield f"png {color} {depth} short trns", png(9, 9, depth, color, extra=palette + chunk(b"tRNS", b"\0"))
    plain = png(20, 11, 8, 2)
    data = plain.index(b"IDAT")
    length = struct.unpack(">I", plain[data - 4 : data])[0]
    for name, body in {
        "wrong data check sum": plain[: data + 4 + length] + b"oops" + plain[data + 8 + length :],
        "wrong header check sum": plain[:29] + b"oops" + plain[33:],
        "wrong ancillary check sum": png(9, 9, 8, 2, extra=chunk(b"tIME", b"1234567")[:-1] + b"x"),
        "trailing junk": plain + b"junk",
        "no end": plain[:-12],
        "unknown critical chunk": png(9, 9, 8, 2, extra=chunk(b"ABCD", b"x")),
        "filter method": plain[:27] + b"\1" + plain[28:],
        "colour profile": png(9, 9, 8, 2, extra=chunk(b"iCCP", b"x\0\0" + zlib.compress(b"y"))),
        "colour profile unknown": png(9, 9, 8, 2, extra=chunk(b"iCCP", b"x\0\1" + zlib.compress(b"y"))),
        "text bomb": png(9, 9, 8, 2, extra=chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(1 << 21)))),
        "zero width": png(0, 9, 8, 2),
    }.items():
        yield f"png {name}", body
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    rows = bytes(72)
    for name, packed in {
        "bad filter": zlib.compress(b"\x09" * 72),
        "data end early": zlib.compress(rows[:40]),
        "data go on": zlib.compress(rows + rows),
        "wrong adler": zlib.compress(rows)[:-4] + b"oops",
        "no adler": zlib.compress(rows)[:-4],
        "half adler": zlib.compress(rows)[:-2],
        "no zlib": b"no zlib here",
        "junk behind": zlib.compress(rows) + b"junk",
        "empty": b"",
    }.items():
        yield f"png {name}", b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    frames = [noise("RGB", (12, 9), seed) for seed in range(3)]
    yield "apng", saved(frames[0], "PNG", save_all=True, append_images=frames[1:])
    yield "apng with a default image", saved(frames[0], "PNG", save_all=True, append_images=frames[1:], default_image=True)
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "x" * 100, zip=True)
    yield "png text", saved(frames[0], "PNG", pnginfo=text)


def webps() -> Iterator[Picture]:
    for size in SIZES:
        for mode in ("RGB", "RGBA", "L", "LA"):
            image = noise(mode, size)
            yield f"webp {size} {mode} lossy", saved(image, "WEBP", quality=60)
            yield f"webp {size} {mode} lossless", saved(image, "WEBP", lossless=True)
            yield f"webp {size} {mode} exact", saved(image, "WEBP", lossless=True, exact=True)
        yield f"webp {size} alpha quality", saved(noise("RGBA", size), "WEBP", quality=30, alpha_quality=20)
    frames = [noise("RGBA", (30, 20), seed) for seed in range(3)]
    yield "webp animated", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    yield "webp animated lossless", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    frames = [frame.convert("RGB") for frame in frames]
    yield "webp animated opaque", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    hole = Image.new("RGBA", (30, 20), (0, 0, 0, 0))
    hole.paste(frames[0].resize((6, 4)), (8, 10))
    yield "webp animated small first frame", saved(hole, "WEBP", save_all=True, append_images=[frames[1].convert("RGBA")])
    yield "webp junk behind", saved(frames[0], "WEBP") + b"junk"
    yield "webp icc", saved(frames[0], "WEBP", icc_profile=b"x" * 33)


def gifs() -> Iterator[Picture]:
    for size in SIZES:
        for colors in (2, 5, 16, 200):
            image = noise("RGB", size).quantize(colors)
            for interlace in (0, 1):
                yield f"gif {size} {colors} {interlace}", saved(image, "GIF", interlace=interlace)
            yield f"gif {size} {colors} transparent", saved(image, "GIF", transparency=1)
        yield f"gif {size} grey", saved(noise("L", size), "GIF")
        yield f"gif {size} grey transparent", saved(noise("L", size), "GIF", transparency=7)
        yield f"gif {size} bitmap", saved(noise("1", size), "GIF")
    frames = [noise("RGB", (30, 20), seed).quantize(30) for seed in range(3)]
    for disposal in range(4):
        yield f"gif animated {disposal}", saved(frames[0], "GIF", save_all=True, append_images=frames[1:], disposal=disposal)
        yield (
            f"gif animated transparent {disposal}",
            saved(frames[0], "GIF", save_all=True, append_images=frames[1:], disposal=disposal, transparency=2),
        )
    yield "gif comment", saved(frames[0], "GIF", comment=b"c" * 600)
    yield "gif large", saved(noise("RGB", (300, 200)).quantize(256), "GIF")
    yield "gif flat", saved(Image.new("P", (300, 200), 3), "GIF")
    plain = saved(noise("RGB", (30, 20)).quantize(40), "GIF")
    at = plain.index(b",\0\0\0\0")
    for name, place in {
        "inside": (3, 4, 30, 20),
        "beyond": (900, 4, 30, 20),
        "smaller": (0, 0, 30, 10),
        "none": (0, 0, 0, 20),
    }.items():
        yield f"gif frame {name}", plain[: at + 1] + struct.pack("<4H", *place) + plain[at + 9 :]
        screen = plain[:6] + struct.pack("<2H", 50, 40) + plain[10:]
        yield f"gif screen frame {name}", screen[: at + 1] + struct.pack("<4H", *place) + screen[at + 9 :]
    yield "gif longer frame", plain[: at + 1] + struct.pack("<4H", 0, 0, 30, 25) + plain[at + 9 :]
    yield "gif short global palette", plain[:10] + bytes([plain[10] & 0xF8]) + plain[11:19] + plain[13 + (6 << (plain[10] & 7)) :]
    yield "gif no palette", plain[:10] + bytes([plain[10] & 0x78]) + plain[11:13] + plain[13 + (6 << (plain[10] & 7)) :]
    for bits in (0, 1, 7, 9, 12, 13):
        yield f"gif code size {bits}", plain[: at + 10] + bytes([bits]) + plain[at + 11 :]
    rng = random.Random(5)
    for index in range(60):
        spot = rng.randrange(at + 11, len(plain) - 2)
        yield f"gif bit {index}", plain[:spot] + bytes([plain[spot] ^ 1 << rng.randrange(8)]) + plain[spot + 1 :]


def bmp(
    bits: int, size: tuple[int, int], *, header: int = 40, masks: tuple[int, ...] = (), colors: int = 0, flip: bool = False
) -> bytes:
    width, height = size
    stride = (width * bits + 31) // 32 * 4
    draw = random.Random(f"{bits} {size}")
    entries = (colors or 1 << bits) if bits <= 8 else 0
    palette = draw.randbytes(entries * (3 if header == 12 else 4))
    tail = struct.pack(f"<{len(masks)}I", *masks)
    if header == 12:
        head = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        compression = 3 if masks else 0
        head = struct.pack("<IiiHHIIiiII", header, width, -height if flip else height, 1, bits, compression, 0, 0, 0, colors, 0)
        head += tail
        head += bytes(max(0, header - len(head)))
    offset = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, offset) + head + palette + draw.randbytes(stride * height)


def bmps() -> Iterator[Picture]:
    for size in SIZES:
        for mode in ("1", "L", "P", "RGB", "RGBA"):
            yield f"bmp {size} {mode}", saved(noise(mode, size), "BMP")
        for bits in (1, 4, 8, 16, 24, 32):
            yield f"bmp {size} {bits} bits", bmp(bits, size)
            yield f"bmp {size} {bits} bits down", bmp(bits, size, flip=True)
            yield f"bmp {size} {bits} bits, old", bmp(bits, size, header=12)
            yield f"bmp {size} {bits} bits, few colours", bmp(bits, size, colors=2)
    for masks in (
        (0xFF0000, 0xFF00, 0xFF, 0),
        (0xFF000000, 0xFF0000, 0xFF00, 0),
        (0xFF000000, 0xFF00, 0xFF, 0),
        (0xFF000000, 0xFF0000, 0xFF00, 0xFF),
        (0xFF, 0xFF00, 0xFF0000, 0xFF000000),
        (0xFF0000, 0xFF00, 0xFF, 0xFF000000),
        (0xFF000000, 0xFF00, 0xFF, 0xFF0000),
        (0, 0, 0, 0),
        (1, 2, 3, 4),
    ):
        for header in (40, 52, 56, 64, 108, 124):
            yield f"bmp masks {masks} {header}", bmp(32, (9, 5), header=header, masks=masks)
    for triple in ((0xF800, 0x7E0, 0x1F), (0x7C00, 0x3E0, 0x1F), (1, 2, 3), (0xFF0000, 0xFF00, 0xFF)):
        for bits in (8, 16, 24, 32):
            yield f"bmp masks {triple} {bits}", bmp(bits, (9, 5), masks=triple)
    plain = bmp(24, (9, 5))
    for at, value in ((14, 41), (28, 7), (28, 2), (30, 1), (30, 4), (30, 9), (46, 70000)):
        yield (
            f"bmp field {at} {value}",
            plain[:at] + struct.pack("<H" if at == 28 else "<I", value) + plain[at + (2 if at == 28 else 4) :],
        )
    yield "bmp without an offset", plain[:10] + bytes(4) + plain[14:]


def tiffs() -> Iterator[Picture]:
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "RGBX", "CMYK", "I;16", "I", "F", "YCbCr", "LAB"):
        for compression in ("raw", "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "packbits", "group4", "jpeg", "zstd", "lzma"):
            for size in ((1, 1), (33, 17)):
                try:
                    data = saved(
                        noise("L", size).convert(mode) if mode in ("I;16", "I", "F") else noise(mode, size),
                        "TIFF",
                        compression=compression,
                    )
                except (OSError, ValueError):
                    continue  # a mode that the compression cannot hold
                yield f"tiff {size} {mode} {compression}", data
    image = noise("RGB", (70, 45))
    for compression in ("tiff_lzw", "tiff_adobe_deflate"):
        yield f"tiff predictor {compression}", saved(image, "TIFF", compression=compression, tiffinfo={317: 2})
        yield f"tiff strips {compression}", saved(image, "TIFF", compression=compression, strip_size=1000)
        yield f"tiff big {compression}", saved(image, "TIFF", compression=compression, big_tiff=True)
        yield f"tiff large {compression}", saved(noise("RGB", (300, 200)), "TIFF", compression=compression)
    yield "tiff pages", saved(image, "TIFF", save_all=True, append_images=[image, image])
    yield "tiff big", saved(image, "TIFF", big_tiff=True)
    for order in ("<", ">"):
        for photo, depths, extra in (
            (1, (8,), None),
            (2, (8, 8, 8), None),
            (2, (8, 8, 8, 8), 0),
            (2, (8, 8, 8, 8), 1),
            (2, (8, 8, 8, 8), 2),
            (0, (4,), None),
            (3, (4,), None),
        ):
            yield f"tiff tiles {order} {photo} {depths} {extra}", tiled(order, photo, depths, extra)


def tiled(order: str, photo: int, depths: tuple[int, ...], extra: int | None) -> bytes:
    """An uncompressed TIFF of 16 by 16 tiles, 40 by 20 pixels."""
    tags: dict[int, tuple[str, tuple[int, ...]]] = {
        256: ("H", (40,)), 257: ("H", (20,)), 258: ("H", depths), 259: ("H", (1,)), 262: ("H", (photo,)),
        277: ("H", (len(depths),)), 322: ("H", (16,)), 323: ("H", (16,)), 324: ("I", (0,) * 6), 325: ("I", (0,) * 6),
    }  # fmt: skip
    size = 16 * 16 * sum(depths) // 8
    if extra is not None:
        tags[338] = ("H", (extra,))
    if photo == 3:
        tags[320] = ("H", tuple(random.Random(2).randrange(65536) for _ in range(3 << depths[0])))
    start = 8 + 2 + 12 * len(tags) + 4
    spill = sum(
        len(values) * struct.calcsize("=" + kind) for kind, values in tags.values() if len(values) * struct.calcsize("=" + kind) > 4
    )
    tags[324] = ("I", tuple(start + spill + size * index for index in range(6)))
    tags[325] = ("I", (size,) * 6)
    head, rest = b"", b""
    for tag, (kind, values) in sorted(tags.items()):
        body = struct.pack(f"{order}{len(values)}{kind}", *values)
        if len(body) > 4:
            where, rest = struct.pack(order + "I", start + len(rest)), rest + body
        else:
            where = body.ljust(4, b"\0")
        head += struct.pack(order + "HHI", tag, {"H": 3, "I": 4}[kind], len(values)) + where
    mark = b"II*\0" if order == "<" else b"MM\0*"
    data = random.Random(f"{photo} {depths}").randbytes(size * 6)
    return mark + struct.pack(order + "IH", 8, len(tags)) + head + bytes(4) + rest + data


def ppms() -> Iterator[Picture]:
    for size in SIZES:
        for mode in ("1", "L", "RGB", "I;16"):
            yield f"ppm {size} {mode}", saved(noise("L", size).convert(mode) if mode == "I;16" else noise(mode, size), "PPM")
    for name, data in {
        "comments": b"P6#a\n#b\r2#c\n 1\n255\nabcdef",
        "plain": b"P3 1 1 255 1 2 3",
        "other maximum": b"P5 2 1 100\nab",
        "wide": b"P5 2 1 65535\nabcd",
        "no maximum": b"P6 2 1",
        "zero": b"P6 0 1 255\n",
        "words": b"P6 a b 255\n",
        "float": b"Pf 1 1 -1.0\nabcd",
        "junk behind": b"P6 1 1 255\nabcjunk",
        "short": b"P6 2 1 255\nabcde",
        "tabs": b"P5\t2\x0b1\x0c255\rab",
        "long number": b"P5 00000000002 1 255\nab",
    }.items():
        yield f"ppm {name}", data


def avifs() -> Iterator[Picture]:
    for mode in ("RGB", "RGBA", "L"):
        yield f"avif {mode}", saved(noise(mode, (33, 17)), "AVIF")


def cut() -> Iterator[Picture]:
    """One picture of each format, cut at every tenth and around its ends."""
    image = noise("RGB", (40, 30))
    animated = [noise("RGB", (24, 20), seed) for seed in range(2)]
    whole = {
        "jpeg": saved(image, "JPEG"),
        "jpeg progressive": saved(image, "JPEG", progressive=True),
        "jpeg grey": saved(image.convert("L"), "JPEG"),
        "jpeg cmyk": saved(image.convert("CMYK"), "JPEG"),
        "jpeg exif": saved(image, "JPEG", exif=exif(6)),
        "png": saved(image, "PNG"),
        "png exif": saved(image, "PNG", exif=exif(6)),
        "png palette": saved(image.quantize(9), "PNG"),
        "png interlaced": png(20, 11, 8, 6, interlaced=True),
        "webp": saved(image, "WEBP"),
        "webp lossless": saved(image, "WEBP", lossless=True),
        "webp exif": saved(image, "WEBP", exif=exif(6)),
        "webp animated": saved(animated[0], "WEBP", save_all=True, append_images=animated[1:]),
        "gif": saved(image.quantize(40), "GIF"),
        "gif animated": saved(animated[0], "GIF", save_all=True, append_images=animated[1:]),
        "bmp": saved(image, "BMP"),
        "bmp palette": saved(image.quantize(40), "BMP"),
        "tiff": saved(image, "TIFF"),
        "tiff lzw": saved(image, "TIFF", compression="tiff_lzw"),
        "tiff deflate": saved(image, "TIFF", compression="tiff_adobe_deflate"),
        "ppm": saved(image, "PPM"),
    }
    for name, data in whole.items():
        places = (
            {len(data) * tenth // 10 for tenth in range(1, 10)}
            | set(range(64))
            | {len(data) - left for left in (1, 2, 3, 4, 5, 8, 11, 12, 13, 20, 40)}
        )
        for place in sorted(place for place in places if 0 < place < len(data)):
            yield f"{name} cut at {place} of {len(data)}", data[:place]
        yield f"{name} followed by junk", data + b"\xff\xd9 junk"


def flipped(count: int = 40) -> Iterator[Picture]:
    """One bit wrong, anywhere."""
    image = noise("RGB", (40, 30))
    rng = random.Random(11)
    for form, options in {
        "JPEG": {},
        "PNG": {},
        "WEBP": {},
        "BMP": {},
        "TIFF": {"compression": "tiff_lzw"},
        "PPM": {},
        "GIF": {},
    }.items():
        data = saved(image, form, **options)
        for index in range(count):
            spot, bit = rng.randrange(len(data)), rng.randrange(8)
            yield f"{form.lower()} byte {spot} bit {bit} ({index})", data[:spot] + bytes([data[spot] ^ 1 << bit]) + data[spot + 1 :]


KINDS = {
    "jpeg": jpegs, "turned": turned, "png": pngs, "webp": webps, "gif": gifs, "bmp": bmps, "tiff": tiffs, "ppm": ppms,
    "avif": avifs, "cut": cut, "flipped": flipped,
}  # fmt: skip
