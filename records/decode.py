"""From the bytes of an image file to RGB pixels: one decoder for the check while sharding and for the trainer.

What passes the check must decode in training, so both use this module, with the same strictness. JPEG goes through
libjpeg-turbo (simplejpeg) and every warning of it refuses the file, but those about bytes that are no part of the
picture (`_repair_jpeg`): sharding stores such a file without them. The rest goes through Pillow. The format is found by
content, never by the name. Orientation tags are not applied (but a TIFF's, by Pillow), and transparency is dropped, as
torchvision and timm do, unless a background is given.
Importing this changes no global state; a limit on the pixels is checked here, so that Pillow's own, which warns, is not
reached.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg  # type: ignore[import-untyped]
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

Pixels = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

# A quarter of a GiB as RGB: Pillow's own threshold (Image.MAX_IMAGE_PIXELS).
MAX_PIXELS = (1 << 30) // 4 // 3

# Scales of a JPEG's inverse DCT that are cheaper than the whole (libjpeg-turbo's others, 3/8 to 7/8, have no SIMD).
REDUCTIONS = (8, 4, 2)

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Pillow's class for each format. Not Image.open: it would guess among forty formats, and warn about large images.
_PILLOW_FORMATS: dict[str, Callable[[io.BytesIO], Image.Image]] = {
    "png": PngImageFile,
    "webp": WebPImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
    "tiff": TiffImageFile,
    "ppm": PpmImageFile,
}
# What Pillow's parsers raise on damaged files.
_PILLOW_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    EOFError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
# Rows of a deep image that are scaled at a time.
_DEEP_ROWS = 64
# EXIF 2.32, 4.6.4.
_ORIENTATION_TAG = 0x0112
# Markers of a JPEG file: ITU T.81, table B.1.
_JPEG_END = b"\xff\xd9"
_START_OF_SCAN = b"\xda"
_STANDALONE_MARKERS = {0x00, 0x01, *range(0xD0, 0xD8)}
_SEQUENTIAL_FRAMES = {0xC0, 0xC1}
# Places of the numbers of components in the segments of a frame and of a scan, behind marker and length.
_FRAME_COMPONENTS, _SCAN_COMPONENTS = 9, 4
# In coded data a 0xff is followed by 0, by more of them or by a restart marker; others end it.
_SCAN_END = re.compile(rb"\xff+[\x01-\xcf\xd8-\xfe]")
# libjpeg's warning (JWRN_EXTRANEOUS_DATA) at the end marker: all coded data was read before, without a warning.
_BEFORE_END = re.compile(r"([0-9]+) extraneous bytes before marker 0xd9")
# What damage leaves over is hardly ever a run of one value; a few bytes may be.
_SHORTEST_FILLING = 4
_JPEG_MODES = {"Gray": "L", "CMYK": "CMYK", "YCCK": "CMYK"}


class UndecodableImage(Exception):
    """The bytes are no image that can be used; the message is the reason, without the file's name."""


class Decoded(NamedTuple):
    """An image and what it was stored as."""

    pixels: Pixels
    """[H, W, 3] RGB."""
    image_format: str
    """Format by content, one of those of `image_format`."""
    mode: str
    """Colour mode of the stored image, in Pillow's terms (L, RGB, CMYK, ...)."""
    transparent: bool = False
    """Whether it was laid on a background that shows."""
    repaired: bytes | None = None
    """The file as all readers take it, where it is a JPEG with stray bytes, odd scan parameters or no end marker, but
    sound coded data; None of other files."""


class Header(NamedTuple):
    """What the first bytes of an image file say about it."""

    image_format: str
    width: int
    height: int
    mode: str
    """Colour mode, in Pillow's terms."""


def image_format(content: bytes) -> str | None:
    """Return the format of an image by its first bytes (jpeg, png, webp, gif, bmp, tiff, ppm), or None."""
    if content.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if content.startswith(_PNG_SIGNATURE):
        return "png"
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "webp"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if content.startswith(b"BM"):
        return "bmp"
    if content.startswith((b"II*\0", b"MM\0*")):
        return "tiff"
    if content[:1] == b"P" and content[1:2] in b"123456" and content[2:3].isspace():
        return "ppm"
    return None


