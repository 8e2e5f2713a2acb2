"""Small shards that are written by records/ alone, without a stage."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from contracts.artifacts import ShardManifest
from records.sample import Sample
from tests import shards

CLASSES = ["blue", "green", "red"]
FORMATS = tuple(shards.FORMATS)


def make_sample(number: int, side: int = 16) -> Sample:
    """Return a small picture of noise on the colour of its class, as PNG or JPEG."""
    label = number % 3
    pixels = np.random.default_rng(number).integers(0, 80, (side, side, 3), dtype=np.uint8)
    pixels[..., 2 - label] += 150
    stream = io.BytesIO()
    kind = "png" if number % 2 else "jpeg"
    Image.fromarray(pixels).save(stream, kind)
    key = hashlib.md5(str(number).encode()).digest()
    path = f"{CLASSES[label]}/{number:03d} x.{kind}"
    return Sample(key, stream.getvalue(), kind, label, CLASSES[label], path, side, side, "RGB")


def frame(sample: Sample, shard_format: str) -> bytes:
    """Return the body of a sample."""
    body: bytes = shards.FORMATS[shard_format].frame(sample).body
    return body


def write_shards(
    folder: Path, shard_format: str = "webdataset", given: Sequence[tuple[str, Sequence[Sample]]] = (), **fields: Any
) -> ShardManifest:
    """Write shards of a split and samples each; unset: 3 for training and one for each other split, of 24 samples."""
    if not given:
        numbers = iter(range(100))
        sizes = (("train", 6), ("train", 0), ("train", 7), ("validation", 5), ("test", 6))
        given = [(split, [make_sample(next(numbers)) for _ in range(size)]) for split, size in sizes]
    splits: dict[str, Any] = {}
    for split, samples in given:
        splits.setdefault(split, []).append(samples)
    return shards.write_shards(folder, splits, format=shard_format, **{"classes": CLASSES, **fields})
