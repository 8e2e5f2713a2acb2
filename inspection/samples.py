"""Samples with the worst predictions, read from the shards."""

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
    from records.index import SampleIndex

SIDE_PIXELS, _JPEG_QUALITY = 72, 75
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
            picture = self._attempt(place, key, self._picture)
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

    def _picture(self, at: int) -> Picture | None:
        """Return a sample's image, reduced in size; None: it cannot be decoded."""
        from PIL import Image

        from records.decode import UndecodableImage, decode_rgb
        from records.fields import image_of

        try:
            image = Image.fromarray(decode_rgb(image_of(self._stored(at), self.manifest)))
        except UndecodableImage:
            return None
        image.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
        image.save(stream := io.BytesIO(), "JPEG", quality=_JPEG_QUALITY)
        return Picture(jpeg=base64.b64encode(stream.getvalue()).decode(), width=image.width, height=image.height)

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