def decode_rgb(content: bytes, *, reduction: int = 1, max_pixels: int | None = MAX_PIXELS) -> Pixels:
    """Return the pixels of an image file: [H, W, 3] uint8 RGB, contiguous and writable.

    Args:
        content: The file.
        reduction: One of `REDUCTIONS`, for a file that has a `reducible_size`: the sides are divided by it, rounded up.
            All coded bits are read and checked as at full size.
        max_pixels: Most pixels of an image; None: as many as there are, for images that sharding has accepted.

    Raises:
        UndecodableImage: It is empty, of no known format, truncated, corrupt, or too large.
    """
    return decode(content, reduction=reduction, max_pixels=max_pixels).pixels


def reducible_size(content: bytes) -> tuple[int, int] | None:
    """Return (height, width) of an image that can be decoded at a reduction, None of all others.

    Raises:
        UndecodableImage: Its header is damaged.
    """
    if image_format(content) != "jpeg":
        return None
    try:
        height, width, colorspace = _read_jpeg_header(content)
    except ValueError as error:
        raise UndecodableImage(f"damaged jpeg: {error}") from None
    return None if _JPEG_MODES.get(colorspace) == "CMYK" else (height, width)


def decode(
    content: bytes, *, reduction: int = 1, background: Colour | None = None, max_pixels: int | None = MAX_PIXELS
) -> Decoded:
    """Return pixels, format and stored colour mode of an image file.

    Args:
        content: The file.
        reduction: As in `decode_rgb`.
        background: Colour that an image with transparency is laid on. None: transparency is dropped, and what an editor
            has left below it shows.
        max_pixels: As in `decode_rgb`.

    Raises:
        UndecodableImage: It is empty, of no known format, truncated, corrupt, or too large.
    """
    found = _find_format(content)
    if found == "jpeg":
        return _decode_jpeg(content, reduction, max_pixels)
    if found == "png":
        _check_png_chunks(content)
    return _decode_with_pillow(content, found, _PILLOW_FORMATS[found], max_pixels, background)


def read_header(content: bytes, *, max_pixels: int | None = MAX_PIXELS) -> Header:
    """Return format, size and colour mode of an image file without decoding its pixels.

    Raises:
        UndecodableImage: It is empty, of no known format, its header is damaged, or it is too large.
    """
    found = _find_format(content)
    try:
        if found == "jpeg":
            height, width, colorspace = _read_jpeg_header(content)
            mode = _JPEG_MODES.get(colorspace, "RGB")
        else:
            with _PILLOW_FORMATS[found](io.BytesIO(content)) as image:
                (width, height), mode = image.size, image.mode
        _check_size(width, height, max_pixels)
    except _PILLOW_ERRORS as error:
        raise UndecodableImage(f"damaged {found}: {error or type(error).__name__}") from None
    return Header(found, width, height, mode)


def check_complete(content: bytes, image_format: str) -> None:
    """Check that an image file goes on to its end, without decoding it: as far as its format tells where that is.

    JPEG: an end marker behind the last start of a scan. PNG: all chunks up to IEND. WebP: the length in its header. Of
    the others nothing is asked.

    Raises:
        UndecodableImage: It is truncated.
    """
    if image_format == "png":
        _check_png_chunks(content, checksums=False)
    elif image_format == "jpeg":
        complete = content.rfind(_JPEG_END, _find_scan(content)) >= 0
        if not complete:
            raise UndecodableImage("damaged jpeg: the file is truncated")
    elif image_format == "webp":
        (length,) = struct.unpack_from("<I", content, 4)
        if 8 + length > len(content):
            raise UndecodableImage("damaged webp: the file is truncated")


def _find_scan(content: bytes) -> int:
    """Return where the first scan of a JPEG starts: a thumbnail before it has an end marker of its own."""
    at = 2
    while content[at : at + 1] == b"\xff" and content[at + 1 : at + 2] != _START_OF_SCAN:
        # Markers may be preceded by any number of fill bytes (ITU T.81, B.1.1.2).
        at += 1 if content[at + 1 : at + 2] == b"\xff" else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return at


