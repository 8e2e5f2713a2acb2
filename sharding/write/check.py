"""What is looked at in every image on its way into a shard, and what is done to it.

verify: decode    the whole image is decoded, by the trainer's own decoder; a transparent one is laid on a background
header    format, dimensions and colour mode come from its header, and the file must go on to its end
none      only the first bytes are looked at: they tell the format
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from PIL import ImageColor

from records.convert import Changes, change
from records.decode import Colour, Pixels, UndecodableImage, check_complete, decode, image_format, read_header

if TYPE_CHECKING:
    from contracts.config import ShardingSection

# The index counts the bytes of a sample in 32 bits; a MiB is left for what else there is in it.
MAX_IMAGE_BYTES = 2**32 - (1 << 20)


@dataclass(frozen=True)
class Checks:
    """What is checked and changed."""

    verify: str = "decode"
    changes: Changes = field(default_factory=Changes)
    background: str = "white"
    """Colour that transparent images are laid on, with verify=decode: a name, or #rrggbb."""

    @classmethod
    def of(cls, section: ShardingSection) -> Checks:
        """Take them out of the configuration."""
        convert = section.convert
        return cls(
            section.verify,
            Changes(convert.cmyk, convert.depth, convert.orientation, section.resize, section.jpeg_quality),
            section.background,
        )


class Checked(NamedTuple):
    """An image that was accepted."""

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
    """[H, W, 3] RGB of `content`, where they were asked for."""
    source_format: str
    """Format before changes."""
    source_mode: str
    """Colour mode before changes."""
    changes: tuple[str, ...] = ()
    """Names of the changes that it needed."""


def check(content: bytes, checks: Checks, *, with_pixels: bool) -> Checked:
    """Look at an image file, and make the changes that are asked for.

    Args:
        content: The file.
        checks: What to do with it.
        with_pixels: Return its pixels, unless verify is none. With verify=header they decide nothing: whether an image
            is accepted must not depend on whether it is drawn for the statistics.

    Raises:
        UndecodableImage: It cannot be used; with the reason.
    """
    if not content:
        raise UndecodableImage("the file is empty")
    if len(content) > MAX_IMAGE_BYTES:
        raise UndecodableImage(f"{len(content)} bytes are more than the limit of {MAX_IMAGE_BYTES}")
    if checks.verify == "none":
        found = image_format(content)
        if found is None:
            raise UndecodableImage("not an image of a known format (jpeg, png, webp, gif, bmp, tiff, ppm)")
        return Checked(content, found, 0, 0, "", None, found, "")
    if checks.verify == "header":
        header = read_header(content)
        check_complete(content, header.image_format)
        pixels = None
        if with_pixels:
            with contextlib.suppress(UndecodableImage):
                pixels = decode(content).pixels
        return Checked(content, *header, pixels, header.image_format, header.mode)
    image = decode(content, background=_colour_of(checks.background))
    source_format, source_mode = image.image_format, image.mode
    needed: tuple[str, ...] = ()
    if checks.changes or image.transparent:
        content, needed = change(content, image, checks.changes)
        if needed:
            # What is stored is decoded in its turn: it is what training reads.
            image = decode(content)
    height, width, _ = image.pixels.shape
    return Checked(
        content, image.image_format, width, height, image.mode, image.pixels, source_format, source_mode, needed
    )


def check_unchanged(content: bytes, checks: Checks) -> str:
    """Look at an image that keeps its bytes, such as a mask; return its format.

    Raises:
        UndecodableImage: It cannot be used; with the reason.
    """
    if checks.verify == "decode" and 0 < len(content) <= MAX_IMAGE_BYTES:
        return decode(content).image_format
    return check(content, Checks(verify=checks.verify), with_pixels=False).image_format


@functools.cache
def _colour_of(name: str) -> Colour:
    # Asked for every image.
    red, green, blue = ImageColor.getrgb(name)[:3]
    return red, green, blue
