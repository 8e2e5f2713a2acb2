"""Changes that are made to an image once, while sharding: colour, depth, orientation, size.

An image that needs none of the changes keeps its bytes. One that does is decoded, changed and encoded again: as JPEG
where its source has lossy compression (JPEG, WebP), else as PNG. An image that the decoder has laid on a background is
stored so, as PNG whatever it was: what was transparent stays exact. The predict.py that an export ships makes the same
changes by the same calls of Pillow (trainer/tasks/images/predict.py): what is changed here is changed there.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import PIL
import simplejpeg  # type: ignore[import-untyped]
from PIL import Image, features

from records.decode import Decoded, Pixels, read_orientation

_LOSSY = ("jpeg", "webp")
_GREY_MODES = ("1", "L", "LA", "I", "F")
# What undoes each value of the tag (EXIF 2.32, 4.6.4): number of quarter turns counter-clockwise, then mirrored or not.
_TURNS = {2: (0, True), 3: (2, False), 4: (2, True), 5: (3, True), 6: (3, False), 7: (1, True), 8: (1, False)}


@dataclass(frozen=True)
class Changes:
    """Which changes are asked for."""

    cmyk: bool = False
    """CMYK to RGB."""
    depth: bool = False
    """16 bits a channel to 8."""
    orientation: bool = False
    """Turn pixels as the EXIF orientation says, and drop it."""
    shorter_side: int | None = None
    """Shrink to this many pixels on the shorter side; smaller images stay."""
    jpeg_quality: int = 90
    """Quality of changed images that are stored as JPEG, 1 to 100."""

    def __bool__(self) -> bool:
        return self.cmyk or self.depth or self.orientation or self.shorter_side is not None


def change(content: bytes, image: Decoded, changes: Changes) -> tuple[bytes, tuple[str, ...]]:
    """Return the image file after the changes, and the names of those that it needed.

    Args:
        content: The file.
        image: What it decodes to.
        changes: What is asked for.
    """
    needed = []
    pixels = image.pixels
    if image.transparent:
        needed.append("transparent")
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
    if not needed:
        return content, ()
    is_grey = image.mode in _GREY_MODES or image.mode.startswith("I;16")
    # On a coloured background it is grey no more.
    is_grey = is_grey and bool((pixels[..., :1] == pixels).all())
    is_lossy = image.image_format in _LOSSY and not image.transparent
    return _encode(pixels[..., :1] if is_grey else pixels, is_lossy, changes), tuple(needed)


def library_versions() -> dict[str, str]:
    """Return the versions of what decides the bytes of changed images.

    Pillow encodes; simplejpeg, which holds a libjpeg-turbo of its own, decodes JPEGs.
    """
    found = {name: features.version(name) for name in ("libjpeg_turbo", "zlib_ng", "zlib")}
    versions = {"pillow": PIL.__version__, "simplejpeg": str(simplejpeg.__version__)}
    return versions | {name: version for name, version in found.items() if version}


def is_deep(content: bytes, image: Decoded) -> bool:
    """Whether an image file has 16 bits per channel.

    Args:
        content: The file.
        image: What it decodes to.
    """
    if image.image_format == "png":
        # Pillow gives 16-bit colour as 8-bit RGB; the depth stands in the first chunk (PNG specification, 11.2.2).
        return content[24] == 16
    return image.mode == "I" or image.mode.startswith("I;16")


def _shrink(pixels: Pixels, shorter_side: int) -> Pixels:
    height, width = pixels.shape[:2]
    scale = shorter_side / min(height, width)
    size = (max(shorter_side, round(width * scale)), max(shorter_side, round(height * scale)))
    # Lanczos keeps most detail when shrinking, and this is done once.
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize(size, Image.Resampling.LANCZOS))


def _encode(pixels: Pixels, lossy: bool, changes: Changes) -> bytes:
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
    stream = io.BytesIO()
    if lossy:
        image.save(stream, "JPEG", quality=changes.jpeg_quality, subsampling="4:2:0")
    else:
        image.save(stream, "PNG")
    return stream.getvalue()