def read_orientation(content: bytes, image_format: str) -> int:
    """Return the EXIF orientation of an image file, 1 to 8; 1, upright, where it says nothing that can be read.

    Of a TIFF too: Pillow turns it while it is decoded (TiffImagePlugin.load_end).
    """
    if image_format == "tiff":
        return 1
    try:
        with {**_PILLOW_FORMATS, "jpeg": JpegImageFile}[image_format](io.BytesIO(content)) as image:
            value = image.getexif().get(_ORIENTATION_TAG, 1)
    except _PILLOW_ERRORS:
        return 1
    return value if value in range(1, 9) else 1


def _find_format(content: bytes) -> str:
    if not content:
        raise UndecodableImage("the file is empty")
    found = image_format(content)
    if found is None:
        raise UndecodableImage("not an image of a known format (jpeg, png, webp, gif, bmp, tiff, ppm)")
    return found


def _decode_jpeg(content: bytes, reduction: int, max_pixels: int | None) -> Decoded:
    try:
        return _decode_jpeg_once(content, reduction, max_pixels)
    except ValueError as error:
        reason = str(error)
    content = _repair_jpeg(content)
    try:
        return _decode_jpeg_once(content, reduction, max_pixels)._replace(repaired=content)
    except ValueError as error:
        content = _drop_filling(content, str(error))
    try:
        return _decode_jpeg_once(content, reduction, max_pixels)._replace(repaired=content)
    except ValueError:
        raise UndecodableImage(f"damaged jpeg: {reason}") from None


