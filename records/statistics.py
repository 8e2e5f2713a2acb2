"""Statistics over images, accumulated as integers: they do not depend on the order in which they are added."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from contracts.artifacts import ImageStatistics
from records.decode import Pixels

# Most images whose pixels are summed: their mean is far more precise than training needs.
MAX_SUMMED_IMAGES = 10_000
# Expected number of images drawn by hash: five standard deviations (of 100) below the maximum.
_DRAWN_IMAGES = 9_500


@dataclass(frozen=True)
class ChannelSums:
    """Sums over the pixels of images."""

    pixels: int = 0
    sums: tuple[int, ...] = (0, 0, 0)
    squares: tuple[int, ...] = (0, 0, 0)

    def __add__(self, other: ChannelSums) -> ChannelSums:
        return ChannelSums(
            self.pixels + other.pixels,
            tuple(left + right for left, right in zip(self.sums, other.sums, strict=True)),
            tuple(left + right for left, right in zip(self.squares, other.squares, strict=True)),
        )

    @classmethod
    def of(cls, pixels: Pixels) -> ChannelSums:
        """Sum values and squares of an image [H, W, 3] uint8, exactly."""
        counts = np.array(Image.fromarray(pixels).histogram(), np.int64).reshape(3, 256)
        values = np.arange(256)
        sums, squares = counts @ values, counts @ values**2
        return cls(pixels.shape[0] * pixels.shape[1], tuple(sums.tolist()), tuple(squares.tolist()))


def channel_statistics(total: ChannelSums) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of the channels, in [0, 1], from sums over at least one pixel."""
    count = total.pixels
    mean = [value / (count * 255) for value in total.sums]
    # Exact up to the last division: count**2 * variance is an integer.
    scaled = [count * square - value * value for value, square in zip(total.sums, total.squares, strict=True)]
    std = [math.sqrt(value / (count * count)) / 255 for value in scaled]
    return mean, std


def summed_share(num_images: int) -> float:
    """Return the share of images whose pixels are summed, which gives at most 10,000 images."""
    return 1.0 if num_images <= MAX_SUMMED_IMAGES else _DRAWN_IMAGES / num_images


def is_summed(uniform: bytes, share: float) -> bool:
    """Whether an image is drawn.

    Args:
        uniform: Hash of the image's path. Its last eight bytes are used, since the first ones may order the shards.
        share: Result of `summed_share`.
    """
    return int.from_bytes(uniform[-8:], "little") < share * 2**64


@dataclass
class Tally:
    """Counts of images by format, mode, change and remark, and ranges of sizes."""

    formats: Counter[str] = field(default_factory=Counter)
    """Number of images by format, as they were stored in the source."""
    modes: Counter[str] = field(default_factory=Counter)
    """Number of images by colour mode, as they were stored in the source."""
    changes: Counter[str] = field(default_factory=Counter)
    """Number of images by what was changed."""
    widths: tuple[int, int] | None = None
    """Smallest and largest width of a written image; None where none is known."""
    heights: tuple[int, int] | None = None
    remarks: Counter[str] = field(default_factory=Counter)
    """Number of images by what was remarked about them (sharding/images.py)."""

    def add(
        self,
        image_format: str,
        mode: str,
        changes: tuple[str, ...],
        width: int,
        height: int,
        remarks: tuple[str, ...] = (),
    ) -> None:
        """Count an image; an empty mode and a width of 0 are unknown."""
        self.formats[image_format] += 1
        if mode:
            self.modes[mode] += 1
        self.changes.update(changes)
        self.remarks.update(remarks)
        if width:
            self.widths = _join_ranges(self.widths, (width, width))
            self.heights = _join_ranges(self.heights, (height, height))

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.formats + other.formats,
            self.modes + other.modes,
            self.changes + other.changes,
            _join_ranges(self.widths, other.widths),
            _join_ranges(self.heights, other.heights),
            self.remarks + other.remarks,
        )

    def describe(self) -> ImageStatistics:
        """Return the statistics of the manifest."""
        return ImageStatistics(
            formats=dict(self.formats),
            modes=dict(self.modes),
            width=list(self.widths) if self.widths else None,
            height=list(self.heights) if self.heights else None,
        )


def _join_ranges(first: tuple[int, int] | None, second: tuple[int, int] | None) -> tuple[int, int] | None:
    if first is None or second is None:
        return first or second
    return min(first[0], second[0]), max(first[1], second[1])
