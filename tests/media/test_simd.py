"""libjpeg-turbo is built with its SIMD code. Without it decoding takes twice as long, and nothing else would tell."""

import hashlib
import os
import platform
import struct
import subprocess
import sys

import pytest
from epd_router._core import Decoded, decode

from tests.media.corpus import noise, saved
from tests.media.reference import reference

SWITCHES = ("JSIMD_FORCENONE", "JSIMD_FORCESSE2", "JSIMD_FORCEAVX2", "JSIMD_FORCENEON")
PROGRAM = """
import hashlib, sys
from epd_router._core import decode
print(hashlib.sha256(decode(sys.stdin.buffer.read()).data).hexdigest())
"""


def steep() -> bytes:
    """A JPEG whose fine coefficients are read with the coarsest table, so that they leave the range of 16 bits: the scalar
    transform wraps them in another place than the vector ones. The stream itself is sound."""
    data = bytearray(saved(noise("L", (64, 48)), "JPEG", quality=95))
    at = data.index(b"\xff\xdb")
    size, kind = struct.unpack(">HB", data[at + 2 : at + 5])
    assert (size, kind) == (67, 0)
    data[at + 5 : at + 69] = b"\xff" * 64
    return bytes(data)


def elsewhere(data: bytes, **switches: str) -> str:
    """Digest of the pixels that another process makes of it."""
    environment = {name: value for name, value in os.environ.items() if name not in SWITCHES} | switches
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=data, capture_output=True, check=True, env=environment)
    return done.stdout.decode().strip()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"), reason="no SIMD code for this processor")
def test_jpegs_are_decoded_with_simd() -> None:
    data = steep()
    plain, scalar = elsewhere(data), elsewhere(data, JSIMD_FORCENONE="1")
    assert plain != scalar, "libjpeg-turbo was built without SIMD (is nasm installed?)"
    ours = decode(data)
    assert isinstance(ours, Decoded)
    assert hashlib.sha256(ours.data).hexdigest() == plain, "this process decodes without SIMD"
    # Pillow comes with SIMD, and so agrees even where the scalar code does not.
    assert reference(data) == ((ours.width, ours.height), ours.data)


def test_sound_pictures_do_not_depend_on_simd() -> None:
    data = saved(noise("RGB", (63, 49)), "JPEG", quality=95)
    assert elsewhere(data) == elsewhere(data, JSIMD_FORCENONE="1")
