"""The shards of a run: samples by split and class, columns, sizes, rejected files, images and lengths of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View
from pages.run.picture import Picture


@dataclass(frozen=True)
class ClassRow:
    """Samples of a class."""

    place: int
    """Of the class: names its figures."""
    name: str
    by_split: tuple[int, ...]
    total: int
    shares: tuple[float, ...]
    """Of the largest class, by split."""


@dataclass(frozen=True)
class Classes:
    """Samples by class and split."""

    rows: tuple[ClassRow, ...]
    """None: they could not be read."""
    note: str = ""


@dataclass(frozen=True)
class FirstRows:
    """The first training samples as the network got them, where they are no images."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Columns:
    """Columns of samples with named fields."""

    heads: tuple[tuple[str, str, str], ...]
    """Title, name of the figure, and unit."""
    rows: tuple[tuple[str, str, str, tuple[float | None, ...]], ...]
    """Column, field, kind, and a value for each head."""
    left_out: str = ""


@dataclass(frozen=True)
class Sheet:
    """Sample images."""

    pictures: tuple[tuple[Picture, str, str], ...]
    """With label, and split where it differs among them."""
    where: str
    """Which split they are from, where it is one."""
    left_out: str = ""


@dataclass(frozen=True)
class Strip:
    """Sizes of the shards of a split."""

    split: str
    shards: int
    bytes: int
    sizes: tuple[float, float, float] | None
    """Smallest, median and largest; None: there is one shard."""
    bars: int
    """How many stand for all shards; 0: one for each."""
    path: str


@dataclass(frozen=True)
class RejectedFiles:
    """Files that were left out of the shards."""

    reasons: tuple[tuple[str, int, float], ...]
    """Reason, files, and their share of all."""
    note: str
    files: tuple[tuple[str, str], ...]
    """Path and reason of the first of them."""
    left_out: str = ""


@dataclass(frozen=True)
class Lengths:
    """Samples by the length of a field of text."""

    field: str
    rows: tuple[tuple[int, int, int, int, float], ...]
    """Bits, least and largest length in bytes, samples, and their share of the largest row."""


@dataclass(frozen=True)
class FieldChange:
    """A field beside its earlier state."""

    name: str
    verdict: str
    said: str
    missing: float
    spread: tuple[float, float, float] | None
    """5, 50 and 95 % of the values now; None: it has no numbers."""
    earlier: tuple[float, float, float] | None
    excess: float | None
    """None: not judged."""
    p: float | None


@dataclass(frozen=True)
class Changes:
    """The training data beside that of an earlier run."""

    of: str
    not_compared: str
    """Why; empty: it was."""
    same: bool
    """Whether the shards are the same."""
    fields: tuple[FieldChange, ...]
    new: tuple[tuple[str, str], ...]
    """Field, and the classes or categories that it did not have before."""
    vanished: tuple[tuple[str, str], ...]
    moved: int
    left_out: str = ""


@dataclass(frozen=True)
class DataSection(View):
    """The section on the data."""

    template: ClassVar[str] = "run/data.html.j2"
    title: str
    samples: int
    splits: tuple[tuple[str, int], ...]
    """Name and samples."""
    num_classes: int
    shards: int
    shard_format: str
    shard_bytes: int
    increments: int
    rejected: int
    ignored: int
    copies: int | None
    leaks: int | None
    copies_searched: bool
    has_images: bool
    classes: Classes | None
    """None: no field of the samples is of classes."""
    columns: Columns | None = None
    changes: tuple[Changes, ...] = ()
    samples_hidden: bool = False
    sheet: Sheet | None = None
    first_slot: Picture | None = None
    first_rows: FirstRows | None = None
    """The first samples of the training as the network got them."""
    strips: tuple[Strip, ...] = ()
    rejected_files: RejectedFiles | None = None
    formats: tuple[tuple[str, int], ...] = ()
    """Of images, with their number."""
    spans: tuple[tuple[str, int, int], ...] = ()
    """Of images: what, smallest and largest in pixels."""
    channels: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Of images: what, for red, green and blue."""
    lengths: tuple[Lengths, ...] = ()
