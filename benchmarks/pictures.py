"""Synthetic photographs for benchmarks: JPEG files of a stated size that decode at the cost of real ones.

Smooth structure with a little grain, so that the share of coded blocks is that of a photograph and not of noise. A few
dozen are encoded; every file is one of them with a comment of its own, so that no two are equal.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

NUM_DISTINCT = 24
NUM_CLASSES = 10
# Grain that brings a picture of this many pixels near the wished size at quality 90.
_BYTES_PER_PIXEL = 0.33


def write_pictures(folder: Path, *, total_bytes: int, file_bytes: int, seed: int = 0) -> int:
    """Write class folders with `total_bytes` of pictures of about `file_bytes` each; return the number of files.

    Raises:
        FileExistsError: The folder is there.
    """
    folder.mkdir(parents=True)
    bases = [_encode_near(file_bytes, np.random.default_rng([seed, number])) for number in range(NUM_DISTINCT)]
    written = number = 0
    while written < total_bytes:
        content = _with_comment(bases[number % NUM_DISTINCT], b"picture %d" % number)
        place = folder / f"class{number % NUM_CLASSES:02d}"
        place.mkdir(exist_ok=True)
        (place / f"{number:07d}.jpg").write_bytes(content)
        written += len(content)
        number += 1
    return number


def _encode_near(file_bytes: int, random: np.random.Generator) -> bytes:
    """Return a picture at or a little above a size."""
    side = int((file_bytes / _BYTES_PER_PIXEL) ** 0.5)
    while True:
        content = simplejpeg.encode_jpeg(_draw(side, random), quality=90, colorspace="RGB", colorsubsampling="420")
        if len(content) >= file_bytes:
            return bytes(content)
        side = int(side * 1.05) + 1


def _draw(side: int, random: np.random.Generator) -> np.ndarray:
    height, width = side * 3 // 4, side * 4 // 3
    layers = np.zeros((height, width, 3), np.float32)
    for cells, strength in ((6, 70), (24, 35), (96, 14)):
        coarse = Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        layers += (smooth / 255 - 0.5) * strength * 2
    layers += random.normal(0, 3, (height, width, 1))
    return np.ascontiguousarray(np.clip(layers + 128, 0, 255).astype(np.uint8))


def _with_comment(content: bytes, comment: bytes) -> bytes:
    """Insert a COM segment behind the start marker (ITU T.81, B.2.4.5)."""
    return content[:2] + b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment + content[2:]