def _decode_jpeg_once(content: bytes, reduction: int, max_pixels: int | None) -> Decoded:
    """Decode a JPEG; raise ValueError where libjpeg-turbo fails or warns."""
    height, width, colorspace, _ = simplejpeg.decode_jpeg_header(content)
    _check_size(width, height, max_pixels)
    mode = _JPEG_MODES.get(colorspace, "RGB")
    if mode == "CMYK":
        # libjpeg-turbo has no CMYK to RGB; decoding it all the same is the strict check that Pillow lacks.
        simplejpeg.decode_jpeg(content, colorspace="CMYK")
        return _decode_with_pillow(content, "jpeg", JpegImageFile, max_pixels)
    if reduction == 1:
        return Decoded(simplejpeg.decode_jpeg(content), "jpeg", mode)
    # simplejpeg takes the smallest of libjpeg-turbo's scales that is not below these sides: exactly this one.
    least = {"min_height": -(-height // reduction), "min_width": -(-width // reduction)}
    return Decoded(simplejpeg.decode_jpeg(content, **least), "jpeg", mode)


def _read_jpeg_header(content: bytes) -> tuple[int, int, str]:
    """Return height, width and colour space of a JPEG; raise ValueError where it has no sound header."""
    try:
        found = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        found = simplejpeg.decode_jpeg_header(_repair_jpeg(content))
    height, width, colorspace, _ = found
    return height, width, colorspace


def _repair_jpeg(content: bytes) -> bytes:
    """Return a JPEG without the oddities that phones write and viewers pass over; its coded data stays as it is.

    Bytes between two segments are left out, scan parameters of a sequential file (Ss, Se, Ah and Al) are those that
    ITU T.81, B.2.3 asks for, and an end marker is added to a sequential file that has all of its scans: of a cut
    progressive one nobody can tell whether scans are missing.
    """
    parts = [content[:2]]
    at, is_sequential, missing = 2, False, 1
    while (start := content.find(b"\xff", at)) >= 0 and start + 1 < len(content):
        marker = content[start + 1]
        if marker == 0xFF or marker in _STANDALONE_MARKERS:
            at = start + (1 if marker == 0xFF else 2)
            continue
        if marker == _JPEG_END[1]:
            return b"".join([*parts, _JPEG_END])
        end = start + 2 + int.from_bytes(content[start + 2 : start + 4], "big")
        if end > len(content):
            return content
        segment = content[start:end]
        at = end
        if marker in _SEQUENTIAL_FRAMES and len(segment) > _FRAME_COMPONENTS:
            is_sequential, missing = True, segment[_FRAME_COMPONENTS]
        elif marker == _START_OF_SCAN[0] and len(segment) > _SCAN_COMPONENTS:
            if is_sequential:
                missing -= segment[_SCAN_COMPONENTS]
                segment = segment[:-3] + b"\x00\x3f\x00"
            found = _SCAN_END.search(content, end)
            at = found.start() if found else len(content)
            segment += content[end:at]
        parts.append(segment)
    return b"".join([*parts, _JPEG_END]) if is_sequential and missing <= 0 else content


def _drop_filling(content: bytes, warning: str) -> bytes:
    """Return a JPEG without the zeros, or many equal bytes, before its end marker that a warning of libjpeg counts.

    Other bytes stay: where coded data is damaged, some of it is left over in the same way.
    """
    found = _BEFORE_END.search(warning)
    if found is None:
        return content
    end = len(content) - len(_JPEG_END)
    filling = content[end - int(found[1]) : end]
    if any(filling) and (len(filling) < _SHORTEST_FILLING or len(set(filling)) > 1):
        return content
    return content[: end - len(filling)] + _JPEG_END


def _decode_with_pillow(
    content: bytes,
    name: str,
    opener: Callable[[io.BytesIO], Image.Image],
    max_pixels: int | None,
    background: Colour | None = None,
) -> Decoded:
    try:
        with opener(io.BytesIO(content)) as image:
            _check_size(*image.size, max_pixels)
            image.load()
            if background is not None and (pixels := _lay_on(background, image)) is not None:
                return Decoded(pixels, name, image.mode, transparent=True)
            return Decoded(_to_rgb(image), name, image.mode)
    except _PILLOW_ERRORS as error:
        raise UndecodableImage(f"damaged {name}: {error or type(error).__name__}") from None


def _lay_on(background: Colour, image: Image.Image) -> Pixels | None:
    """Return a loaded image laid on a background, [H, W, 3] uint8; None where it is opaque everywhere."""
    # Deep grey may name one of its 65,536 values transparent, which Pillow converts to nothing: left as it is.
    if not image.has_transparency_data or image.mode.startswith("I"):
        return None
    image = image.convert("RGBA")
    alpha = image.getchannel("A")
    if alpha.getextrema() == (255, 255):
        return None
    laid = Image.new("RGB", image.size, background)
    laid.paste(image, mask=alpha)
    return np.array(laid)


def _to_rgb(image: Image.Image) -> Pixels:
    """Convert a loaded image of any mode to [H, W, 3] uint8."""
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image)
        if values.size and (values.min() < 0 or values.max() > 0xFFFF):
            raise UndecodableImage("32-bit grey values outside of 0..65535 have no agreed scale")
        pixels = np.empty((*values.shape, 3), np.uint8)
        # A few rows at a time: of all at once every step below would take 4 bytes a pixel.
        for start in range(0, len(values), _DEEP_ROWS):
            rows = values[start : start + _DEEP_ROWS].astype(np.uint32)
            # 65535 / 257 = 255: the nearest 8-bit value, where Pillow's own conversion would clip at 255.
            pixels[start : start + _DEEP_ROWS] = ((rows + 128) // 257)[:, :, None]
        return pixels
    if image.mode == "F":
        raise UndecodableImage("floating-point pixels have no agreed scale")
    if image.mode == "P" and "transparency" in image.info:
        # Straight to RGB, Pillow warns about transparency in a palette.
        image = image.convert("RGBA")
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _check_size(width: int, height: int, max_pixels: int | None) -> None:
    if width < 1 or height < 1:
        raise UndecodableImage(f"the image is {width} x {height} pixels")
    if max_pixels is not None and width * height > max_pixels:
        raise UndecodableImage(
            f"{width} x {height} pixels are more than the limit of {max_pixels} (sharding.max_pixels)"
        )


def _check_png_chunks(content: bytes, *, checksums: bool = True) -> None:
    """Check what Pillow does not: that the file is whole and the critical chunks have their checksum."""
    at = len(_PNG_SIGNATURE)
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        kind = content[at + 4 : at + 8]
        end = at + 12 + length
        if end > len(content):
            break
        # A critical chunk starts with a capital letter (PNG specification, 5.4).
        if checksums and kind[:1].isupper():
            (stated,) = struct.unpack_from(">I", content, end - 4)
            if zlib.crc32(content[at + 4 : end - 4]) != stated:
                raise UndecodableImage(f"damaged png: wrong checksum in chunk {kind.decode('ascii', 'replace')}")
        if kind == b"IEND":
            return
        at = end
    raise UndecodableImage("damaged png: the file is truncated")
