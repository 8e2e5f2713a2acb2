"""The samples that were classified worst, with their images."""

from __future__ import annotations

from contracts.artifacts import Document, EvaluationReport, ShardManifest
from contracts.artifacts.classification import ClassificationDetails
from inspection.run.door import HARM, Door
from inspection.run.pictures import NAME, draw, require_index
from inspection.run.view import PictureView

WORST = 24


class WorstView(Document):
    """A sample whose label got a low probability."""

    picture: PictureView | None
    """None: the image could not be read."""
    key: str
    label: str
    predicted: str
    probability: float
    predicted_probability: float


def worst_samples(
    door: Door, folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, *, pictures: bool = True
) -> list[WorstView]:
    """Return the samples with the lowest probability of their label; one whose image cannot be read has no picture."""
    details = ClassificationDetails.of(evaluation)
    assert details is not None, evaluation.task
    names = [outcome.name[:NAME] for outcome in details.classes]
    split = manifest.splits[evaluation.split]
    require_index(door, folder_uri, manifest)

    def name_of(place: int) -> str:
        return names[place] if 0 <= place < len(names) else str(place)

    def picture_of(place: int, key: str) -> PictureView | None:
        from records.index import key_of
        from records.samples import open_samples

        if manifest.fingerprint != evaluation.shards_fingerprint or not 0 <= place < split.samples:
            return None
        try:
            record = open_samples(manifest, folder_uri)[split.first + place]
            if key_of(record) != key:
                return None
            return draw(door, folder_uri, manifest, [record], evaluation.split)[0]
        except HARM:
            return None

    return [
        WorstView(
            picture=picture_of(sample.place, sample.key) if pictures else None,
            key=sample.key[:NAME],
            label=name_of(sample.label),
            predicted=name_of(sample.predicted),
            probability=sample.probability,
            predicted_probability=sample.predicted_probability,
        )
        for sample in details.worst[:WORST]
    ]
