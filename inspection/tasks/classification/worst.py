"""The samples that were classified worst, with their images, texts or rows."""

from __future__ import annotations

from contracts.artifacts import Document, EvaluationReport, ShardManifest
from contracts.artifacts.classification import ClassificationDetails
from inspection.run.door import Door
from inspection.run.pictures import NAME, require_index
from inspection.run.view import PictureView
from inspection.tasks.pictures import path_of, picture_of, words_of

WORST = 24


class WorstView(Document):
    """A sample whose label got a low probability."""

    picture: PictureView | None
    """None: the image could not be read, or there is none."""
    words: str | None = None
    """Of a sample without an image: the beginning of its text, or of its row; None: it could not be read."""
    key: str
    path: str = ""
    """Of its file in the source; empty: it could not be read, or it has none of its own."""
    label: str
    predicted: str
    probability: float
    predicted_probability: float


def worst_samples(
    door: Door, folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, *, pictures: bool = True
) -> list[WorstView]:
    """Return the samples with the lowest probability of their label.

    One whose image, text or row cannot be read, or is not to be (`pictures`), has none.
    """
    details = ClassificationDetails.of(evaluation)
    assert details is not None, evaluation.task
    names = [outcome.name[:NAME] for outcome in details.classes]
    require_index(door, folder_uri, manifest)
    has_image = manifest.image_field is not None

    def name_of(place: int) -> str:
        return names[place] if 0 <= place < len(names) else str(place)

    return [
        WorstView(
            picture=picture_of(door, folder_uri, manifest, evaluation, sample.place, sample.key)
            if pictures and has_image
            else None,
            words=words_of(door, folder_uri, manifest, evaluation, sample.place, sample.key)
            if pictures and not has_image
            else None,
            key=sample.key[:NAME],
            path=path_of(door, folder_uri, manifest, evaluation, sample.place, sample.key) if pictures else "",
            label=name_of(sample.label),
            predicted=name_of(sample.predicted),
            probability=sample.probability,
            predicted_probability=sample.predicted_probability,
        )
        for sample in details.worst[:WORST]
    ]
