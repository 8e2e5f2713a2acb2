"""A small image on a page: its bytes are in the page."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from pages.markup import shorten


@dataclass(frozen=True)
class Picture:
    """A small image."""

    jpeg: str
    """Base64; empty: it is no image."""
    alt: str
    title: str
    width: int
    height: int


def make_picture(jpeg: str, size: tuple[int, int], *, label: str, title: str, width: int = 72) -> Picture:
    """Return an image.

    Args:
        jpeg: Base64; anything else is no image.
        size: Width and height in pixels, as it is.
        label: What it is labelled.
        title: What a reader who points at it sees.
        width: In pixels, as it is shown.
    """
    try:
        # Only what is base64 becomes part of an address.
        content = base64.b64encode(base64.b64decode(jpeg, validate=True)).decode()
    except (binascii.Error, ValueError):
        content = ""
    height = max(1, round(width * min(max(size[1], 1) / max(size[0], 1), 3)))
    return Picture(content, f"image labelled {shorten(label, 80)}", shorten(title, 200), width, height)
