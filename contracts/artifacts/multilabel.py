"""The details of an evaluation of a task with several labels: every class at its threshold, and the worst samples.

Nothing but that task, and the pages that show it, reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contracts.artifacts.document import Document
from contracts.artifacts.task_details import TaskDetails

TASKS = ("image_multilabel",)
"""Names of the tasks whose samples have any number of labels."""
THRESHOLDS = "thresholds"
"""In `CheckpointManifest.calibration`: of each class the probability from which on a sample is said to have it."""
DEFAULT_THRESHOLD = 0.5


def thresholds_of(calibration: Mapping[str, Any], num_labels: int) -> list[float]:
    """Return the thresholds that were chosen on the validation split; where none were, 0.5 for each class."""
    thresholds: list[float] = calibration.get(THRESHOLDS, [DEFAULT_THRESHOLD] * num_labels)
    return thresholds


class LabelOutcome(Document):
    """What became of one class at its threshold."""

    name: str
    threshold: float
    """Probability from which on a sample is said to have the class; chosen on the validation split."""
    positives: int
    """Samples of the class."""
    predicted: int
    """Samples that were said to have it."""
    right: int
    """Samples of the class that were said to have it."""
    precision: float | None
    """None: it was never said."""
    recall: float | None
    """None: no sample has it."""
    f1: float | None
    """None: no sample has it, and it was never said."""
    average_precision: float | None
    """Over all thresholds; None: no sample has it."""


class LabelScore(Document):
    """A class of a sample and its probability."""

    label: int
    """Place of the class in `classes`."""
    probability: float


class WorstSample(Document):
    """A sample with a large loss."""

    shard: str
    """Path of its shard, seen from the shards' folder."""
    key: str
    """Its key in the shard."""
    place: int
    """Its place in the split."""
    loss: float
    labels: list[int]
    """Places of its classes in `classes`; at most 20."""
    missed: list[LabelScore]
    """Classes of it that were not said, the lowest probability first; at most 20."""
    wrong: list[LabelScore]
    """Classes that were said and are not of it, the highest probability first; at most 20."""


class MultilabelDetails(TaskDetails):
    """Every class at its threshold, and the worst samples."""

    OF_TASKS = TASKS

    classes: list[LabelOutcome]
    """In the order of the checkpoint's classes, which labels count from 0."""
    exact: int
    """Samples that were said to have their classes and no others."""
    worst: list[WorstSample]
    """The samples with the largest loss, the largest first."""
