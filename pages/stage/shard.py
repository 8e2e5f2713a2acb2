"""The data card: what shards hold, what was left out, and what is worth a second look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View
from pages.stage import First


@dataclass(frozen=True)
class Column:
    """A column of samples with named fields."""

    name: str
    field: str
    kind: str
    figures: tuple[float | None, ...]
    """Mean, standard deviation, minimum and maximum."""
    missing: int | None
    categories: int | None
    unseen: tuple[tuple[str, int], ...]
    """Samples whose value the vocabulary lacks, by split."""


@dataclass(frozen=True)
class Images:
    """What the images are."""

    formats: First[tuple[str, int]]
    modes: First[tuple[str, int]]
    size: tuple[int, int, int, int] | None
    """Smallest and largest width and height in pixels."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    changed: First[tuple[str, int]] | None
    """While sharding; None: nothing was to be changed."""
    verified: str


@dataclass(frozen=True)
class Classes:
    """Samples by class and split."""

    splits: First[str]
    rows: tuple[tuple[str, tuple[int | None, ...]], ...]
    """Name and counts; None: not counted."""
    total: int
    damaged: str
    """Splits whose counts do not fit the classes; empty: all fit."""


@dataclass(frozen=True)
class DataCard(View):
    """The summary of a set of shards."""

    template: ClassVar[str] = "stage/shard.md.j2"
    samples: int
    num_classes: int
    files: int
    format: str
    bytes: int
    warnings: First[str]
    columns: First[Column]
    splits: First[tuple[str, int, int, int]]
    """Name, samples, shards, and bytes of source files."""
    multi_label: bool
    classes: Classes | None
    images: Images | None
    rejected: int
    ignored: int
    rejected_files: First[tuple[str, str]]
    """Path and reason."""
    rejected_listed: int
    """How many the manifest lists."""
    copies: tuple[int, int, bool] | None
    """Copies, groups across splits, and whether they were left out; None: nobody has looked."""
    has_images: bool
