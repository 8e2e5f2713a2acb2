"""Checks of one image, for each way to verify; the images of real collections are in test_check.py."""

import io
import struct
import zlib

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from contracts.config import ShardingSection
from records.decode import UndecodableImage, decode_rgb
from records.pixels import Changes
from sharding.images import Checks, check


def encode(image, name, **options):
    stream = io.BytesIO()
    image.save(stream, name, **options)
    return stream.getvalue()


def make_bomb():
    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


WHOLE = simplejpeg.encode_jpeg(np.zeros((64, 64, 3), np.uint8))
# Damaged in the middle, and all there: a header tells nothing of it.
SCRATCHED = WHOLE[:-40] + bytes([byte ^ 0xA5 for byte in WHOLE[-40:-4]]).replace(b"\xff", b"\0") + b"\x00\x00\xff\xd9"


@pytest.mark.parametrize("with_pixels", [False, True])
def test_a_header_decides_alike_whether_an_image_is_drawn_or_not(with_pixels):
    checks = Checks("header")
    with pytest.raises(UndecodableImage, match="truncated"):
        check(WHOLE[:-40], checks, with_pixels=with_pixels)
    with pytest.raises(UndecodableImage, match="truncated"):
        check(encode(Image.new("L", (20, 10)), "PNG")[:-8], checks, with_pixels=with_pixels)
    with pytest.raises(UndecodableImage):
        decode_rgb(SCRATCHED)
    found = check(SCRATCHED, checks, with_pixels=with_pixels)
    assert (found.width, found.mode, found.content) == (64, "RGB", SCRATCHED)
    # It is left out of the statistics, and nothing else.
    assert found.pixels is None
    whole = check(WHOLE, checks, with_pixels=with_pixels)
    assert (whole.pixels is not None) == with_pixels and whole._replace(pixels=None, content=SCRATCHED) == found


@pytest.mark.parametrize("name", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_header_and_decode_agree(name):
    content = encode(Image.new("RGB", (13, 7), (9, 90, 200)), name)
    decoded, header = (check(content, Checks(verify), with_pixels=False) for verify in ("decode", "header"))
    assert decoded._replace(pixels=None) == header


@pytest.mark.parametrize("verify", ["decode", "header", "none"])
@pytest.mark.parametrize("content", [b"", b"text", b"\0" * 600])
def test_what_is_no_image_is_refused_by_all(verify, content):
    with pytest.raises(UndecodableImage):
        check(content, Checks(verify), with_pixels=False)


@pytest.mark.parametrize("verify", ["decode", "header"])
def test_a_bomb_is_refused_by_its_header(verify):
    with pytest.raises(UndecodableImage, match="more than the limit"):
        check(make_bomb(), Checks(verify), with_pixels=False)


@pytest.mark.parametrize(
    ("background", "colour"), [("white", (255, 255, 255)), ("black", (0, 0, 0)), ("#0ac81e", (10, 200, 30))]
)
def test_transparent_images_lie_on_the_background_of_the_configuration(background, colour):
    content = encode(Image.new("RGBA", (9, 4), (200, 10, 10, 0)), "PNG")
    checks = Checks.of(ShardingSection(background=background))
    found = check(content, checks, with_pixels=True)
    assert found.changes == ("transparent",) and (found.source_mode, found.mode) == ("RGBA", "RGB")
    assert (found.pixels == colour).all() and (decode_rgb(found.content) == colour).all()
    # What was made of it needs nothing any more.
    assert check(found.content, checks, with_pixels=False)[:5] == found[:5]
    opaque = encode(Image.new("RGBA", (9, 4), (200, 10, 10, 255)), "PNG")
    kept = check(opaque, checks, with_pixels=False)
    assert kept.content == opaque and kept.changes == ()
    for verify in ("header", "none"):
        kept = check(content, Checks(verify), with_pixels=False)
        assert kept.content == content and kept.changes == ()


def test_transparent_images_are_changed_otherwise_too():
    content = encode(Image.new("RGBA", (90, 40), (200, 10, 10, 0)), "WEBP", lossless=True)
    found = check(content, Checks(changes=Changes(shorter_side=20)), with_pixels=False)
    assert found.changes == ("transparent", "resize") and found.image_format == "png"
    assert (found.width, found.height) == (45, 20) and (decode_rgb(found.content) == 255).all()
