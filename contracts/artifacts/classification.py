"""Details of the evaluation of a classification: outcomes by class, confusion, ROC curve, worst samples.

Only the tasks with one class per sample and their pages read them.
"""

from __future__ import annotations

from contracts.artifacts.document import Document
from contracts.artifacts.task_details import TaskDetails

TASKS = ("image_classification", "text_classification")
"""Names of the tasks whose samples have one class each."""


class RocCurve(Document):
    """ROC curve of the second of two classes, by its probability."""

    area: float
    """Area under the curve, in [0, 1], of all samples."""
    points: list[tuple[float, int, int]]
    """Threshold, samples of the first class at or above it, samples of the second at or above it; falling thresholds,
    at most 1,000 spread evenly. The curve begins at (0, 0), which is not listed. Divided by the samples of the first
    and the second class: the rates."""


class ClassOutcome(Document):
    """Counts of the samples of one class."""

    name: str
    samples: int
    predicted: int
    """Samples of any class that were predicted as this class."""
    right: int


class WorstSample(Document):
    """A sample with a low predicted probability of its label."""

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
    """Predicted probability of the label."""
    predicted_probability: float


class ClassificationDetails(TaskDetails):
    """Outcomes by class, confusion, and the worst samples."""

    OF_TASKS = TASKS

    classes: list[ClassOutcome]
    """In the order of the checkpoint's classes, which labels and predictions count from 0."""
    confusion: list[tuple[int, int, int]]
    """The cells of the confusion matrix that are not empty: label, prediction, samples. In this order."""
    confusion_left_out: int
    """Samples in the smallest off-diagonal cells, which are omitted if there are too many; 0 for few classes."""
    roc: RocCurve | None
    """None with more than two classes, and where the split has samples of one class alone."""
    worst: list[WorstSample]
    """The samples with the lowest probability of their label, the lowest first."""

    @property
    def right(self) -> int:
        """Samples whose largest logit is their label."""
        return sum(outcome.right for outcome in self.classes)
