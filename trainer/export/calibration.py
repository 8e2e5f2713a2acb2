"""The training images whose activations decide int8's scales, and which nodes fit into fp16.

Here: `draw_places` and `write_calibration`; trainer/export/task.py runs them in a process of their own. Images go
through the evaluation transform, since that is what the exported model will see, and come from the training split,
since the test split is what the result is judged by. This module never looks at a model.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from contracts.artifacts import ShardManifest
from contracts.artifacts.export import Calibration
from contracts.config import DataSection
from contracts.errors import DataError
from records.decode import Pixels, UndecodableImage, decode_rgb
from records.index import DamagedSample
from trainer.data.order.permutation import hash_integers, permute
from trainer.data.reader import ShardReader
from trainer.tasks.image_classification.transforms import EvaluationTransform

SPLIT = "train"

# Distinguishes this draw from others that use the run's seed (the order of an epoch, augmentation).
_DRAW = 0x63616C6962
# Images decoded at a time: at 224 pixels and float32 19 MB, beside the originals.
_BATCH_SIZE = 32


def draw_places(samples_in_split: int, samples: int, seed: int) -> list[int]:
    """Return the places of a random choice without replacement, in rising order; all of them where there are fewer.

    A function of its arguments alone, in every version of numpy. Rising, so that shards are read from front to back.

    Args:
        samples_in_split: Samples to draw from.
        samples: Samples to draw.
        seed: The run's.
    """
    wanted = np.arange(min(samples, samples_in_split))
    return sorted(permute(samples_in_split, hash_integers(seed, _DRAW), wanted).tolist())


def write_calibration(
    shards_uri: str,
    shards: ShardManifest,
    transform: EvaluationTransform,
    path: Path,
    *,
    samples: int,
    seed: int,
    data: DataSection,
    least: int = 1,
) -> Calibration:
    """Write training images as one .npy file [N, 3, S, S] float32, normalised; it can be mapped into memory.

    Equal arguments give an equal file. It has its name only when it is complete. Memory is that of a batch.

    Args:
        shards_uri: Folder of the shards, local or in a bucket.
        shards: Their manifest.
        transform: The evaluation transform of the checkpoint; S is its image_size.
        path: File to write.
        samples: Images to draw; N is smaller where the split is.
        seed: The run's.
        data: How a bucket is read, and whether a sample that cannot be decoded is replaced, as in training.
        least: Fewer images than this are an error.

    Returns:
        What was drawn: the hash is over the keys of the images in the file's order.

    Raises:
        DataError: The training split is empty or has fewer than `least` samples, or a sample is damaged.
        OSError: The file cannot be written; nothing is left of it.
    """
    entry = shards.splits.get(SPLIT)
    available = entry.samples if entry else 0
    if available < max(least, 1):
        raise DataError(
            f"the training split of the shards has {available} sample(s) to calibrate with",
            allowed=f"at least {max(least, 1)}: the range of activations is taken from them",
            todo="give more images to training (sharding.splits), then shard and train again; or set export.precision "
            "to one that calibrates with fewer (fp16 takes what there is, fp32 none)",
        )
    places = draw_places(available, samples, seed)
    reader = ShardReader(shards_uri, shards, SPLIT, data)
    replace_bad = data.on_bad_sample == "replace"
    keys = hashlib.sha256()
    part = path.with_name(f"{path.name}.part")
    size = transform.image_size
    header = {"descr": "<f4", "fortran_order": False, "shape": (len(places), 3, size, size)}
    try:
        # Written, not mapped: on a full disk a mapped file kills the process (SIGBUS), where a write can say so.
        with part.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, len(places), _BATCH_SIZE):
                batch = places[start : start + _BATCH_SIZE]
                reader.prepare(batch)
                found = [_read(reader, place, replace_bad=replace_bad) for place in batch]
                for _, key in found:
                    keys.update(key.encode())
                pixels = np.stack([transform.pixels(image) for image, _ in found])
                file.write(transform.normalise(pixels).numpy().astype("<f4", copy=False).data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return Calibration(samples=len(places), seed=seed, shards_fingerprint=shards.fingerprint, sha256=keys.hexdigest())


def _read(reader: ShardReader, place: int, *, replace_bad: bool) -> tuple[Pixels, str]:
    """Return an image and its key, or those of the next good sample of its class where training does so too."""
    current = place
    while True:
        try:
            image = _decode(reader, current)
        except DamagedSample:
            # The search ends where it began: a class without one good sample.
            if not replace_bad or (current := reader.next_of_class(current)) == place:
                raise
            continue
        return image, reader.origin_of(current)[1]


def _decode(reader: ShardReader, place: int) -> Pixels:
    try:
        return decode_rgb(reader.sample(place)["image"])
    except UndecodableImage as error:
        raise reader.undecodable(place, error) from None
