"""The images and logits that the gates look at: torch's, and those of every graph, on the same pixels.

Here: `write_test_images`, then `write_torch_logits` and `write_graph_logits`, each a step for a process of its own;
what they find lies in files of the work folder. The pixels are decoded once; every graph then runs without torch.
Nothing is timed, nothing is judged (parity.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from trainer.export import parity
from trainer.export.arrays import make_array, write_array

if TYPE_CHECKING:
    from torch import nn

    from trainer.tasks.image_classification.transforms import EvaluationTransform

Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# Below it one image more or less decides; a smaller test split is filled up with noise, for parity alone.
LEAST_INPUTS = 64
NOISE = -1
"""Label of an input that is noise."""
_NOISE_SEED = 0
# Images decoded at a time, and run through torch at a time.
_BATCH = 32


@dataclass(frozen=True)
class TestImages:
    """Pixels of the test split, as the evaluation transform gives them, on disk."""

    pixels: Path
    """.npy, [N, S, S, 3] uint8."""
    labels: Path
    """.npy, [N] int64; `NOISE` where an input is no image of the split."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def read_labels(self) -> Labels:
        """Return the labels [N]."""
        labels: Labels = np.load(self.labels)
        return labels

    def batches(self, size: int, *, most: int | None = None) -> Iterator[Array]:
        """Yield images [B, 3, S, S] float32, normalised as evaluation does it; `most`: of the first so many."""
        pixels = np.load(self.pixels, mmap_mode="r")[:most]
        for start in range(0, len(pixels), size):
            yield self._normalise(pixels[start : start + size])

    def _normalise(self, pixels: npt.NDArray[np.uint8]) -> Array:
        # The order of operations of the task's normalise (transforms.py), each rounded to float32: the same bits.
        scaled = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32)
        scaled /= np.float32(255)
        scaled -= np.array(self.mean, np.float32).reshape(1, 3, 1, 1)
        scaled /= np.array(self.std, np.float32).reshape(1, 3, 1, 1)
        return scaled


def write_test_images(
    shards_uri: str, shards: ShardManifest, transform: EvaluationTransform, data: DataSection, folder: Path
) -> TestImages:
    """Decode the test split into files of `folder`; fewer than `LEAST_INPUTS` images are filled up with noise."""
    from records.decode import UndecodableImage
    from trainer.data.reader import ShardReader

    reader = ShardReader(shards_uri, shards, "test", data)
    total, size = max(len(reader), LEAST_INPUTS), transform.image_size
    images = TestImages(folder / "test-pixels.npy", folder / "test-labels.npy", transform.mean, transform.std)
    pixels = make_array(images.pixels, (total, size, size, 3), np.uint8)
    labels = np.full(total, NOISE, np.int64)
    with reader.read_ahead(1) as advance:
        for start in range(0, len(reader), _BATCH):
            places = list(range(start, min(start + _BATCH, len(reader))))
            reader.prepare(places)
            for place in places:
                sample = reader.sample(place)
                labels[place] = sample["label"]
                try:
                    pixels[place] = transform.decode(sample["image"])
                except UndecodableImage as error:
                    raise reader.undecodable(place, error) from None
            advance(start)
    missing = total - len(reader)
    noise = np.random.default_rng(_NOISE_SEED).integers(0, 256, (missing, size, size, 3), dtype=np.uint8)
    pixels[len(reader) :] = noise
    pixels.flush()
    write_array(images.labels, labels)
    return images


def write_torch_logits(model: nn.Module, images: TestImages, path: Path) -> None:
    """Write the logits [N, classes] of the torch model, eagerly in fp32, to a .npy file."""
    run = parity.run_torch(model)
    write_array(path, np.concatenate([run(batch) for batch in images.batches(_BATCH)]))


def write_graph_logits(graph: Path, images: TestImages, path: Path, *, batch_size: int, threads: int) -> None:
    """Write the logits [N, classes] of an ONNX file in ONNX Runtime to a .npy file."""
    run = parity.open_graph(graph, threads=threads)
    write_array(path, np.concatenate([run(batch) for batch in images.batches(batch_size)]))


def measure_batches(graph: Path, images: TestImages, sizes: list[int], *, threads: int) -> dict[int, float]:
    """Return by batch size how far the logits of a batch are from those of its images one by one.

    The largest difference over the range of the logits; batches are filled by repeating the images.
    """
    run = parity.open_graph(graph, threads=threads)
    pool = np.concatenate(list(images.batches(max(sizes), most=max(sizes))))
    single = np.concatenate([run(pool[place : place + 1]) for place in range(len(pool))])
    span = float(np.ptp(single)) or 1.0
    found = {}
    for size in sizes:
        places = np.arange(size) % len(pool)
        error = float(np.abs(run(pool[places]) - single[places]).max()) / span
        # No number in JSON is as large as what is none.
        found[size] = error if np.isfinite(error) else sys.float_info.max
    return found
