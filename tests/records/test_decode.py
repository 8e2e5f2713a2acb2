"""Decoding: every colour mode comes out as RGB, every kind of damage as a reason."""

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from records.decode import MAX_PIXELS, UndecodableImage, decode, decode_rgb, image_format

GRADIENT = np.arange(24 * 16 * 3, dtype=np.uint32).reshape(24, 16, 3).astype(np.uint8)


def encode(image, name, **options):
    stream = io.BytesIO()
    image.save(stream, format=name, **options)
    return stream.getvalue()


FILES = {
    "png": encode(Image.fromarray(GRADIENT), "PNG"),
    "jpeg": simplejpeg.encode_jpeg(GRADIENT, quality=95),
    "webp": encode(Image.fromarray(GRADIENT), "WEBP", lossless=True),
    "gif": encode(Image.fromarray(GRADIENT), "GIF"),
    "bmp": encode(Image.fromarray(GRADIENT), "BMP"),
    "tiff": encode(Image.fromarray(GRADIENT), "TIFF"),
    "ppm": encode(Image.fromarray(GRADIENT), "PPM"),
}


@pytest.mark.parametrize("name", FILES)
def test_formats_are_known_by_content(name):
    assert image_format(FILES[name]) == name
    pixels, found, _ = decode(FILES[name])
    assert (pixels.shape, pixels.dtype, found) == ((24, 16, 3), np.uint8, name)
    assert pixels.flags.writeable and pixels.flags.c_contiguous
    if name not in ("jpeg", "gif"):
        assert np.array_equal(pixels, GRADIENT)


@pytest.mark.parametrize("content", [b"", b"\x89PNG", b"hello", b"RIFF1234WAVE", b"P", b"P7\n"])
def test_unknown_formats(content):
    assert image_format(content) is None
    with pytest.raises(UndecodableImage):
        decode_rgb(content)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_colour_modes_of_png(mode):
    image = Image.fromarray(GRADIENT).convert(mode)
    decoded = decode(encode(image, "PNG"))
    assert decoded.mode == mode
    assert np.array_equal(decoded.pixels, np.array(image.convert("RGB")))


def test_transparency_in_a_palette_is_dropped_without_a_warning():
    image = Image.fromarray(GRADIENT).convert("P")
    content = encode(image, "PNG", transparency=bytes(range(256)))
    assert np.array_equal(decode_rgb(content), np.array(image.convert("RGB")))


def test_16_bit_grey_is_scaled():
    values = np.array([[0, 128, 129, 257, 32767, 32768, 65535]], np.uint16)
    pixels = decode_rgb(encode(Image.fromarray(values), "PNG"))
    assert pixels[0, :, 0].tolist() == [0, 0, 1, 1, 127, 128, 255]
    assert np.array_equal(pixels[..., 0], pixels[..., 2])


def test_grey_and_cmyk_jpeg():
    grey = decode(encode(Image.fromarray(GRADIENT).convert("L"), "JPEG"))
    assert (grey.mode, grey.pixels.shape) == ("L", (24, 16, 3))
    flat = Image.new("CMYK", (16, 24), (0, 255, 255, 0))  # full magenta and yellow: red
    cmyk = decode(encode(flat, "JPEG"))
    assert cmyk.mode == "CMYK"
    assert cmyk.pixels[12, 8, 0] > 200 and cmyk.pixels[12, 8, 1] < 60


def test_unscalable_pixels_are_refused():
    with pytest.raises(UndecodableImage, match="floating-point"):
        decode_rgb(encode(Image.fromarray(GRADIENT[..., 0].astype(np.float32)), "TIFF"))
    with pytest.raises(UndecodableImage, match="32-bit"):
        decode_rgb(encode(Image.fromarray(GRADIENT[..., 0].astype(np.int32) * 1000), "TIFF"))


@pytest.mark.parametrize("name", FILES)
def test_truncated_files_are_refused(name):
    for part in (0.3, 0.6, 0.9):
        with pytest.raises(UndecodableImage):
            decode_rgb(FILES[name][: int(len(FILES[name]) * part)])


def test_png_without_its_end_and_with_a_wrong_checksum():
    with pytest.raises(UndecodableImage, match="truncated"):
        decode_rgb(FILES["png"][:-12])
    content = bytearray(FILES["png"])
    content[content.index(b"IDAT") + 10] ^= 1
    with pytest.raises(UndecodableImage, match="checksum in chunk IDAT"):
        decode_rgb(bytes(content))


def test_bombs_give_a_reason():
    side = int(MAX_PIXELS**0.5) + 1
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    jpeg = bytearray(FILES["jpeg"])
    frame = jpeg.index(b"\xff\xc0") + 5
    jpeg[frame : frame + 4] = struct.pack(">HH", side, side)
    for content in (png, bytes(jpeg)):
        with pytest.raises(UndecodableImage, match="more than the limit"):
            decode_rgb(content)


# Pillow remarks on TIFF tags that the damage has hit.
@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FILES)), st.data())
def test_damage_never_ends_in_another_exception(name, data):
    content = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert decode_rgb(bytes(content)).ndim == 3
    except UndecodableImage as error:
        assert str(error)


def test_import_is_light_and_changes_nothing():
    code = (
        "import warnings; before = list(warnings.filters); import PIL.Image as i; limit = i.MAX_IMAGE_PIXELS;"
        "import records.decode, sys;"
        "assert i.MAX_IMAGE_PIXELS == limit and not i._initialized;"
        "assert not {'torch', 'apache_beam'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
