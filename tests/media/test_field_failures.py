"""What went wrong elsewhere with decoding and probing: vLLM, SGLang, Dynamo, llama.cpp, zune-image, torchvision, Pillow and others.

Tests are named by the rows of the list of failures in the field, which names the reports."""

import struct
from io import BytesIO

import numpy as np
import pytest
from epd_router._core import Decoded, DecodePool, Limits, MediaError, PassThrough, Probe, decode, probe
from PIL import Image, ImageOps

from tests.media.corpus import bmp, chunk, exif, noise, png, saved
from tests.media.reference import reference


def decoded(data: bytes, limits: Limits | None = None) -> Decoded:
    found = decode(data, limits=limits)
    assert isinstance(found, Decoded)
    assert ((found.width, found.height), found.data) == reference(data)
    return found


def header(data: bytes) -> Probe:
    found = probe(data)
    assert found is not None
    return found


def refused(data: bytes, code: str, limits: Limits | None = None) -> str:
    """Both refuse it with the same code; the message."""
    with pytest.raises(MediaError) as caught:
        decode(data, limits=limits)
    assert caught.value.code == code
    return caught.value.message


def passed(data: bytes) -> str:
    found = decode(data)
    assert isinstance(found, PassThrough)
    return found.reason


@pytest.mark.parametrize("progressive", [False, True])
def test_row_1_truncated_jpegs_are_refused_before_a_worker_is_chosen(progressive: bool) -> None:
    data = saved(noise("RGB", (90, 60)), "JPEG", progressive=progressive)
    for left in (-2, -3, -10, -200, len(data) // 2 - len(data)):
        assert reference(data[:left]) is None
        assert "end" in refused(data[:left], "media_damaged")
    refused(data[: data.index(b"\xff\xda")], "media_damaged")
    assert decoded(data).format == "JPEG"


def test_row_2_both_sizes_are_known_from_the_header() -> None:
    image = noise("RGB", (40, 24))
    for form in ("JPEG", "PNG", "WEBP", "AVIF", "TIFF"):
        options = {"tiffinfo": {0x0112: 6}} if form == "TIFF" else {"exif": exif(6)}
        data = saved(image, form, **options)
        found = header(data)
        assert (found.width, found.height, found.upright, found.orientation) == (40, 24, (24, 40), 6), form
        # What an engine sees that does not turn pictures. Pillow opens a TIFF upright.
        with Image.open(BytesIO(data)) as opened:
            opened.load()
            assert opened.size == (found.upright if form == "TIFF" else (found.width, found.height)), form


@pytest.mark.parametrize("turn", range(10))
def test_row_4_and_6_pixels_are_turned_after_decoding(turn: int) -> None:
    image = noise("RGB", (37, 22))  # no multiple of a block
    for form in ("JPEG", "PNG", "WEBP"):
        straight = decoded(saved(image, form)).data
        found = decoded(saved(image, form, exif=exif(turn)))
        stored = Image.frombytes("RGB", (37, 22), straight)
        tags = Image.Exif()
        tags[0x0112] = turn
        stored.info["exif"] = tags.tobytes()
        upright = ImageOps.exif_transpose(stored)
        assert (found.data, (found.width, found.height)) == (upright.tobytes(), upright.size), form


async def test_row_5_every_way_in_gives_the_same_pixels() -> None:
    data = saved(noise("RGBA", (21, 10)), "PNG", exif=exif(8))
    want = decoded(data)
    ppm = decode(data, ppm=True)
    pooled = await DecodePool(1, 1).decode(data)
    assert isinstance(ppm, Decoded)
    assert isinstance(pooled, Decoded)
    assert want.data == pooled.data == ppm.data[ppm.offset :]
    assert want.id == pooled.id == ppm.id


def inks() -> bytes:
    return saved(noise("CMYK", (33, 17)), "JPEG")


def test_row_7_ycck_is_not_inverted() -> None:
    data = inks()
    ycck = data.replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\x02")
    assert ycck != data
    assert decoded(ycck).data != decoded(data).data


def test_row_8_cmyk_is_decoded_and_nothing_takes_its_place() -> None:
    assert decoded(inks()).mode == "RGB"
    assert header(inks()).channels == 4


def test_row_9_inks_are_inverted_with_and_without_the_mark_of_adobe() -> None:
    data = inks()
    at = data.index(b"\xff\xee")
    bare = data[:at] + data[at + 2 + struct.unpack(">H", data[at + 2 : at + 4])[0] :]
    assert b"Adobe" not in bare
    assert decoded(bare).data == decoded(data).data


def test_row_10_grey_of_16_bits_is_cut_off_as_in_the_engines() -> None:
    levels = [0, 255, 256, 4096, 65535]
    image = Image.frombytes("I;16", (5, 1), struct.pack("<5H", *levels))
    data = saved(image, "PNG")
    assert header(data).depth == 16
    assert list(decoded(data).data[::3]) == [0, 255, 255, 255, 255]


def test_row_11_deep_pictures_are_passed_on_and_not_refused() -> None:
    key = chunk(b"tRNS", b"\x12\x34")
    grey = noise("L", (9, 5))
    for data in (
        png(9, 5, 16, 0, extra=key),
        saved(grey.convert("I;16"), "TIFF"),
        saved(grey.convert("I"), "TIFF"),
        saved(grey.convert("F"), "TIFF"),
        b"P5 2 1 65535\nabcd",
    ):
        assert passed(data)
        assert reference(data) is not None
        assert header(data).depth > 8


SIDE = 60_000


def bombs() -> dict[str, bytes]:
    """Short files that announce more pixels than any engine takes."""
    side = struct.pack(">II", SIDE, SIDE)
    sof = b"\xff\xd8\xff\xc0\0\x11\x08" + struct.pack(">HH", SIDE, SIDE) + b"\x03\x01\x11\0\x02\x11\0\x03\x11\0"
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, SIDE) for tag in (256, 257))
    canvas = (SIDE - 1).to_bytes(3, "little")
    boxes = bytearray(saved(noise("RGB", (9, 5)), "AVIF"))
    at = boxes.index(b"ispe") + 8
    boxes[at : at + 8] = side
    windows = bytearray(bmp(24, (9, 5)))
    windows[18:26] = struct.pack("<II", SIDE, SIDE)
    return {
        "JPEG": sof + b"\xff\xda\0\x0c\x03\x01\0\x02\x11\x03\x11\0\x3f\0" + bytes(9),
        "PNG": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", side + b"\x08\x02\0\0\0") + chunk(b"IDAT", b"x"),
        "WEBP": b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + canvas * 2 + bytes(40),
        "GIF": b"GIF89a"
        + struct.pack("<HH", SIDE, SIDE)
        + b"\0\0\0,"
        + struct.pack("<HHHH", 0, 0, 1, 1)
        + b"\0\x02\x02\x4c\x01\0;",
        "BMP": bytes(windows),
        "TIFF": b"II*\0\x08\0\0\0\x02\0" + entries + bytes(4),
        "PPM": b"P6 %d %d 255\n" % (SIDE, SIDE),
        "AVIF": bytes(boxes),
    }


