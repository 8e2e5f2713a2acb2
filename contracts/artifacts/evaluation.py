"""What training leaves beside its best checkpoint: how it did on the test split, and on which samples worst."""

from __future__ import annotations

from typing import Literal

from contracts.artifacts.document import Contract, Document

EVALUATION_NAME = "evaluation.json"


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


class EvaluationReport(Contract):
    """The best checkpoint of a training on the test split."""

    kind: Literal["evaluation"] = "evaluation"
    step: int
    """Of the checkpoint."""
    weights: Literal["model", "ema"]
    """Which weights of the checkpoint were evaluated: those trained, or their moving average (train.ema_decay)."""
    parameters_sha256: str
    """Of these weights and the buffers."""
    shards_fingerprint: str
    split: Literal["test"] = "test"
    samples: int
    """Each counts once."""
    accuracy: float
    """Share of samples whose largest logit is their label."""
    loss: float
    """Mean cross-entropy in nats."""
    classes: list[ClassOutcome]
    """In the order of the checkpoint's classes, which labels and predictions count from 0."""
    confusion: list[tuple[int, int, int]]
    """The cells of the confusion matrix that are not empty: label, prediction, samples. In this order."""
    confusion_left_out: int
    """Samples in cells off the diagonal that are left out, being the smallest of too many; 0 for few classes."""
    worst: list[WorstSample]
    """The samples with the lowest probability of their label, the lowest first."""
