"""Samples from the shards: a contact sheet, and the samples with the worst predictions."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from contracts import storage
from contracts.artifacts import EvaluationReport, ShardManifest
from contracts.artifacts.classification import ClassificationDetails
from contracts.artifacts.multilabel import LabelScore, MultilabelDetails
from contracts.config.sharding import ROW_PREFIX
from inspection.documents import READ_ERRORS, as_object
from inspection.view import LabelKind, Picture, SampleLabel, WorstSample

if TYPE_CHECKING:
    from PIL.Image import Image

    from records.index import SampleIndex

# A contact sheet of 60 such pictures is some 150 kB.
SIDE_PIXELS, NUM_PICTURES, _JPEG_QUALITY = 72, 60, 75
NUM_WORST, _MOST_LABELS = 24, 5
NAME_CHARACTERS, TEXT_CHARACTERS = 200, 300
# Longer than any name in an object store.
_PATH_CHARACTERS = 1100
# Texts of larger samples are not read.
_MOST_BYTES = 32 << 20
_TABLES = (".csv", ".jsonl", ".parquet")
# Name of the label field, which is fixed (docs/decisions/0015-tasks.md).
_LABEL = "label"
T = TypeVar("T")


def contact_sheet(folder_uri: str, manifest: ShardManifest) -> list[Picture]:
    """Return pictures of training images, the classes in turn; empty if samples have no image.

    Args:
        folder_uri: Of the shards.
        manifest: Of the shards.

    Raises:
        ShardlineError: The index or an image is damaged.
        ImportError: Pillow or numpy is not installed.
    """
    if manifest.image_field is None:
        return []
    from records.index import SampleIndex, choose_by_class

    index = SampleIndex(manifest, folder_uri)
    return _draw(folder_uri, index, choose_by_class(index, NUM_PICTURES), "train")


def worst_samples(
    folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, *, shown: bool = True
) -> list[WorstSample]:
    """Return the samples with the worst predictions, the worst first; empty if the task does not list them.

    A sample that cannot be read or has changed has no picture, text or file.

    Args:
        folder_uri: Of the shards.
        manifest: Of the shards.
        evaluation: Of the best checkpoint.
        shown: Whether to read the samples' contents.
    """
    reader = _Samples(folder_uri, manifest, evaluation, shown)
    if (details := ClassificationDetails.of(evaluation)) is not None:
        names = [outcome.name for outcome in details.classes]
        return [
            reader.read(
                sample.place,
                sample.key,
                [
                    _label("label", names, sample.label, "plain", sample.probability),
                    _label(
                        "predicted",
                        names,
                        sample.predicted,
                        "good" if sample.predicted == sample.label else "bad",
                        sample.predicted_probability,
                    ),
                ],
            )
            for sample in details.worst[:NUM_WORST]
        ]
    if (several := MultilabelDetails.of(evaluation)) is None:
        return []
    names = [outcome.name for outcome in several.classes]

    def scored(what: str, scores: Sequence[LabelScore]) -> list[SampleLabel]:
        return [_label(what, names, score.label, "bad", score.probability) for score in scores[:_MOST_LABELS]]

    return [
        reader.read(
            sample.place,
            sample.key,
            [
                *(_label("label", names, place, "plain") for place in sample.labels[:_MOST_LABELS]),
                *scored("missed", sample.missed),
                *scored("wrong", sample.wrong),
            ],
            loss=sample.loss,
        )
        for sample in several.worst[:NUM_WORST]
    ]


def file_uri(config: Mapping[str, Any], path: str) -> str:
    """Return the URI of a sample's file; empty if unknown.

    Args:
        config: The run's configuration, which names the source.
        path: In the source, percent-encoded if it is not plain text.
    """
    source, plain = as_object(config.get("sharding")).get("source"), unquote(path)
    if not plain or plain.startswith("gs://"):
        return plain
    if plain.startswith("/"):
        return storage.normalise(plain)
    if not isinstance(source, str) or not source.startswith(("gs://", "file://", "/")):
        return ""
    folder = source.rpartition("/")[0] if source.lower().endswith(_TABLES) else source.rstrip("/")
    return f"{folder}/{plain}" if folder.startswith("gs://") else f"{storage.normalise(folder)}/{quote(plain)}"


@dataclass(frozen=True)
class _Samples:
    """Reads samples of an evaluation's split."""

    folder_uri: str
    manifest: ShardManifest
    evaluation: EvaluationReport
    shown: bool

    @cached_property
    def index(self) -> SampleIndex:
        from records.index import SampleIndex

        return SampleIndex(self.manifest, self.folder_uri)

    def read(self, place: int, key: str, labels: list[SampleLabel], loss: float | None = None) -> WorstSample:
        """Return a sample by its place in the split, with its labels of the evaluation."""
        picture = text = None
        if self.manifest.image_field is not None:
            split = self.evaluation.split
            picture = self._attempt(place, key, lambda at: _draw(self.folder_uri, self.index, [at], split)[0])
        else:
            text = self._attempt(place, key, self._text)
        path = self._attempt(place, key, self._path) or ""
        key = key[:NAME_CHARACTERS]
        return WorstSample(key=key, picture=picture, text=text, labels=labels, loss=loss, file=path)

    def _attempt(self, place: int, key: str, read: Callable[[int], T | None]) -> T | None:
        split = self.manifest.splits[self.evaluation.split]
        has_changed = self.manifest.fingerprint != self.evaluation.shards_fingerprint
        if not self.shown or has_changed or not 0 <= place < split.samples:
            return None
        try:
            from records.index import key_of

            at = split.first + place
            # A different key means that the sample has changed.
            return read(at) if key_of(self.index[at]) == key else None
        except READ_ERRORS:
            return None

    def _text(self, at: int) -> str | None:
        """Return the beginning of a sample's text fields, without the label."""
        from records.fields import FieldReader

        labels = (_LABEL, self.manifest.label_field)
        fields = {name: entry for name, entry in self.manifest.sample_fields.items() if name not in labels}
        names = [name for name, entry in fields.items() if entry.kind == "text"]
        row = self.index[at]
        if not names or int(row["size"]) > _MOST_BYTES:
            return None
        values = FieldReader(self.manifest, names).read(self._stored(at), int(row["label"]))
        if len(names) == 1 and isinstance(text := values[names[0]], str):
            return text[:TEXT_CHARACTERS]
        return ", ".join(f"{fields[name].column or name}: {values[name]}" for name in names)[:TEXT_CHARACTERS]

    def _path(self, at: int) -> str | None:
        from records.fields import path_in

        path = path_in(self._stored(at), self.manifest.format) or ""
        return None if path.startswith(ROW_PREFIX) else path[:_PATH_CHARACTERS]

    def _stored(self, at: int) -> bytes:
        from records.index import read_samples

        (stored,) = read_samples(self.index, self.folder_uri, [at])
        return stored