def test_row_12_and_13_bombs_of_every_format_are_refused_from_their_header() -> None:
    for form, data in bombs().items():
        assert len(data) < 1000, form
        with pytest.raises(MediaError) as caught:
            probe(data)
        assert caught.value.code == "media_too_large", form
        if form != "AVIF":  # which is not decoded here
            assert f"{SIDE}x{SIDE}" in refused(data, "media_too_large")


def test_row_13_only_known_formats_are_read() -> None:
    dds = b"DDS " + struct.pack("<III", 124, 0x1007, SIDE) + struct.pack("<I", SIDE) + bytes(108)
    for data in (dds, b"8BPS" + bytes(40), b"%!PS-Adobe-3.0 EPSF-3.0\n", saved(noise("RGB", (9, 5)), "TGA")):
        assert passed(data) == "another format"
        with pytest.raises(MediaError) as caught:
            probe(data)
        assert caught.value.code == "media_unsupported"


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_row_15_animations_are_their_first_frame(form: str) -> None:
    frames = [Image.new("RGB", (12, 9), color) for color in ("red", "green", "blue")]
    data = saved(frames[0], form, save_all=True, append_images=frames[1:], **({"lossless": True} if form == "WEBP" else {}))
    found = decoded(data)
    assert (header(data).frames, found.width, found.height) == (3, 12, 9)
    assert found.data == frames[0].tobytes()


