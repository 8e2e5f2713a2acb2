"""What the train stage leaves: checkpoints, the best of which says that training is finished."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from contracts.artifacts.document import Contract, Document, FileEntry


class SampleOrder(Document):
    """What decides the order of samples, besides the seed and the shards. Fixed when training starts."""

    kind: Literal["full", "blocks"]
    sampling: Literal["all", "balanced"] = "all"
    streams: int | None = None
    """Canonical streams; None unless kind=blocks, as below."""
    range_bytes: int | None = None
    """Size of the ranges that shards are cut into."""
    block_samples: int | None = None
    """Samples in a block of a stream."""


class CheckpointManifest(Contract):
    """A checkpoint; at the top of a training folder: the best one, which says that training is finished."""

    kind: Literal["checkpoint"] = "checkpoint"
    finished: bool = False
    """True only at the top of a training folder."""
    step: int
    """Optimizer steps taken."""
    position: int
    """Global sample position: samples seen since the start of training. The whole data state."""
    epoch: int
    """Epochs completed."""
    slot_size: int
    """Fixed when training starts; a later profile does not change it."""
    order: SampleOrder | None = None
    """Fixed when training starts; where the shards are later does not change it. None in checkpoints of versions that
    knew one order only."""
    model: dict[str, Any]
    """The model section that built the network."""
    classes: list[str]
    data: dict[str, Any]
    """The evaluation transform: image_size, mean, std."""
    shards_fingerprint: str
    metrics: dict[str, float]
    """validation_accuracy in [0, 1] and validation_loss; at the top also test_accuracy and test_loss."""
    best_step: int
    """Step of the best checkpoint so far, by validation accuracy."""
    evaluated: Literal["model", "ema"] | None = None
    """Group of the weights that `metrics` were measured on, at this very step: the parameters, or their moving average
    (train.ema_decay); None: metrics are of an earlier step. At the top: which of them the file holds."""
    best_validation_accuracy: float | None = None
    """None before the first evaluation, and without a validation split."""
    best_validation_loss: float | None = None
    """Decides between checkpoints of equal accuracy."""
    parameters_sha256: str
    """Hash over names and bytes of all parameters and buffers."""
    skipped_steps: int = 0
    """Optimizer steps left out since the start of training, since their gradients were not finite."""
    spent_s: float = 0.0
    """Seconds of training over all attempts that led here, from when the ranks were up; what a killed attempt did after
    its last checkpoint is not counted."""
    ended_by: Literal["", "epochs", "max_steps", "max_hours", "max_cost_usd"] = ""
    """At the top of a training folder: what ended it."""
    numerics: dict[str, str] = Field(default_factory=dict)
    """What a step computes in: precision, TF32, memory layout, compilation, recomputation. Fixed when training starts;
    empty in checkpoints of versions that knew nothing of it."""
    environment: dict[str, str]
    """What decides the bits besides the configuration: ranks, threads, CPU capability, versions."""
    files: list[FileEntry]
    """model.safetensors and optimizer.safetensors (at the top: the best weights only)."""

    evaluation: FileEntry | None = None
    """At the top: evaluation.json beside the best weights; None without a test split. Not among the owned files: what
    can be had again from the weights is no reason to train again."""

    def owned_files(self) -> list[FileEntry]:
        """Return the tensors' files."""
        return self.files
