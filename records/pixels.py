"""The rule for pixels: from an image file to RGB, and the changes that sharding may make to it.

Sharding, training and the predict.py of an export share this module; an export ships it byte for byte. It imports numpy
and Pillow alone and runs on Python 3.10. The format is found by content, never by the name. Orientation tags are
ignored (but a TIFF's, which Pillow applies) unless `Changes.orientation` is set. Transparency is dropped, as
torchvision and timm do, unless a background is given.

records/decode.py adds the strictness of sharding and training: JPEG by libjpeg-turbo itself, checksums.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
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
KNOWN_FORMATS = "jpeg, png, webp, gif, bmp, tiff, ppm"

# Pillow's class for each format. Not Image.open: it would guess among forty formats, and warn about large images.
_OPENERS: dict[str, Callable[[io.BytesIO], Image.Image]] = {
    "jpeg": JpegImageFile,
    "png": PngImageFile,
    "webp": WebPImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
    "tiff": TiffImageFile,
    "ppm": PpmImageFile,
}
PILLOW_ERRORS = (
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
"""Raised by Pillow's parsers on damaged files."""
# Rows of a deep image that are scaled at a time.
_DEEP_ROWS = 64
# EXIF 2.32, 4.6.4: the tag, and what undoes each value: quarter turns counter-clockwise, then mirrored or not.
_ORIENTATION_TAG = 0x0112
_TURNS = {2: (0, True), 3: (2, False), 4: (2, True), 5: (3, True), 6: (3, False), 7: (1, True), 8: (1, False)}
_LOSSY_FORMATS = ("jpeg", "webp")
_GREY_MODES = ("1", "L", "LA", "I", "F")


class UndecodableImage(Exception):
    """The bytes are no image that can be used; the message is the reason, without the file's name."""


class Decoded(NamedTuple):
    """An image and how it was stored."""

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

    @property
    def is_lossy(self) -> bool:
        """Whether it is stored as JPEG once it is changed; what was transparent stays exact."""
        return self.image_format in _LOSSY_FORMATS and not self.transparent


@dataclass(frozen=True)
class Changes:
    """Changes that sharding is asked to make."""

    cmyk: bool = False
    """CMYK to RGB."""
    depth: bool = False
    """16 bits per channel to 8."""
    orientation: bool = False
    """Turn pixels as the EXIF orientation says, and drop it."""
    shorter_side: int | None = None
    """Shrink to this many pixels on the shorter side; smaller images stay."""
    jpeg_quality: int = 90
    """Quality of changed images that are stored as JPEG, 1 to 100."""

    def __bool__(self) -> bool:
        return self.cmyk or self.depth or self.orientation or self.shorter_side is not None


# --- decoding ---------------------------------------------------------------------------------------------------------


def image_format(content: bytes) -> str | None:
    """Return the format of an image by its first bytes (jpeg, png, webp, gif, bmp, tiff, ppm), or None."""
    if content.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
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


def require_format(content: bytes) -> str:
    """Return the format of an image file.

    Raises:
        UndecodableImage: It is empty, or of no known format.
    """
    if not content:
        raise UndecodableImage("the file is empty")
    found = image_format(content)
    if found is None:
        raise UndecodableImage(f"not an image of a known format ({KNOWN_FORMATS})")
    return found


def open_image(content: bytes, image_format: str) -> Image.Image:
    """Open an image file by Pillow's class for its format; use it as a context."""
    return _OPENERS[image_format](io.BytesIO(content))


def decode_with_pillow(content: bytes, *, background: Colour | None = None, max_pixels: int | None) -> Decoded:
    """Decode an image file of any format by Pillow.

    Args:
        content: The file.
        background: Colour that an image with transparency is laid on; None: transparency is dropped.
        max_pixels: Most pixels of an image; None: any number.

    Raises:
        UndecodableImage: It is empty, of no known format, damaged, or too large.
    """
    found = require_format(content)
    try:
        with open_image(content, found) as image:
            check_size(*image.size, max_pixels)
            image.load()
            if background is not None and (pixels := _lay_on(background, image)) is not None:
                return Decoded(pixels, found, image.mode, transparent=True)
            return Decoded(_to_rgb(image), found, image.mode)
    except PILLOW_ERRORS as error:
        raise UndecodableImage(f"damaged {found}: {error or type(error).__name__}") from None


def check_size(width: int, height: int, max_pixels: int | None) -> None:
    """Refuse an image without pixels, or with too many.

    Raises:
        UndecodableImage: It is one.
    """
    if width < 1 or height < 1:
        raise UndecodableImage(f"the image is {width} x {height} pixels")
    if max_pixels is not None and width * height > max_pixels:
        raise UndecodableImage(
            f"{width} x {height} pixels are more than the limit of {max_pixels} (sharding.max_pixels)"
        )


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