def test_row_16_hidden_colours_of_transparent_pixels_do_not_show() -> None:
    image = Image.new("RGBA", (4, 4), (200, 10, 50, 0))
    for form, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True})):
        data = saved(image, form, **options)
        assert header(data).alpha, "an engine that keeps hidden colours must be asked with the bytes"
        assert set(decoded(data).data) == {255}
    image.putalpha(128)
    assert tuple(decoded(saved(image, "PNG")).data[:3]) == (227, 132, 152)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (27, 5), (5, 27)])
def test_row_38_and_40_small_pictures_are_told_by_their_header_and_decoded(size: tuple[int, int]) -> None:
    for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        data = saved(noise("RGB", size), form)
        assert header(data).upright == size, form
        decoded(data)


def test_row_39_a_long_screenshot_keeps_its_size() -> None:
    data = saved(noise("RGB", (690, 15420)), "JPEG")
    found = decoded(data)
    assert header(data).upright == (found.width, found.height) == (690, 15420)


@pytest.mark.parametrize("size", [(1, 1), (50, 1), (1, 50), (22, 3), (3, 22), (3, 3)])
def test_row_41_the_channel_axis_is_the_last_one_at_every_size(size: tuple[int, int]) -> None:
    for mode in ("RGB", "L", "RGBA", "P"):
        found = decoded(saved(noise(mode, size), "PNG"))
        pixels = np.frombuffer(found.data, np.uint8).reshape(found.height, found.width, 3)
        assert pixels.shape == (size[1], size[0], 3)


def test_row_42_extreme_aspects_may_be_refused() -> None:
    data = saved(noise("RGB", (402, 2)), "PNG")
    assert "200 times" in refused(data, "media_too_large", Limits(aspect=200))
    decoded(saved(noise("RGB", (400, 2)), "PNG"), Limits(aspect=200))
    turned = saved(noise("RGB", (402, 2)), "JPEG", exif=exif(6))
    refused(turned, "media_too_large", Limits(aspect=200))


def test_row_47_what_phones_and_new_encoders_write() -> None:
    image = noise("RGB", (50, 38))
    plain = saved(image, "JPEG", quality=92)
    # A motion photo: an index of pictures in APP2, a second picture and a film behind the end.
    index = b"\xff\xe2\0\x12MPF\0II*\0\x08\0\0\0\0\0\0\0"
    film = saved(image.resize((16, 16)), "JPEG") + b"\0\0\0\x18ftypmp42" + bytes(200)
    assert decoded(plain[:2] + index + plain[2:] + film).data == decoded(plain).data
    # Progressive without subsampling, coarse tables for chroma, tables of their own for every component.
    for options in (
        {"progressive": True, "subsampling": "4:4:4", "quality": 30},
        {"progressive": True, "subsampling": "4:2:2", "optimize": True},
        {"qtables": [[1 + at for at in range(64)], [255] * 64, [16] * 64], "subsampling": "4:4:4"},
        {"restart_marker_rows": 1, "progressive": True},
    ):
        decoded(saved(image, "JPEG", **options))
    # Tables of 16 bits, as encoders write them for low qualities.
    at = plain.index(b"\xff\xdb")
    wide = b"\xff\xdb\0\x83\x10" + b"".join(struct.pack(">H", value) for value in plain[at + 5 : at + 69])
    assert decoded(plain[:at] + wide + plain[at + 69 :]).data == decoded(plain).data
    # Sampling factors that other decoders get wrong.
    frame = plain.index(b"\xff\xc0")
    for factors in (0x12, 0x21, 0x41, 0x14, 0x31):
        decoded(plain[: frame + 11] + bytes([factors]) + plain[frame + 12 :])


def test_row_48_heic_and_avif_are_told_by_their_brand() -> None:
    for brand in (b"heic", b"heix", b"hevc"):
        data = b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1heic" + bytes(64)
        assert "HEIC" in refused(data, "media_unsupported")
    avif = saved(noise("RGB", (33, 17)), "AVIF", exif=exif(6))
    assert passed(avif) == "AVIF"
    found = header(avif)
    assert (found.format, found.mime, found.upright) == ("AVIF", "image/avif", (17, 33))
