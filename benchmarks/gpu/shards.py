"""Synthetic shards for the GPU check, written by the record writers alone: `python -m benchmarks.gpu.shards SETTING`.

JPEGs of one dominant colour per class, with noise, so that a network learns them within 80 steps. A tenth of the labels
is drawn at random: the loss stays away from 0, where the evaluations of two devices could not be told apart. There are
512 images; an epoch of more samples holds them again.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import simplejpeg  # type: ignore[import-untyped]

from benchmarks.gpu.setting import CLASSES, Setting
from contracts import storage
from contracts.artifacts import MANIFEST_NAME, FileEntry, ShardEntry, ShardManifest, SplitEntry
from records.index import INDEX_NAME, RECORD, write_index
from records.sample import ChecksumStream, Sample
from records.tar import TarWriter

IMAGES = 512
EVALUATED = 256
"""Samples of the validation and of the test split."""
COLOURS = ((220, 60, 60), (60, 220, 60), (60, 60, 220), (160, 160, 60))


def write_shards(setting: Setting) -> None:
    """Write one tar a split, the index and the manifest; the manifest last."""
    setting.shards.mkdir(parents=True)
    uri, random = storage.normalise(setting.shards), np.random.default_rng(0)
    # Some pixels more than the network takes, as photographs have.
    images = [_jpeg(random, number % CLASSES, setting.image_size * 8 // 7) for number in range(IMAGES)]
    splits, shards, parts, first = {}, [], [], 0
    sizes = {"train": setting.steps * setting.global_batch_size, "validation": EVALUATED, "test": EVALUATED}
    for number, (split, samples) in enumerate(sizes.items()):
        name = f"{split}-00000.tar"
        records = np.zeros(samples, RECORD)
        with (setting.shards / name).open("wb") as file:
            stream = ChecksumStream(file)
            writer = TarWriter(stream)
            for place in range(samples):
                content, path = images[place % IMAGES], f"{split}/{place}.jpg"
                label = int(random.integers(CLASSES)) if random.random() < 0.1 else place % IMAGES % CLASSES
                key = hashlib.md5(path.encode(), usedforsecurity=False).digest()
                at = writer.write(Sample(key, content, "jpeg", label, str(label), path, 0, 0, "RGB"))
                records[place] = (number, label, at.offset, at.size, int(storage.crc32c(content), 16), key)
            writer.close()
        entry = FileEntry.of(uri, name).model_dump()
        shards.append(ShardEntry(**entry, split=split, first=first, samples=samples))
        by_class = np.bincount(records["label"], minlength=CLASSES).tolist()
        source_bytes = int(records["size"].sum())
        splits[split] = SplitEntry(first=first, samples=samples, source_bytes=source_bytes, samples_by_class=by_class)
        parts.append(records)
        first += samples
    write_index(setting.shards / INDEX_NAME, parts)
    manifest = ShardManifest(
        fingerprint=hashlib.sha256(np.concatenate(parts).tobytes()).hexdigest()[:16],
        made_from={},
        format="webdataset",
        seed=0,
        classes=[str(label) for label in range(CLASSES)],
        splits=splits,
        shards=shards,
        index=FileEntry.of(uri, INDEX_NAME),
        rejected=[],
        mean=[0.4] * 3,
        std=[0.25] * 3,
    )
    (setting.shards / MANIFEST_NAME).write_bytes(manifest.to_json())


def _jpeg(random: np.random.Generator, label: int, side: int) -> bytes:
    """Return an image of blocks of 1/8 of its side, in the colours around that of its class."""
    cells = random.normal(COLOURS[label], 70, (8, 8, 3)).clip(0, 255).astype(np.uint8)
    pixels = cells.repeat(-(-side // 8), axis=0).repeat(-(-side // 8), axis=1)[:side, :side]
    content: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=90)
    return content


if __name__ == "__main__":
    write_shards(Setting.from_json(sys.argv[1]))
