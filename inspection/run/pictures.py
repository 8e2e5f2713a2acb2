"""Images of a run as small JPEGs: a contact sheet out of its shards, and the first samples of its training."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import ShardEntry, ShardManifest
from inspection.run.door import Door
from inspection.run.view import PictureView

if TYPE_CHECKING:
    from PIL.Image import Image

    from records.index import SampleIndex

# A contact sheet of 60 such pictures is some 150 KB.
SIDE_PIXELS = 72
CONTACTS = 60
# Side of the picture of a training's first samples, and bytes of its file.
PICTURE_PIXELS = 640
_PICTURE_BYTES = 8 << 20
_QUALITY = 75
NAME = 200


def contact_sheet(door: Door, folder_uri: str, manifest: ShardManifest) -> list[PictureView]:
    """Return pictures of training images, the classes in turn.

    Raises:
        ShardlineError: The index or an image is damaged.
        ImportError: Pillow or numpy is not installed.
    """
    from records.index import choose_by_class

    if manifest.image_field is None:
        return []
    index = open_index(door, folder_uri, manifest)
    return draw(door, folder_uri, index, choose_by_class(index, CONTACTS), "train")


def find_first_slot(door: Door, uri: str) -> PictureView | None:
    """Return the first samples of a training as its network got them; None: none were drawn.

    Args:
        door: Of the line.
        uri: Of the picture, in the folder of TensorBoard's files.

    Raises:
        ValueError: It is too large, or no picture.
        ImportError: Pillow or numpy is not installed.
    """
    if not storage.exists(uri):
        return None
    from PIL import Image as images

    from records.decode import UndecodableImage, decode_rgb

    name = uri.rpartition("/")[2]
    try:
        image = images.fromarray(decode_rgb(door.read(uri, _PICTURE_BYTES)))
    except UndecodableImage as error:
        raise ValueError(f"{name[:NAME]} is no picture: {error}") from None
    image.thumbnail((PICTURE_PIXELS, PICTURE_PIXELS))
    name = name.rpartition(".")[0]
    return _as_jpeg(image, label=name, key=name, split="train")


def _as_jpeg(image: Image, *, label: str, key: str, split: str) -> PictureView:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=_QUALITY)
    return PictureView(
        jpeg=base64.b64encode(stream.getvalue()).decode(),
        width=image.width,
        height=image.height,
        label=label[:NAME],
        key=key[:NAME],
        split=split,
    )


def open_index(door: Door, folder_uri: str, manifest: ShardManifest) -> SampleIndex:
    """Return the index of shards; a file of it that is not in the line raises ValueError when it is read."""
    from records.index import SampleIndex

    def read(entry: ShardEntry) -> bytes:
        return door.read(entry.index.uri(folder_uri), entry.index.bytes)

    return SampleIndex(manifest, folder_uri, read)


def draw(door: Door, folder_uri: str, index: SampleIndex, places: Sequence[int], split: str) -> list[PictureView]:
    """Return pictures of samples, small; those that cannot be decoded are left out."""
    from PIL import Image as images

    from records.decode import UndecodableImage, decode_rgb
    from records.fields import image_of
    from records.index import key_of, read_samples

    manifest = index.manifest
    for shard in {manifest.shards.locate(place)[0] for place in places}:
        door.require(manifest.shards[shard].uri(folder_uri))
    drawn = []
    for place, stored in zip(places, read_samples(index, folder_uri, places), strict=True):
        try:
            image = images.fromarray(decode_rgb(image_of(stored, manifest)))
        except UndecodableImage:
            continue
        image.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
        row = index[place]
        label = int(row["label"])
        name = manifest.classes[label] if 0 <= label < len(manifest.classes) else ""
        drawn.append(_as_jpeg(image, label=name, key=key_of(row), split=split))
    return drawn
