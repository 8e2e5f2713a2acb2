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
from contracts.artifacts import MANIFEST_NAME, FileEntry, IndexPart, ShardEntry, ShardManifest, SplitEntry
from records.index_parts import ROW, checksum_rows, write_part
from records.sample import ChecksumStream, Sample
from records.tar import TarWriter

IMAGES = 512
EVALUATED = 256
"""Samples of the validation and of the test split."""
COLOURS = ((220, 60, 60), (60, 220, 60), (60, 60, 220), (160, 160, 60))


def write_shards(setting: Setting) -> None:
    """Write one tar and one part of the index a split, and the manifest; the manifest last."""
    setting.shards.mkdir(parents=True)
    uri, random = storage.normalise(setting.shards), np.random.default_rng(0)
    # Some pixels more than the network takes, as photographs have.
    images = [_jpeg(random, number % CLASSES, setting.image_size * 8 // 7) for number in range(IMAGES)]
    splits, shards, parts, first, hashed = {}, [], [], 0, hashlib.sha256()
    sizes = {"train": setting.steps * setting.global_batch_size, "validation": EVALUATED, "test": EVALUATED}
    for number, (split, samples) in enumerate(sizes.items()):
        name = f"{split}-00000.tar"
        rows, labels, ends, source_bytes = np.zeros(samples, ROW), np.zeros(samples, "<i4"), [0], 0
        with (setting.shards / name).open("wb") as file:
            stream = ChecksumStream(file)
            writer = TarWriter(stream)
            for place in range(samples):
                content, path = images[place % IMAGES], f"{split}/{place}.jpg"
                label = int(random.integers(CLASSES)) if random.random() < 0.1 else place % IMAGES % CLASSES
                key = hashlib.md5(path.encode(), usedforsecurity=False).digest()
                writer.write(Sample(key, content, "jpeg", label, str(label), path, 0, 0, "RGB"))
                rows[place]["key"], labels[place] = key, label
                ends.append(stream.position)
                source_bytes += len(content)
            writer.close()
        rows["offset"], rows["size"] = ends[:-1], np.diff(ends)
        with (setting.shards / name).open("rb") as file:
            rows["crc32c"] = [int(storage.crc32c(file.read(size)), 16) for size in rows["size"].tolist()]
        columns = {"label": labels}
        part_name = f"index-{number:05d}.bin"
        write_part(setting.shards / part_name, rows, columns)
        parts.append(IndexPart(**FileEntry.of(uri, part_name).model_dump(), first=first, samples=samples))
        rows_crc32c = checksum_rows(rows, columns)
        hashed.update(rows_crc32c.encode())
        entry = FileEntry.of(uri, name).model_dump()
        shards.append(ShardEntry(**entry, split=split, first=first, samples=samples, rows_crc32c=rows_crc32c))
        by_class = np.bincount(labels, minlength=CLASSES).tolist()
        splits[split] = SplitEntry(first=first, samples=samples, source_bytes=source_bytes, samples_by_class=by_class)
        first += samples
    manifest = ShardManifest(
        fingerprint=hashed.hexdigest()[:16],
        format_version=2,
        made_from={},
        format="webdataset",
        seed=0,
        classes=[str(label) for label in range(CLASSES)],
        splits=splits,
        shards=shards,
        index_parts=parts,
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
