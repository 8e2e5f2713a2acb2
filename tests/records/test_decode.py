"""Decoding: every colour mode comes out as RGB, every kind of damage as a reason."""

import io
import struct
import subprocess
import sys
import tracemalloc
import zlib

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from records.decode import MAX_PIXELS, UndecodableImage, decode, decode_rgb, image_format
from records.pixels import Changes, change

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
    pixels, found, *_ = decode(FILES[name])
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


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
def test_16_bit_grey_takes_little_more_than_its_pixels(kind):
    values = np.random.default_rng(0).integers(0, 65536, (1000, 1500)).astype(kind)
    content = encode(Image.fromarray(values), "TIFF")
    tracemalloc.start()
    try:
        pixels = decode_rgb(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Pillow's pixels, and a copy of them as an array, and three bytes for each.
    assert peak / values.size < 2 * np.dtype(kind).itemsize + 3 + 2
    assert np.array_equal(pixels[..., 1], np.round(values / 257).astype(np.uint8))


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


# --- transparency -----------------------------------------------------------------------------------------------------


def make_transparent(mode):
    """Return an image whose left half is opaque, a column half transparent, and the rest invisible, black below it."""
    pixels = np.zeros((6, 8, 4), np.uint8)
    pixels[:, :4] = (200, 100, 50, 255)
    pixels[:, 4] = (200, 100, 50, 128)
    image = Image.fromarray(pixels)
    if mode == "P":
        image = image.quantize(4)
    return image if image.mode == mode else image.convert(mode)


@pytest.mark.parametrize(
    ("mode", "name"),
    [("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "WEBP"), ("RGBA", "TIFF"), ("RGBA", "GIF")],
)
@pytest.mark.parametrize("background", [(255, 255, 255), (0, 0, 0), (10, 200, 30)])
def test_transparent_images_are_laid_on_a_background_and_stored_as_png(mode, name, background):
    content = encode(make_transparent(mode), name, **({"lossless": True} if name == "WEBP" else {}))
    plain, laid = decode(content), decode(content, background=background)
    assert laid.transparent and not plain.transparent and laid.mode == plain.mode
    assert (laid.pixels[:, 5:] == background).all()
    assert np.array_equal(laid.pixels[:, :4], plain.pixels[:, :4])
    assert not (plain.pixels[:, 5:] == (255, 255, 255)).all(), "the trainer's decoder shows what lies below"
    if name != "GIF":  # it has no half transparency
        mixed = (plain.pixels[:, 4].astype(float) * 128 + np.array(background) * 127) / 255
        assert np.abs(laid.pixels[:, 4] - mixed).max() <= 1
    stored, changes = change(content, laid, Changes())
    assert changes == ("transparent",)
    again = decode(stored, background=(1, 2, 3))
    assert (again.image_format, again.transparent) == ("png", False)
    assert again.mode == ("L" if mode == "LA" and len(set(background)) == 1 else "RGB")
    # What is stored needs no alpha any more: every decoder sees the same.
    assert np.array_equal(again.pixels, laid.pixels) and np.array_equal(decode_rgb(stored), laid.pixels)


def test_a_transparent_colour_of_a_png():
    pixels = np.full((4, 4, 3), (9, 8, 7), np.uint8)
    pixels[0] = 250
    content = encode(Image.fromarray(pixels), "PNG", transparency=(9, 8, 7))
    laid = decode(content, background=(255, 255, 255))
    assert laid.transparent and (laid.pixels[1:] == 255).all() and (laid.pixels[0] == 250).all()
    # One with 16 bits a channel decodes as before, whatever it calls transparent.
    deep = bytearray(encode(Image.fromarray(pixels), "PNG"))
    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"tRNS", struct.pack(">HHH", 65535, 300, 40000)),
        (b"IDAT", zlib.compress(b"\0" + struct.pack(">6H", 65535, 300, 40000, 1, 2, 3))),
        (b"IEND", b""),
    ]
    deep = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    assert decode(deep, background=(0, 0, 0)).pixels.shape == decode(deep).pixels.shape == (1, 2, 3)


@pytest.mark.parametrize(
    ("mode", "name"), [("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "WEBP"), ("L", "PNG")]
)
def test_opaque_images_keep_their_bytes(mode, name):
    image = Image.fromarray(GRADIENT).convert("RGBA").convert(mode)
    content = encode(image, name, **({"transparency": bytes([255] * 256)} if mode == "P" else {}))
    laid, plain = decode(content, background=(1, 2, 3)), decode(content)
    assert not laid.transparent and np.array_equal(laid.pixels, plain.pixels)
    assert change(content, laid, Changes()) == (content, ())


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