def _label(
    what: str, names: Sequence[str], place: int, kind: LabelKind, probability: float | None = None
) -> SampleLabel:
    name = names[place][:NAME_CHARACTERS] if 0 <= place < len(names) else str(place)
    return SampleLabel(what=what, name=name, kind=kind, probability=probability)


def _draw(folder_uri: str, index: SampleIndex, places: Sequence[int], split: str) -> list[Picture]:
    """Return small pictures of samples; skipping those that cannot be decoded."""
    from PIL import Image as images

    from records.decode import UndecodableImage, decode_rgb
    from records.fields import image_of
    from records.index import key_of, read_samples

    manifest = index.manifest
    pictures = []
    for place, stored in zip(places, read_samples(index, folder_uri, places), strict=True):
        try:
            image = images.fromarray(decode_rgb(image_of(stored, manifest)))
        except UndecodableImage:
            continue
        image.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
        row = index[place]
        label = int(row["label"])
        name = manifest.classes[label] if 0 <= label < len(manifest.classes) else ""
        pictures.append(_as_picture(image, label=name, key=key_of(row), split=split))
    return pictures


def _as_picture(image: Image, *, label: str, key: str, split: str) -> Picture:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=_JPEG_QUALITY)
    return Picture(
        jpeg=base64.b64encode(stream.getvalue()).decode(),
        width=image.width,
        height=image.height,
        label=label[:NAME_CHARACTERS],
        key=key[:NAME_CHARACTERS],
        split=split,
    )
