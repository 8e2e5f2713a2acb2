"""Decode image files to RGB pixels: one decoder for the check while sharding and for the trainer.

Both use this module with the same strictness, so that an accepted image decodes in training. JPEG is decoded by
libjpeg-turbo (simplejpeg). Each of its warnings rejects the file, except those about bytes outside of the picture
(`_repair_jpeg`), which sharding removes. Other formats are decoded by Pillow (records/pixels.py).
Importing this module changes no global state. The limit on pixels is checked here, below Pillow's own limit.
"""

from __future__ import annotations

import re
import struct
import zlib

import PIL
import simplejpeg  # type: ignore[import-untyped]
from PIL import features

from records.pixels import MAX_PIXELS as MAX_PIXELS
from records.pixels import Colour as Colour
from records.pixels import Decoded as Decoded
from records.pixels import Pixels as Pixels
from records.pixels import UndecodableImage as UndecodableImage
from records.pixels import check_size, decode_with_pillow, require_format
from records.pixels import image_format as image_format

# Scales of a JPEG's inverse DCT that are cheaper than the whole (libjpeg-turbo's others, 3/8 to 7/8, have no SIMD).
REDUCTIONS = (8, 4, 2)

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Markers of a JPEG file: ITU T.81, table B.1.
_JPEG_END = b"\xff\xd9"
_START_OF_SCAN = b"\xda"
_STANDALONE_MARKERS = {0x00, 0x01, *range(0xD0, 0xD8)}
_SEQUENTIAL_FRAMES = {0xC0, 0xC1}
# Places of the numbers of components in the segments of a frame and of a scan, behind marker and length.
_FRAME_COMPONENTS, _SCAN_COMPONENTS = 9, 4
# In coded data a 0xff is followed by 0x00, 0xff or a restart marker; other markers end it.
_SCAN_END = re.compile(rb"\xff+[\x01-\xcf\xd8-\xfe]")
# libjpeg's warning (JWRN_EXTRANEOUS_DATA) at the end marker: all coded data was read before, without a warning.
_EXTRANEOUS_BYTES = re.compile(r"([0-9]+) extraneous bytes before marker 0xd9")
# Damaged data is unlikely to end in a run of this many equal bytes.
_SHORTEST_FILLING = 4
_JPEG_MODES = {"Gray": "L", "CMYK": "CMYK", "YCCK": "CMYK"}


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
    """Return (height, width) of an image that can be decoded at a reduction, else None.

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
    file_format = require_format(content)
    if file_format == "jpeg":
        return _decode_jpeg(content, reduction, max_pixels)
    if file_format == "png":
        _check_png_chunks(content)
    return decode_with_pillow(content, background=background, max_pixels=max_pixels)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that determine the bytes of changed images.

    Pillow encodes; simplejpeg, which bundles libjpeg-turbo, decodes JPEGs.
    """
    features_found = {name: features.version(name) for name in ("libjpeg_turbo", "zlib_ng", "zlib")}
    versions = {"pillow": PIL.__version__, "simplejpeg": str(simplejpeg.__version__)}
    return versions | {name: version for name, version in features_found.items() if version}


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
    check_size(width, height, max_pixels)
    mode = _JPEG_MODES.get(colorspace, "RGB")
    if mode == "CMYK":
        # Decoded twice: libjpeg-turbo for the strict check, Pillow for the conversion from CMYK to RGB.
        simplejpeg.decode_jpeg(content, colorspace="CMYK")
        return decode_with_pillow(content, max_pixels=max_pixels)
    if reduction == 1:
        return Decoded(simplejpeg.decode_jpeg(content), "jpeg", mode)
    # simplejpeg takes the smallest of libjpeg-turbo's scales with at least these sides, which is this reduction.
    least = {"min_height": -(-height // reduction), "min_width": -(-width // reduction)}
    return Decoded(simplejpeg.decode_jpeg(content, **least), "jpeg", mode)


def _read_jpeg_header(content: bytes) -> tuple[int, int, str]:
    """Return height, width and colour space of a JPEG; raise ValueError if its header is damaged."""
    try:
        header = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        header = simplejpeg.decode_jpeg_header(_repair_jpeg(content))
    height, width, colorspace, _ = header
    return height, width, colorspace


def _repair_jpeg(content: bytes) -> bytes:
    """Return a JPEG without oddities that phones write and viewers ignore; its coded data is unchanged.

    Bytes between segments are removed, scan parameters of a sequential file (Ss, Se, Ah and Al) are set to those of
    ITU T.81, B.2.3, and an end marker is added to a sequential file with all of its scans. A truncated progressive file
    gets none, since missing scans cannot be detected.
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
            scan_end = _SCAN_END.search(content, end)
            at = scan_end.start() if scan_end else len(content)
            segment += content[end:at]
        parts.append(segment)
    return b"".join([*parts, _JPEG_END]) if is_sequential and missing <= 0 else content


def _drop_filling(content: bytes, warning: str) -> bytes:
    """Return a JPEG without the zeros, or many equal bytes, before its end marker that libjpeg warns about.

    Other bytes stay, since they may be a rest of damaged coded data.
    """
    match = _EXTRANEOUS_BYTES.search(warning)
    if match is None:
        return content
    end = len(content) - len(_JPEG_END)
    filling = content[end - int(match[1]) : end]
    if any(filling) and (len(filling) < _SHORTEST_FILLING or len(set(filling)) > 1):
        return content
    return content[: end - len(filling)] + _JPEG_END


def _check_png_chunks(content: bytes) -> None:
    """Check that a PNG is complete and that the checksums of its critical chunks match, which Pillow does not."""
    at = len(_PNG_SIGNATURE)
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        kind = content[at + 4 : at + 8]
        end = at + 12 + length
        if end > len(content):
            break
        # A critical chunk starts with a capital letter (PNG specification, 5.4).
        if kind[:1].isupper():
            (stated,) = struct.unpack_from(">I", content, end - 4)
            if zlib.crc32(content[at + 4 : end - 4]) != stated:
                raise UndecodableImage(f"damaged png: wrong checksum in chunk {kind.decode('ascii', 'replace')}")
        if kind == b"IEND":
            return
        at = end
    raise UndecodableImage("damaged png: the file is truncated")
