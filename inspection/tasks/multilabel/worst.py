"""The samples with the largest loss, with their images."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.artifacts import Document
from contracts.artifacts.multilabel import LabelScore, MultilabelDetails
from inspection.run.pictures import NAME
from inspection.run.view import PictureView
from inspection.tasks.pictures import NamedSamples

WORST = 24
# Classes shown of a sample.
LABELS = 5


class SaidLabel(Document):
    """A class and its probability."""

    name: str
    probability: float


class WorstView(Document):
    """A sample with a large loss."""

    picture: PictureView | None
    """None: the image could not be read."""
    key: str
    path: str = ""
    """Of its file in the source; empty: it could not be read, or it has none of its own."""
    loss: float
    labels: list[str]
    missed: list[SaidLabel]
    wrong: list[SaidLabel]


def worst_samples(samples: NamedSamples) -> list[WorstView]:
    """Return the samples with the largest loss."""
    details = MultilabelDetails.of(samples.evaluation)
    assert details is not None, samples.evaluation.task
    names = [outcome.name[:NAME] for outcome in details.classes]

    def name_of(place: int) -> str:
        return names[place] if 0 <= place < len(names) else str(place)

    def named(labels: Sequence[LabelScore]) -> list[SaidLabel]:
        return [SaidLabel(name=name_of(one.label), probability=one.probability) for one in labels[:LABELS]]

    return [
        WorstView(
            picture=samples.picture(sample.place, sample.key),
            key=sample.key[:NAME],
            path=samples.path(sample.place, sample.key),
            loss=sample.loss,
            labels=[name_of(place) for place in sample.labels[:LABELS]],
            missed=named(sample.missed),
            wrong=named(sample.wrong),
        )
        for sample in details.worst[:WORST]
    ]
