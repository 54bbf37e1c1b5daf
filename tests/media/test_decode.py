"""Decoding is held to Pillow through vLLM's rules: the same bytes, or both refuse, or it is left to the engine."""

import asyncio
import gc
import random
from collections import Counter

import pytest
from epd_router._core import Decoded, DecodePool, Limits, MediaError, PassThrough, decode, derive_id, probe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.media.corpus import KINDS, chunk, exif, noise, png, saved
from tests.media.reference import reference
from tests.waiting import until

# What is left to the engine, and nothing else is.
PASSED = {
    "AVIF", "BigTIFF", "plain netpbm", "another format", "a picture with broken data", "16-bit grey with a transparent level",
    "a palette picture without a palette", "a PNG with odd data", "a GIF of an unusual code size", "a BMP of run lengths",
    "a TIFF of unusual samples", "a TIFF of unusual compression", "a TIFF of unusual colours", "a TIFF of unusual tags",
    "a TIFF without a tag that it needs", "a damaged TIFF", "a netpbm file that is not of one bit or eight",
}  # fmt: skip


def attempt(data: bytes) -> Decoded | PassThrough | MediaError:
    try:
        return decode(data)
    except MediaError as error:
        return error


def disagreement(data: bytes) -> str | None:
    """What differs from the reference; None if nothing does."""
    got = attempt(data)
    if isinstance(got, PassThrough):
        return None if got.reason in PASSED else got.reason
    want = reference(data)
    if isinstance(got, MediaError):
        return None if want is None else f"refused: {got.message}"
    if want is None:
        return "accepted"
    if want[0] != (got.width, got.height):
        return f"{got.width}x{got.height} instead of {want[0]}"
    return None if want[1] == got.data else "other pixels"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(120)
def test_corpus(kind: str) -> None:
    different = {name: found for name, data in KINDS[kind]() if (found := disagreement(data)) is not None}
    assert not different


def test_most_of_the_corpus_is_decoded() -> None:
    counts = {kind: Counter(type(attempt(data)) for _, data in KINDS[kind]()) for kind in ("jpeg", "png", "webp", "gif", "bmp")}
    for kind, count in counts.items():
        assert count[Decoded] >= 0.85 * count.total(), kind


@pytest.mark.parametrize("kind", ["turned", "png", "webp", "gif", "bmp", "ppm", "avif", "jpeg"])
def test_probe_agrees_with_the_reference(kind: str) -> None:
    for name, data in KINDS[kind]():
        want = reference(data)
        if want is None:
            continue
        try:
            found = probe(data)
        except MediaError:
            assert isinstance(attempt(data), PassThrough), name
            continue
        assert found is not None
        assert found.upright == want[0], name


def test_probe_needs_little_and_says_when_it_does_not_know() -> None:
    image = noise("RGB", (640, 480))
    for form, enough in (("JPEG", 700), ("WEBP", 30), ("BMP", 54), ("GIF", 900)):
        data = saved(image, form)
        answers = [probe(data[:size], complete=False) for size in range(enough + 1)]
        known = [answer for answer in answers if answer is not None]
        assert known, form
        assert all((answer.width, answer.height) == (640, 480) for answer in known)
    data = saved(image, "WEBP", exif=exif(6))
    early = probe(data[:64], complete=False)
    late = probe(data)
    assert early is not None
    assert late is not None
    assert (early.settled, early.upright) == (False, (640, 480))
    assert (late.settled, late.orientation, late.upright) == (True, 6, (480, 640))
    plain = png(6, 4, 8, 2)
    end = plain.index(b"IEND") - 4
    data = plain[:end] + chunk(b"eXIf", exif(6)[6:]) + plain[end:]
    early, late = probe(data[: end - 3], complete=False), probe(data)
    assert early is not None
    assert late is not None
    assert (early.settled, early.orientation, late.settled, late.orientation) == (False, 1, True, 6)
    assert probe(b"", complete=False) is None
    with pytest.raises(MediaError) as caught:
        probe(b"<html>", complete=False)
    assert caught.value.code == "media_unsupported"


def test_probe_details() -> None:
    palette = probe(saved(noise("P", (9, 5)), "PNG", transparency=1))
    assert palette is not None
    assert (palette.format, palette.mime, palette.palette, palette.alpha, palette.channels) == ("PNG", "image/png", True, True, 1)
    deep = probe(png(9, 5, 16, 6))
    assert deep is not None
    assert (deep.depth, deep.channels, deep.alpha, deep.frames) == (16, 4, True, 1)
    frames = [noise("RGB", (9, 5), seed) for seed in range(3)]
    for form in ("GIF", "PNG", "WEBP", "TIFF"):
        found = probe(saved(frames[0], form, save_all=True, append_images=frames[1:]))
        assert found is not None
        assert found.frames == 3, form
    found = probe(bytearray(saved(frames[0], "AVIF", exif=exif(6))))
    assert found is not None
    assert (found.format, found.width, found.height, found.upright) == ("AVIF", 9, 5, (5, 9))


def test_limits_are_checked_before_anything_is_allocated() -> None:
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"\0\0\xff\xff\0\0\xff\xff\x08\x02\0\0\0") + chunk(b"IDAT", b"x")
    for call in (decode, probe):
        with pytest.raises(MediaError) as caught:
            call(bomb)
        assert caught.value.code == "media_too_large"
    data = saved(noise("RGB", (40, 10)), "PNG")
    for limits in (Limits(pixels=399), Limits(side=39), Limits(aspect=3), Limits(encoded=len(data) - 1)):
        with pytest.raises(MediaError) as caught:
            decode(data, limits=limits)
        assert caught.value.code == "media_too_large"
    assert isinstance(decode(data, limits=Limits(pixels=400, side=40, aspect=4, frames=1, encoded=len(data))), Decoded)


