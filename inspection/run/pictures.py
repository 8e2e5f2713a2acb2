"""Images out of a run's shards, as small JPEGs: a contact sheet, and the samples that were classified worst."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from contracts.artifacts import EvaluationReport, ShardManifest
from contracts.errors import ShardlineError
from inspection.run.door import HARM, Door
from inspection.run.view import PictureView, WorstView

# A contact sheet of 60 such pictures is some 150 KB.
SIDE_PIXELS = 72
CONTACTS = 60
WORST = 24
_QUALITY = 75
# Records of the index, 40 bytes each: of a hundred million samples not all are read for sixty pictures.
_LOOKED_AT = 1 << 17
_NAME = 200


def contact_sheet(door: Door, folder_uri: str, manifest: ShardManifest) -> list[PictureView]:
    """Return pictures of training images, the classes in turn.

    Raises:
        ShardlineError: The index or an image is damaged.
        ImportError: Pillow or numpy is not installed.
    """
    from inspection.show import choose

    if manifest.image_field is None:
        return []
    _require_index(door, folder_uri, manifest)
    chosen = choose(folder_uri, manifest, CONTACTS, among=_LOOKED_AT)
    return _draw(door, folder_uri, manifest, list(chosen), "train")


def worst_samples(
    door: Door, folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, *, pictures: bool = True
) -> list[WorstView]:
    """Return the samples with the lowest probability of their label; one whose image cannot be read has no picture."""
    names = [outcome.name[:_NAME] for outcome in evaluation.classes]
    split = manifest.splits[evaluation.split]
    _require_index(door, folder_uri, manifest)

    def name_of(place: int) -> str:
        return names[place] if 0 <= place < len(names) else str(place)

    def picture_of(place: int, key: str) -> PictureView | None:
        from records.index import key_of
        from records.samples import open_samples

        is_another = manifest.fingerprint != evaluation.shards_fingerprint
        if is_another or manifest.image_field is None or not 0 <= place < split.samples:
            return None
        try:
            record = open_samples(manifest, folder_uri)[split.first + place]
            if key_of(record) != key:
                return None
            return _draw(door, folder_uri, manifest, [record], evaluation.split)[0]
        except HARM:
            return None

    return [
        WorstView(
            picture=picture_of(sample.place, sample.key) if pictures else None,
            key=sample.key[:_NAME],
            label=name_of(sample.label),
            predicted=name_of(sample.predicted),
            probability=sample.probability,
            predicted_probability=sample.predicted_probability,
        )
        for sample in evaluation.worst[:WORST]
    ]


def _require_index(door: Door, folder_uri: str, manifest: ShardManifest) -> None:
    for entry in manifest.index_files():
        door.require(entry.uri(folder_uri))


def _draw(
    door: Door, folder_uri: str, manifest: ShardManifest, records: Sequence[object], split: str
) -> list[PictureView]:
    from PIL import Image

    from inspection.payloads import read_images
    from records.decode import UndecodableImage, decode_rgb
    from records.index import key_of

    drawn = []
    for uri in {manifest.shards[_shard(record, manifest)].uri(folder_uri) for record in records}:
        door.require(uri)
    for record, content in zip(records, read_images(folder_uri, manifest, records), strict=True):
        try:
            image = Image.fromarray(decode_rgb(content))
        except UndecodableImage:
            continue
        image.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=_QUALITY)
        label = int(record["label"])  # type: ignore[index]
        drawn.append(
            PictureView(
                jpeg=base64.b64encode(stream.getvalue()).decode(),
                width=image.width,
                height=image.height,
                label=manifest.classes[label][:_NAME] if 0 <= label < len(manifest.classes) else "",
                key=key_of(record)[:_NAME],
                split=split,
            )
        )
    return drawn


def _shard(record: object, manifest: ShardManifest) -> int:
    number = int(record["shard"])  # type: ignore[index]
    if not 0 <= number < len(manifest.shards):
        raise ShardlineError(f"{manifest.index_files()[0].name} names shard {number} of {len(manifest.shards)}")
    return number
