"""Samples drawn while shards are written: a number for each of their fields, which later data is compared with.

Drawn are the training samples whose key's hash is below a share, some 10,000 of them: the same ones in every run, on
every runner, and of two states of a source the ones that both have. A row of the file (.npy, float64) is a sample;
its first column is the hash, in [0, 1), the others are those of `Drawn.columns`; NaN is a value that is missing.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import DataError
from records.sample import Value
from records.statistics import ChannelSums

# Of a field of kind numbers, the first places: each takes 80 KB in the file.
MAX_PLACES = 256
# Drawn samples of all increments of a chain; beyond, the share is halved.
MAX_ROWS = 20_000
HASH = ""
IMAGE_COLUMNS = ("bytes", "width", "height", "brightness", "contrast")

Column = npt.NDArray[np.float64]


def drawn_hash(key: bytes) -> float:
    """Return the hash by which a sample is drawn, in [0, 1): that of `is_summed`."""
    return int.from_bytes(key[-8:], "little") / 2**64


def code_of(text: str) -> float:
    """Return the number that stands for a category: equal texts have equal numbers, in every manifest."""
    return float(zlib.crc32(text.encode())) if text else math.nan


class DrawnSamples:
    """The drawn samples of a shard, one after another."""

    def __init__(self) -> None:
        self._rows: list[dict[str, float]] = []

    def add(
        self,
        key: bytes,
        values: Iterable[Value],
        *,
        source_bytes: int,
        size: tuple[int, int] | None,
        pixels: ChannelSums | None,
    ) -> None:
        """Take in a sample.

        Args:
            key: Of the sample.
            values: Its named fields; none of an image and a label.
            source_bytes: Bytes of its files in the source.
            size: Width and height of its first image in pixels; None: it has none, or nothing was decoded.
            pixels: Sums over the pixels of that image.
        """
        row = {HASH: drawn_hash(key), "bytes": float(source_bytes)}
        if size is not None:
            row["width"], row["height"] = map(float, size)
        if pixels is not None and pixels.pixels:
            number = 3 * pixels.pixels
            mean = sum(pixels.sums) / number
            row["brightness"] = mean / 255
            row["contrast"] = math.sqrt(max(sum(pixels.squares) / number - mean * mean, 0.0)) / 255
        for name, kind, value, _ in values:
            if kind == "number":
                row[f"fields.{name}"] = value
            elif kind == "numbers":
                numbers = np.frombuffer(value, "<f8")[:MAX_PLACES].tolist()
                row |= {f"fields.{name}[{place}]": one for place, one in enumerate(numbers)}
            elif kind == "text":
                row[f"fields.{name}"] = float(len(value)) if value else math.nan
            elif kind == "category":
                row[f"fields.{name}"] = code_of(value)
            elif kind == "class":
                row[f"fields.{name}"] = code_of(value[1])
        self._rows.append(row)

    def total(self) -> dict[str, bytes]:
        """Return a column of float64 for each name; equal samples in one order give equal bytes."""
        names = sorted({name for row in self._rows for name in row})
        return {name: np.array([row.get(name, math.nan) for row in self._rows], "<f8").tobytes() for name in names}


def join_drawn(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the columns of both, one's samples first; what one does not have is missing there."""
    if not one or not other:
        return dict(one or other)
    no_one, no_other = (np.full(len(side[HASH]) // 8, math.nan, "<f8").tobytes() for side in (one, other))
    return {name: one.get(name, no_one) + other.get(name, no_other) for name in sorted({*one, *other})}


@dataclass(frozen=True)
class DrawnTable:
    """The drawn samples of a manifest."""

    hashes: Column
    """[rows], in [0, 1)."""
    columns: dict[str, Column]
    """[rows] each, by the names of `Drawn.columns`; NaN is missing."""

    def below(self, share: float) -> DrawnTable:
        """Return the samples whose hash is below a share."""
        kept = self.hashes < share
        return DrawnTable(self.hashes[kept], {name: column[kept] for name, column in self.columns.items()})

    def pack(self) -> bytes:
        """Return the content of the file; equal tables are equal bytes."""
        buffer = io.BytesIO()
        table = np.column_stack([self.hashes, *self.columns.values()]).astype("<f8")
        np.save(buffer, np.ascontiguousarray(table), allow_pickle=False)
        return buffer.getvalue()


def load_drawn(manifest: ShardManifest, folder_uri: str) -> DrawnTable | None:
    """Return the drawn samples of a manifest; None: it was written by a version that drew none.

    Raises:
        DataError: The file is missing or damaged.
    """
    entry = manifest.drawn
    if entry is None:
        return None
    uri = entry.uri(folder_uri)
    try:
        content = storage.read_bytes(uri)
        table = np.load(io.BytesIO(content), allow_pickle=False) if storage.crc32c(content) == entry.crc32c else None
    except (FileNotFoundError, ValueError):
        table = None
    if table is None or table.ndim != 2 or table.shape[1] != 1 + len(entry.columns):
        raise DataError(
            f"{storage.display(uri)} is missing or damaged",
            allowed="the file that the shard stage wrote",
            todo="run the shard stage with --fresh",
        )
    columns = {column.name: table[:, 1 + place] for place, column in enumerate(entry.columns)}
    return DrawnTable(table[:, 0], columns)