# --- the changes of sharding ------------------------------------------------------------------------------------------


def read_orientation(content: bytes, image_format: str) -> int:
    """Return the EXIF orientation of an image file, 1 to 8; 1, upright, where it says nothing that can be read.

    Of a TIFF too: Pillow turns it while it is decoded (TiffImagePlugin.load_end).
    """
    if image_format == "tiff":
        return 1
    try:
        with open_image(content, image_format) as image:
            value = image.getexif().get(_ORIENTATION_TAG, 1)
    except PILLOW_ERRORS:
        return 1
    return value if value in range(1, 9) else 1


def change(content: bytes, image: Decoded, changes: Changes) -> tuple[bytes, tuple[str, ...]]:
    """Return the image file after the changes, and the names of those that it needed; without any it is the same.

    One that needs some is stored as JPEG where its source has lossy compression (JPEG, WebP), else as PNG.

    Args:
        content: The file.
        image: Its pixels.
        changes: What is asked for.
    """
    pixels, needed = _change_pixels(content, image, changes)
    return (_encode(pixels, image, changes.jpeg_quality) if needed else content), needed


def is_deep(content: bytes, image: Decoded) -> bool:
    """Whether an image file has 16 bits per channel."""
    if image.image_format == "png":
        # Pillow gives 16-bit colour as 8-bit RGB; the depth stands in the first chunk (PNG specification, 11.2.2).
        return content[24] == 16
    return image.mode == "I" or image.mode.startswith("I;16")


def _change_pixels(content: bytes, image: Decoded, changes: Changes) -> tuple[Pixels, tuple[str, ...]]:
    pixels = image.pixels
    needed = ["transparent"] if image.transparent else []
    if changes.cmyk and image.mode == "CMYK":
        needed.append("cmyk")
    if changes.depth and is_deep(content, image):
        needed.append("depth")
    if changes.orientation and (turn := _TURNS.get(read_orientation(content, image.image_format))):
        needed.append("orientation")
        pixels = np.rot90(pixels, turn[0])
        pixels = pixels[:, ::-1] if turn[1] else pixels
    if changes.shorter_side is not None and min(pixels.shape[:2]) > changes.shorter_side:
        needed.append("resize")
        pixels = _shrink(pixels, changes.shorter_side)
    return pixels, tuple(needed)


def _encode(pixels: Pixels, image: Decoded, jpeg_quality: int) -> bytes:
    # On a coloured background a grey image is grey no more.
    is_grey = image.mode in _GREY_MODES or image.mode.startswith("I;16")
    is_grey = is_grey and bool((pixels[..., :1] == pixels).all())
    stored = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if is_grey else pixels))
    stream = io.BytesIO()
    if image.is_lossy:
        stored.save(stream, "JPEG", quality=jpeg_quality, subsampling="4:2:0")
    else:
        stored.save(stream, "PNG")
    return stream.getvalue()


def _shrink(pixels: Pixels, shorter_side: int) -> Pixels:
    height, width = pixels.shape[:2]
    scale = shorter_side / min(height, width)
    size = (max(shorter_side, round(width * scale)), max(shorter_side, round(height * scale)))
    # Lanczos keeps most detail when shrinking, and this is done once.
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize(size, Image.Resampling.LANCZOS))


# --- what a model gets ------------------------------------------------------------------------------------------------


def load_as_sharded(content: bytes, changes: Changes, background: Colour | None, max_pixels: int | None) -> Pixels:
    """Return the pixels [H, W, 3] that a shard has of an image file.

    Raises:
        UndecodableImage: It is no image that can be used.
    """
    image = decode_with_pillow(content, background=background, max_pixels=max_pixels)
    pixels, needed = _change_pixels(content, image, changes)
    if needed and image.is_lossy:
        stored = _encode(pixels, image, changes.jpeg_quality)
        return decode_with_pillow(stored, max_pixels=None).pixels
    return np.ascontiguousarray(pixels)


def centre_square(pixels: Pixels, size: int) -> Pixels:
    """Cut the square in the centre of an image [H, W, 3] and resize it to [size, size, 3].

    By Pillow, bilinear with antialiasing: what evaluation does.
    """
    height, width = pixels.shape[:2]
    if height == width == size:
        return pixels
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    box = (left, top, left + side, top + side)
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR, box=box))


def normalise(images: Pixels, mean: Sequence[float], std: Sequence[float]) -> npt.NDArray[np.float32]:
    """Map images [B, S, S, 3] uint8 to [B, 3, S, S] float32: (x / 255 - mean) / std, each step rounded to float32."""
    values = np.array(images.transpose(0, 3, 1, 2), dtype=np.float32, order="C")
    values /= np.float32(255)
    values -= np.array(mean, np.float32).reshape(3, 1, 1)
    values /= np.array(std, np.float32).reshape(3, 1, 1)
    return values
