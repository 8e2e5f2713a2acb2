"""`shardline data describe`: text about a folder of shards, a grid of its images, and a list of its samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageOps

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import CLASS_KINDS, SPLITS
from contracts.errors import ConfigError, DataError
from records.decode import decode_rgb
from records.fields import FieldReader, image_of, path_in
from records.index import SampleIndex, choose_by_class, read_samples

# Entries of a long list that are shown; the manifest has all.
_MAX_SHOWN = 10
_COLUMNS = 8
_ROWS = 8
_CELL_PIXELS = 128
_CAPTION_PIXELS = 16


def describe(manifest: ShardManifest) -> Iterator[str]:
    """Yield lines about counts, classes, sizes and rejected files."""
    shards, classes, images = manifest.shards, manifest.classes, manifest.images
    yield f"{manifest.format}, {len(shards)} shard{'s' * (len(shards) != 1)}, {sum(shards.bytes) / 1e6:.1f} MB" + (
        (f", {len(classes)} classes" if classes else "")
        + (", several labels per sample" if manifest.multi_label else "")
    )
    for name, field in manifest.sample_fields.items():
        yield f"field {name}: {field.kind}" + (f", {len(field.classes)} classes" if field.kind in CLASS_KINDS else "")
    if manifest.parent is not None:
        reused = sum(map(bool, shards.folder))
        yield f"increment on {manifest.parent}: {reused} shards reused, {sum(shards.tombstones)} tombstones"
    # In the order of SPLITS: JSON keys are sorted.
    splits = {name: manifest.splits[name] for name in SPLITS}
    for name, split in splits.items():
        source = f"{split.source_bytes / 1e6:.1f} MB of source files"
        count = shards.num_shards[name]
        yield f"{name}: {split.samples} samples in {count} shard{'s' * (count != 1)}, {source}"
    if classes:
        yield "class: " + " / ".join(splits)
    yield from _shorten(
        (
            f"{name}: " + " / ".join(str(split.samples_by_class[place]) for split in splits.values())
            for place, name in enumerate(classes)
        ),
        len(classes),
        2 * _MAX_SHOWN,
    )
    if images is not None:
        yield "formats: " + ", ".join(f"{count} {name}" for name, count in images.formats.items())
        if images.modes:
            yield "modes: " + ", ".join(f"{count} {name}" for name, count in images.modes.items())
        if images.width and images.height:
            (narrow, wide), (low, high) = images.width, images.height
            yield f"width {narrow} to {wide} px, height {low} to {high} px"
    if manifest.mean is not None and manifest.std is not None:
        mean, std = (" ".join(f"{value:.4f}" for value in values) for values in (manifest.mean, manifest.std))
        yield f"mean {mean}, deviation {std}"
    if manifest.prepared is not None and manifest.prepared.changed:
        yield "changed images: " + ", ".join(f"{name} {count}" for name, count in manifest.prepared.changed.items())
    verified = f"verified: {manifest.verify}; " if manifest.image_field is not None else ""
    yield f"{verified}{manifest.count_rejected} rejected, {manifest.count_ignored} ignored by name"
    yield from _shorten(
        (f"{entry.path}: {entry.reason}" for entry in manifest.rejected), manifest.count_rejected, _MAX_SHOWN
    )
    for warning in manifest.warnings:
        yield f"warning: {warning}"
    if manifest.duplicates is not None and manifest.duplicates.groups:
        copies = manifest.duplicates
        yield f"copies: {copies.copies}, of {copies.groups} samples, {copies.leaking_groups} of them in several splits"


def list_samples(folder_uri: str, manifest: ShardManifest, split: str) -> Iterator[dict[str, Any]]:
    """Yield `path`, `split` and `label` of each sample of a split, in the order of the index.

    The path is that in the source, or `row:HASH`; where the shard has neither, SHARD#ROW. Samples that may have several
    classes have a list of their names, `labels`, in place of `label`; of samples without classes the label is None.

    Raises:
        DataError: A sample or the index is damaged.
    """
    index = SampleIndex(manifest, folder_uri)
    first = manifest.splits[split].first
    places = range(first, first + manifest.splits[split].samples)
    field = manifest.label_field
    reader = FieldReader(manifest, [] if field is None else [field])
    for place, stored in zip(places, read_samples(index, folder_uri, places), strict=True):
        shard, row = manifest.shards.locate(place)
        sample = {"path": path_in(stored, manifest.format) or f"{manifest.shards.name[shard]}#{row}", "split": split}
        label = reader.read(stored, int(index[place]["label"])).get(field or "")
        if isinstance(label, tuple):
            yield {**sample, "labels": [manifest.classes[class_label] for class_label in label]}
        else:
            yield {**sample, "label": None if label is None else manifest.classes[label]}


def draw_grid(folder_uri: str, manifest: ShardManifest, target: Path) -> int:
    """Write a PNG with up to 64 training images, the classes in turn; return their number.

    Of the shards only these samples are read.

    Raises:
        ConfigError: The folder of the target is not there.
        DataError: An image or the index is damaged, or samples have no image.
    """
    if not target.parent.is_dir():
        raise ConfigError(
            f"--grid {target}: no folder {target.parent}", allowed="a folder that is there", todo="make it first"
        )
    if manifest.image_field is None:
        fields = ", ".join(f"{name} ({entry.kind})" for name, entry in manifest.sample_fields.items())
        raise DataError(
            f"{storage.display(folder_uri)} holds no images: its fields are {fields}",
            allowed="--grid for shards with a field of kind image",
            todo="leave --grid out",
        )
    index = SampleIndex(manifest, folder_uri)
    places = choose_by_class(index, _COLUMNS * _ROWS)
    rows = max(1, -(-len(places) // _COLUMNS))
    sheet = Image.new("RGB", (_COLUMNS * _CELL_PIXELS, rows * (_CELL_PIXELS + _CAPTION_PIXELS)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, stored in enumerate(read_samples(index, folder_uri, places)):
        pixels = decode_rgb(image_of(stored, manifest), max_pixels=None)
        picture = ImageOps.contain(Image.fromarray(pixels), (_CELL_PIXELS - 4, _CELL_PIXELS - 4))
        left, top = number % _COLUMNS * _CELL_PIXELS, number // _COLUMNS * (_CELL_PIXELS + _CAPTION_PIXELS)
        sheet.paste(picture, (left, top + _CAPTION_PIXELS))
        label = int(index[places[number]]["label"])
        # Pillow's own font has only Latin letters.
        caption = manifest.classes[label].encode("ascii", "replace").decode() if label >= 0 else ""
        draw.text((left + 2, top + 2), caption[: _CELL_PIXELS // 7], fill="black")
    sheet.save(target, "PNG")
    return len(places)


def _shorten(lines: Iterator[str], count: int, most: int) -> Iterator[str]:
    """Yield the first lines of a list of `count`, indented, and the number of the others."""
    yield from (f"  {line}" for line in islice(lines, most))
    if count > most:
        yield f"  and {count - most} more"
