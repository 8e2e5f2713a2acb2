"""Checks of one image, for each way to verify; the images of real collections are in test_check.py."""

import io
import struct
import zlib

import pytest
from PIL import Image

from contracts.config import ShardingSection
from records.decode import UndecodableImage, decode_rgb
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


def test_a_bomb_is_refused_by_its_header():
    with pytest.raises(UndecodableImage, match="more than the limit"):
        check(make_bomb(), Checks())


@pytest.mark.parametrize(
    ("background", "colour"), [("white", (255, 255, 255)), ("black", (0, 0, 0)), ("#0ac81e", (10, 200, 30))]
)
def test_transparent_images_lie_on_the_background_of_the_configuration(background, colour):
    content = encode(Image.new("RGBA", (9, 4), (200, 10, 10, 0)), "PNG")
    checks = Checks.of(ShardingSection(background=background))
    found = check(content, checks)
    assert found.changes == ("transparent",) and (found.source_mode, found.mode) == ("RGBA", "RGB")
    assert (found.pixels == colour).all() and (decode_rgb(found.content) == colour).all()
    # What was made of it needs nothing any more.
    assert check(found.content, checks)[:5] == found[:5]
    opaque = encode(Image.new("RGBA", (9, 4), (200, 10, 10, 255)), "PNG")
    kept = check(opaque, checks)
    assert kept.content == opaque and kept.changes == ()
    kept = check(content, Checks("none"))
    assert kept.content == content and kept.changes == ()