def test_heic_is_refused_and_other_formats_are_left_to_the_engine() -> None:
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)
    with pytest.raises(MediaError) as caught:
        decode(heic)
    assert caught.value.code == "media_unsupported"
    assert isinstance(decode(saved(noise("RGB", (9, 5)), "TGA")), PassThrough)


def test_identity_is_of_the_content() -> None:
    image = noise("RGB", (30, 20))
    same = [
        saved(image, "PNG"),
        saved(image, "WEBP", lossless=True),
        saved(image, "BMP"),
        saved(image, "PPM"),
        saved(image, "TIFF"),
    ]
    ids = {found.id for data in same if isinstance(found := decode(data), Decoded)}
    size = (30).to_bytes(4, "little"), (20).to_bytes(4, "little")
    assert ids == {derive_id([b"epd-router pixels 1", b"RGB", *size, image.tobytes()])}
    lying = decode(saved(noise("RGB", (20, 30)), "PNG"))
    assert isinstance(lying, Decoded)
    assert lying.id not in ids
    unnamed = decode(same[0], identify=False)
    assert isinstance(unnamed, Decoded)
    assert unnamed.id is None


def test_ppm_hand_off() -> None:
    data = saved(noise("RGB", (21, 10)), "JPEG", exif=exif(6))
    plain, ppm = decode(data), decode(data, ppm=True)
    assert isinstance(plain, Decoded)
    assert isinstance(ppm, Decoded)
    assert (plain.offset, ppm.id, ppm.data[ppm.offset :]) == (0, plain.id, plain.data)
    assert reference(ppm.data) == reference(data)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    quality=st.integers(1, 100),
    sampling=st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]),
    progressive=st.booleans(),
    mode=st.sampled_from(["RGB", "L", "CMYK"]),
    turn=st.integers(0, 9),
    cut=st.none() | st.floats(0, 1, exclude_max=True),
)
def test_any_jpeg(
    size: tuple[int, int], quality: int, sampling: str, progressive: bool, mode: str, turn: int, cut: float | None
) -> None:
    options = {"subsampling": sampling} if mode == "RGB" else {}
    data = saved(noise(mode, size, quality), "JPEG", quality=quality, progressive=progressive, exif=exif(turn), **options)
    data = data if cut is None else data[: int(cut * len(data))]
    assert disagreement(data) is None


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    form=st.sampled_from(["PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"]),
    mode=st.sampled_from(["1", "L", "RGB", "RGBA", "P", "LA"]),
    seed=st.integers(0, 1000),
    cut=st.none() | st.floats(0, 1, exclude_max=True),
)
def test_any_other(size: tuple[int, int], form: str, mode: str, seed: int, cut: float | None) -> None:
    image = noise(mode, size, seed)
    if mode in ("LA", "P") and form in ("BMP", "PPM"):
        image = image.convert("L")
    data = saved(image, form)
    data = data if cut is None else data[: int(cut * len(data))]
    assert disagreement(data) is None


async def test_pool_answers_on_the_loop_and_in_any_order() -> None:
    pool = DecodePool(2, 64)
    pictures = [saved(noise("RGB", (60 + index, 50)), "JPEG") for index in range(20)]
    found = await asyncio.gather(*(pool.decode(data) for data in pictures))
    for data, answer in zip(pictures, found, strict=True):
        assert isinstance(answer, Decoded)
        assert ((answer.width, answer.height), answer.data) == reference(data)
    assert isinstance(await pool.decode(saved(noise("RGB", (9, 5)), "AVIF")), PassThrough)
    with pytest.raises(MediaError) as caught:
        await pool.decode(pictures[0][:-2])
    assert caught.value.code == "media_damaged"
    await until(lambda: (pool.waiting, pool.running) == (0, 0))


async def test_pool_is_bounded_and_forgets_what_was_cancelled() -> None:
    pool = DecodePool(1, 3)
    large = saved(noise("RGB", (2000, 1500)), "PNG")
    first = pool.decode(large)
    while not pool.running:
        await asyncio.sleep(0)
    waiting = [pool.decode(large) for _ in range(3)]
    with pytest.raises(MediaError) as caught:
        _ = pool.decode(large)
    assert caught.value.code == "queue_full"
    for future in waiting:
        future.cancel()
    assert isinstance(await first, Decoded)
    pool.close()
    with pytest.raises(MediaError):
        _ = pool.decode(large)
    while pool.waiting or pool.running:
        await asyncio.sleep(0)


async def test_pool_does_not_hold_the_loop() -> None:
    pool = DecodePool(1, 8)
    data = saved(noise("RGB", (3000, 2000)), "JPEG")
    future = pool.decode(data)
    turns = 0
    while not future.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 20


async def test_pool_may_be_dropped_while_it_works() -> None:
    pool = DecodePool(1, 8)
    future = pool.decode(saved(noise("RGB", (1000, 700)), "PNG"))
    del pool
    gc.collect()
    assert isinstance(await future, Decoded)


def test_pool_needs_a_loop() -> None:
    with pytest.raises(RuntimeError):
        _ = DecodePool(1, 1).decode(b"")


def test_random_bytes() -> None:
    draw = random.Random(7)
    for _ in range(300):
        data = draw.randbytes(draw.randrange(200))
        assert isinstance(attempt(data), MediaError | PassThrough)
