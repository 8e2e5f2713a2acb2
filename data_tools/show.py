"""`shardline data describe`: what a folder of shards holds, in words and as a grid of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, Duplicates, ShardManifest
from contracts.artifacts.shard_table import shard_numbers
from contracts.config import CLASS_KINDS
from contracts.errors import ConfigError, DataError
from inspection.run.find import find_place
from inspection.run.read import find_folder
from pages.quantities import several
from records.decode import decode_rgb
from records.in_turn import choose
from records.payloads import read_images

# Names and reasons of the first of a long list; the manifest has all.
MAX_SHOWN = 10
_COLUMNS = 8
_ROWS = 8
_CELL_PIXELS = 128
_CAPTION_PIXELS = 16


def find_shards(given: str) -> str:
    """Return the URI of the folder of shards that a user means.

    Args:
        given: The folder itself, or a run as `find_place` takes it.

    Raises:
        DataError: It is neither, or the run has no shards.
    """
    uri = storage.normalise(given)
    if storage.exists(storage.join(uri, MANIFEST_NAME)):
        return uri
    try:
        found = find_folder(find_place(given), "shard")
    except ConfigError:
        found = None
    if found is None or not storage.exists(storage.join(found, MANIFEST_NAME)):
        raise DataError(
            f"{given} holds no {MANIFEST_NAME}, and is no run that has shards",
            allowed="the folder that stage shard has printed, or a run (LINE, LINE/runs/ID or an id below ./runs)",
            todo="check the path; `shardline runs` lists the runs",
        )
    return found


def describe(manifest: ShardManifest) -> Iterator[str]:
    """Yield lines about counts, classes, sizes, and what was left out."""
    numbers = list(shard_numbers(manifest.shards))
    megabytes = sum(one.bytes for one in numbers) / 1e6
    yield f"{manifest.format}, {len(manifest.shards)} shards, {megabytes:.1f} MB" + (
        (f", {len(manifest.classes)} classes" if manifest.classes else "")
        + (", several labels a sample" if manifest.multi_label else "")
    )
    for name, field in manifest.sample_fields.items():
        classes = f", {len(field.classes)} classes" if field.kind in CLASS_KINDS else ""
        yield f"field {name}: {field.kind}{classes}"
    if manifest.parent is not None:
        reused = sum(bool(entry.folder) for entry in manifest.shards)
        tombstones = sum(one.tombstones for one in numbers)
        yield f"increment on {manifest.parent}: {reused} shards reused, {tombstones} tombstones"
    for name, split in manifest.splits.items():
        shards = sum(one.split == name for one in numbers)
        yield f"{name}: {split.samples} samples in {shards} shards, {split.source_bytes / 1e6:.1f} MB of source files"
    if manifest.classes:
        yield "class: " + " / ".join(manifest.splits)
    for place, name in enumerate(manifest.classes[: MAX_SHOWN * 2]):
        yield f"  {name}: " + " / ".join(str(split.samples_by_class[place]) for split in manifest.splits.values())
    if len(manifest.classes) > MAX_SHOWN * 2:
        yield f"  and {len(manifest.classes) - MAX_SHOWN * 2} more"
    if manifest.images is not None:
        yield "formats: " + ", ".join(f"{count} {name}" for name, count in manifest.images.formats.items())
        if manifest.images.modes:
            yield "modes: " + ", ".join(f"{count} {name}" for name, count in manifest.images.modes.items())
        if manifest.images.width and manifest.images.height:
            (low, high), (short, tall) = manifest.images.width, manifest.images.height
            yield f"width {low} to {high} px, height {short} to {tall} px"
    if manifest.mean is not None and manifest.std is not None:
        shown = (" ".join(f"{value:.4f}" for value in values) for values in (manifest.mean, manifest.std))
        yield "mean {}, deviation {}".format(*shown)
    if manifest.prepared is not None and manifest.prepared.changed:
        changed = ", ".join(f"{name} {count}" for name, count in manifest.prepared.changed.items())
        yield f"changed images: {changed}"
    verified = f"verified: {manifest.verify}; " if manifest.image_field is not None else ""
    yield f"{verified}{manifest.count_rejected} rejected, {manifest.count_ignored} ignored by name"
    for entry in manifest.rejected[:MAX_SHOWN]:
        yield f"  {entry.path}: {entry.reason}"
    if manifest.count_rejected > MAX_SHOWN:
        yield f"  and {manifest.count_rejected - MAX_SHOWN} more"
    for warning in manifest.warnings:
        yield f"warning: {warning}"
    if manifest.duplicates is not None:
        yield _describe_duplicates(manifest.duplicates)


def draw_grid(folder_uri: str, manifest: ShardManifest, target: Path) -> int:
    """Write a PNG with up to 64 training images, the classes in turn; return their number.

    Of the shards only these images are read.

    Raises:
        DataError: An image or the index is damaged, or samples have no image.
    """
    if manifest.image_field is None:
        fields = ", ".join(f"{name} ({entry.kind})" for name, entry in manifest.sample_fields.items())
        raise DataError(
            f"{storage.display(folder_uri)} holds no images: its fields are {fields}",
            allowed="--grid for shards with a field of kind image",
            todo="leave --grid out",
        )
    chosen = choose(folder_uri, manifest, _COLUMNS * _ROWS)
    rows = -(-len(chosen) // _COLUMNS)
    sheet = Image.new("RGB", (_COLUMNS * _CELL_PIXELS, max(rows, 1) * (_CELL_PIXELS + _CAPTION_PIXELS)), "white")
    draw = ImageDraw.Draw(sheet)
    images = read_images(folder_uri, manifest, chosen)
    for number, (record, content) in enumerate(zip(chosen, images, strict=True)):
        picture = ImageOps.contain(
            Image.fromarray(decode_rgb(content, max_pixels=None)), (_CELL_PIXELS - 4, _CELL_PIXELS - 4)
        )
        left, top = number % _COLUMNS * _CELL_PIXELS, number // _COLUMNS * (_CELL_PIXELS + _CAPTION_PIXELS)
        sheet.paste(picture, (left, top + _CAPTION_PIXELS))
        label = int(record["label"])
        # Pillow's own font has only Latin letters.
        caption = manifest.classes[label].encode("ascii", "replace").decode() if label >= 0 else ""
        draw.text((left + 2, top + 2), caption[: _CELL_PIXELS // 7], fill="black")
    sheet.save(target, "PNG")
    return len(chosen)


def _describe_duplicates(found: Duplicates) -> str:
    copies, samples = several(found.copies, "copy", "copies"), several(found.groups, "different sample")
    return f"{copies}, of {samples}; {several(found.leaking_groups, 'of these is', 'of these are')} in several splits"
