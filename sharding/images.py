"""Checks and conversions of images while sharding.

verify: decode    the whole image is decoded, by the trainer's own decoder; a transparent one is laid on a background,
          and a JPEG with oddities that some readers reject is stored without them
none      only the format is detected, from the first bytes
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from PIL import ImageColor

from records.decode import decode
from records.pixels import (
    MAX_PIXELS,
    Changes,
    Colour,
    Decoded,
    Pixels,
    UndecodableImage,
    change,
    is_deep,
    require_format,
)
from records.sample import MAX_SAMPLE_BYTES

if TYPE_CHECKING:
    from contracts.config import ShardingSection

# Leaves a MiB of the largest sample for its other fields.
MAX_IMAGE_BYTES = MAX_SAMPLE_BYTES - (1 << 20)
# Change: a JPEG stored without oddities that some readers reject.
REPAIRED = "repaired"
# Remarks: 16 bits per channel, and 16 bits per channel with less than a quarter of the range in use.
DEEP, NARROW = "deep", "narrow"
_NARROW_RANGE = 64
_GZIP_START = b"\x1f\x8b"
# Limit on inflated objects (Content-Encoding: gzip), against zip bombs.
_MOST_INFLATED_BYTES = 1 << 30


@dataclass(frozen=True)
class Checks:
    """Settings of the checks and conversions."""

    verify: str = "decode"
    changes: Changes = field(default_factory=Changes)
    background: str | None = "white"
    """Colour that transparent images are laid on, with verify=decode: a name, or #rrggbb; None: transparency is
    dropped."""
    max_pixels: int = MAX_PIXELS
    """Most pixels of an image, unless verify is none."""

    @classmethod
    def of(cls, section: ShardingSection) -> Checks:
        """Return the settings of a configuration."""
        return cls(
            section.verify,
            Changes(**dict.fromkeys(section.convert, True), shorter_side=section.resize),
            section.background,
            section.max_pixels,
        )

    def without_changes(self) -> Checks:
        """Return the settings of images that are stored as they are, such as masks."""
        return Checks(self.verify, background=None, max_pixels=self.max_pixels)


class Checked(NamedTuple):
    """An accepted image."""

    content: bytes
    """The file as it is stored in the shard."""
    image_format: str
    """Format of `content`, found in it."""
    width: int
    """In pixels, of `content`; 0 with verify=none."""
    height: int
    mode: str
    """Colour mode of `content`, in Pillow's terms; empty with verify=none."""
    pixels: Pixels | None
    """[H, W, 3] RGB of `content`; None with verify=none."""
    source_format: str
    """Format before changes."""
    source_mode: str
    """Colour mode before changes."""
    changes: tuple[str, ...] = ()
    """Names of the changes that it needed."""
    remarks: tuple[str, ...] = ()
    """Properties of the source file that are counted for warnings, with verify=decode."""


def check(content: bytes, checks: Checks) -> Checked:
    """Check an image file and apply the configured conversions.

    Raises:
        UndecodableImage: It cannot be used; with the reason.
    """
    if not content:
        raise UndecodableImage("the file is empty")
    if len(content) > MAX_IMAGE_BYTES:
        raise UndecodableImage(f"{len(content)} bytes are more than the limit of {MAX_IMAGE_BYTES}")
    if checks.verify == "none":
        image_format = require_format(content)
        return Checked(content, image_format, 0, 0, "", None, image_format, "")
    image = decode(content, background=_colour_of(checks.background), max_pixels=checks.max_pixels)
    remarks = _remark(content, image)
    source_format, source_mode = image.image_format, image.mode
    changes: tuple[str, ...] = ()
    if image.repaired is not None:
        content, changes = image.repaired, (REPAIRED,)
    if checks.changes or image.transparent:
        content, applied = change(content, image, checks.changes)
        changes += applied
        if applied:
            # Decode the stored file, which training reads.
            image = decode(content, max_pixels=None)
    height, width, _ = image.pixels.shape
    return Checked(
        content,
        image.image_format,
        width,
        height,
        image.mode,
        image.pixels,
        source_format,
        source_mode,
        changes,
        remarks,
    )


def _remark(content: bytes, image: Decoded) -> tuple[str, ...]:
    if not is_deep(content, image):
        return ()
    is_narrow = int(image.pixels.max()) - int(image.pixels.min()) < _NARROW_RANGE
    return (DEEP, NARROW) if is_narrow else (DEEP,)


def inflate(content: bytes) -> bytes:
    """Return the inflated content of a gzip file (an object with Content-Encoding: gzip), other content unchanged.

    Raises:
        UndecodableImage: It is damaged, or holds more than a GiB.
    """
    if not content.startswith(_GZIP_START):
        return content
    stream = zlib.decompressobj(wbits=31)
    try:
        inflated = stream.decompress(content, _MOST_INFLATED_BYTES)
    except zlib.error as error:
        raise UndecodableImage(f"damaged gzip: {error}") from None
    if not stream.eof:
        reason = "it holds more than a GiB" if stream.unconsumed_tail else "the file is truncated"
        raise UndecodableImage(f"damaged gzip: {reason}")
    return inflated


@functools.cache
def _colour_of(name: str | None) -> Colour | None:
    if name is None:
        return None
    red, green, blue = ImageColor.getrgb(name)[:3]
    return red, green, blue
