"""Images of a run as small JPEGs: a contact sheet out of its shards, and the first samples of its training."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import ShardlineError
from inspection.run.door import Door
from inspection.run.view import PictureView

if TYPE_CHECKING:
    from PIL.Image import Image

# A contact sheet of 60 such pictures is some 150 KB.
SIDE_PIXELS = 72
CONTACTS = 60
# Side of the picture of a training's first samples, and bytes of its file.
PICTURE_PIXELS = 640
_PICTURE_BYTES = 8 << 20
_QUALITY = 75
# Records of the index, 40 bytes each: of a hundred million samples not all are read for sixty pictures.
_LOOKED_AT = 1 << 17
NAME = 200


def contact_sheet(door: Door, folder_uri: str, manifest: ShardManifest) -> list[PictureView]:
    """Return pictures of training images, the classes in turn.

    Raises:
        ShardlineError: The index or an image is damaged.
        ImportError: Pillow or numpy is not installed.
    """
    from records.in_turn import choose

    if manifest.image_field is None:
        return []
    require_index(door, folder_uri, manifest)
    chosen = choose(folder_uri, manifest, CONTACTS, among=_LOOKED_AT)
    return draw(door, folder_uri, manifest, list(chosen), "train")


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


def require_index(door: Door, folder_uri: str, manifest: ShardManifest) -> None:
    """Raise ValueError unless the files of an index are in the line."""
    for entry in manifest.index_files():
        door.require(entry.uri(folder_uri))


def draw(
    door: Door, folder_uri: str, manifest: ShardManifest, records: Sequence[object], split: str
) -> list[PictureView]:
    """Return pictures of samples, small; those that cannot be decoded are left out."""
    from PIL import Image as images

    from records.decode import UndecodableImage, decode_rgb
    from records.index import key_of
    from records.payloads import read_images

    drawn = []
    for uri in {shard_uri(folder_uri, manifest, record) for record in records}:
        door.require(uri)
    for record, content in zip(records, read_images(folder_uri, manifest, records), strict=True):
        try:
            image = images.fromarray(decode_rgb(content))
        except UndecodableImage:
            continue
        image.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
        label = int(record["label"])  # type: ignore[index]
        name = manifest.classes[label] if 0 <= label < len(manifest.classes) else ""
        drawn.append(_as_jpeg(image, label=name, key=key_of(record), split=split))
    return drawn


def shard_uri(folder_uri: str, manifest: ShardManifest, record: object) -> str:
    """Return the URI of the shard that a sample lies in.

    Raises:
        ShardlineError: There is no such shard.
    """
    number = int(record["shard"])  # type: ignore[index]
    if not 0 <= number < len(manifest.shards):
        raise ShardlineError(f"{manifest.index_files()[0].name} names shard {number} of {len(manifest.shards)}")
    return manifest.shards[number].uri(folder_uri)
