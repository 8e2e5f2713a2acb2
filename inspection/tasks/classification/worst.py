"""The samples that were classified worst, with their images, texts or rows."""

from __future__ import annotations

from contracts.artifacts import Document
from contracts.artifacts.classification import ClassificationDetails
from inspection.run.pictures import NAME
from inspection.run.view import PictureView
from inspection.tasks.pictures import NamedSamples

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


def worst_samples(samples: NamedSamples) -> list[WorstView]:
    """Return the samples with the lowest probability of their label."""
    details = ClassificationDetails.of(samples.evaluation)
    assert details is not None, samples.evaluation.task
    names = [outcome.name[:NAME] for outcome in details.classes]
    has_image = samples.manifest.image_field is not None

    def name_of(place: int) -> str:
        return names[place] if 0 <= place < len(names) else str(place)

    return [
        WorstView(
            picture=samples.picture(sample.place, sample.key) if has_image else None,
            words=None if has_image else samples.words(sample.place, sample.key),
            key=sample.key[:NAME],
            path=samples.path(sample.place, sample.key),
            label=name_of(sample.label),
            predicted=name_of(sample.predicted),
            probability=sample.probability,
            predicted_probability=sample.predicted_probability,
        )
        for sample in details.worst[:WORST]
    ]
