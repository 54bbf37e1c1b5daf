"""`epd_router.media` by itself."""

from __future__ import annotations

import base64
import hashlib
import json

import numpy as np
import pytest
from epd_router import media
from epd_router._core import identify, scan
from PIL import Image

from tests.media.corpus import noise, saved


def test_pixels_are_an_array_without_a_copy() -> None:
    image = noise("RGB", (31, 17))
    decoded = media.decode(saved(image, "PNG"))
    assert isinstance(decoded, media.Decoded)
    data = decoded.data
    pixels = np.frombuffer(data, "uint8", offset=decoded.offset).reshape(decoded.height, decoded.width, 3)
    assert (pixels == np.asarray(image)).all()
    assert decoded.data is data
    assert not pixels.flags.owndata


def test_names_are_those_of_the_router() -> None:
    data = saved(noise("RGB", (31, 17)), "JPEG")
    body = json.dumps({"content_parts": [{"image_url": f"data:;base64,{base64.b64encode(data).decode()}"}]}).encode()
    (named,) = identify(body, scan(body), b"salt")
    assert named is not None
    assert media.content_id(data, salt=b"salt") == named.id != media.content_id(data)
    assert media.content_hash(data) == "sha256:" + hashlib.sha256(data).hexdigest()
    with pytest.raises(media.MediaError):
        media.content_id(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")


def test_many_keep_their_order_and_their_errors() -> None:
    pictures = [saved(noise("RGB", (20 + index, 10)), "JPEG") for index in range(20)]
    pictures[7] = pictures[7][:-2]
    pictures[8] = saved(Image.new("RGB", (9, 9)), "AVIF")
    found = media.decode_many(pictures)
    for index, one in enumerate(found):
        if index == 7:
            assert isinstance(one, media.MediaError)
            assert one.code == "media_damaged"
        elif index == 8:
            assert isinstance(one, media.PassThrough)
        else:
            assert isinstance(one, media.Decoded)
            assert (one.width, one.height) == (20 + index, 10)
