"""The details of an evaluation of a classification: outcomes by class, confusion, and the worst samples.

Nothing but the tasks that have one class a sample, and the pages that show them, reads them.
"""

from __future__ import annotations

from contracts.artifacts.document import Document
from contracts.artifacts.task_details import TaskDetails

TASKS = ("image_classification", "text_classification")
"""Names of the tasks whose samples have one class each."""


class RocCurve(Document):
    """How well the probability of one class tells its samples from all others (one against the rest).

    Samples are counted in bins of the log-odds: points are exact where they are, and the area takes samples of one bin
    as tied.
    """

    area: float
    """Area under the curve, in [0, 1]."""
    points: list[tuple[float, int, int]]
    """Threshold, samples of other classes at or above it, samples of the class at or above it; falling thresholds. The
    curve begins at (0, 0), which is not listed. Divided by the samples outside and inside the class: the rates."""


class ClassOutcome(Document):
    """What became of the samples of one class."""

    name: str
    samples: int
    predicted: int
    """Samples of any class that were taken for it."""
    right: int
    roc: RocCurve | None
    """None where the split has no sample of the class, or no other."""


class WorstSample(Document):
    """A sample whose label got a low probability."""

    shard: str
    """Path of its shard, seen from the shards' folder."""
    key: str
    """Its key in the shard."""
    place: int
    """Its place in the split."""
    label: int
    """Place of its class in `classes`."""
    predicted: int
    probability: float
    """What the model gave to the label."""
    predicted_probability: float


class ClassificationDetails(TaskDetails):
    """Outcomes by class, confusion, and the worst samples."""

    OF_TASKS = TASKS

    classes: list[ClassOutcome]
    """In the order of the checkpoint's classes, which labels and predictions count from 0."""
    confusion: list[tuple[int, int, int]]
    """The cells of the confusion matrix that are not empty: label, prediction, samples. In this order."""
    confusion_left_out: int
    """Samples in cells off the diagonal that are left out, being the smallest of too many; 0 for few classes."""
    worst: list[WorstSample]
    """The samples with the lowest probability of their label, the lowest first."""

    @property
    def right(self) -> int:
        """Samples whose largest logit is their label."""
        return sum(outcome.right for outcome in self.classes)
