"""What the train stage leaves: checkpoints, the best of which says that training is finished."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from contracts import storage
from contracts.artifacts.document import Contract, Document, FileEntry
from contracts.artifacts.evaluation import Direction, Headline


class SampleOrder(Document):
    """What decides the order of samples, besides the seed and the shards. Fixed when training starts."""

    kind: Literal["full", "blocks"]
    window_shards: int | None = None
    """Most shards that a window has; None unless kind=blocks."""


# Of a tensor file: its group, and for a part of a checkpoint that several ranks wrote, which of how many.
_TENSOR_FILE = re.compile(r"(?:.+/)?([a-z][a-z0-9_]*?)(?:-(\d{5})-of-(\d{5}))?\.safetensors")


def tensor_file(group: str, rank: int | None = None, ranks: int | None = None) -> str:
    """Return the name of a group's file; `rank` and `ranks` where every rank writes a part."""
    return f"{group}.safetensors" if rank is None else f"{group}-{rank:05d}-of-{ranks:05d}.safetensors"


class InitialWeights(Document):
    """What training has taken from `model.weights` when it started, by names of the network's tensors."""

    source: str
    """URI."""
    kind: Literal["transformers", "file", "checkpoint", "export"]
    """A folder that transformers saved, one file, a training or checkpoint of this tool, or an export of it."""
    sha256: str
    """Hash of its content."""
    matched_fraction: float
    """Elements taken, over all elements of the network without its classifier's head."""
    taken: int
    """Tensors taken."""
    missing: list[str]
    """Tensors of the network that the source lacks: they have random values."""
    unexpected: list[str]
    """Tensors of the source that the network lacks."""
    other_shape: list[str]
    """Tensors that both have, in another shape: they have random values."""
    head: list[str]
    """Tensors of the classifier's head."""
    classes_taken: list[str]
    """Classes whose rows of the head were taken, by name; the others' are random."""

    def in_words(self) -> str:
        """Say in one line what was taken."""
        share = f"{100 * self.matched_fraction:.4g} % of the elements without the head"
        parts = [f"weights from {storage.display(self.source)}: {self.taken} tensors, {share}"]
        for word, names in (
            ("missing (random)", self.missing),
            ("of another shape (random)", self.other_shape),
            ("not used", self.unexpected),
        ):
            if names:
                parts.append(f"{word}: {first_names(names)}")
        rows = "random, since a file names no classes" if self.kind == "file" else "random: no class has the same name"
        if self.classes_taken:
            rows = f"rows of {len(self.classes_taken)} classes by name, the others random"
        parts.append(
            f"head ({', '.join(self.head)}): {rows}" if self.head else "nothing depends on num_classes: no head"
        )
        return "; ".join(parts)


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class EarlyStopping(Document):
    """What train.early_stopping has seen: the best evaluation, and how many came since."""

    best: float | None = None
    """None: there was no evaluation yet."""
    since_best: int = 0
    """Evaluations since the best one."""


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
    order: SampleOrder
    """Fixed when training starts; where the shards are later does not change it."""
    model: dict[str, Any]
    """The model section that built the network."""
    task: dict[str, Any]
    """The task section."""
    classes: list[str]
    """`classes` of the shards' manifest: of their label field, whatever the task; empty where they have none."""
    data: dict[str, Any]
    """What the task says of its inputs (`document`); of image classification the evaluation transform: image_size,
    mean, std. Empty where a task says nothing."""
    shards_fingerprint: str
    headline: Headline | None = None
    """Of the task; None before the first evaluation."""
    directions: dict[str, Direction] = Field(default_factory=dict)
    """Of each metric of the task by its name; empty before the first evaluation."""
    metrics: dict[str, float]
    """validation_NAME of each metric of the task, and validation_loss; at the top also test_NAME and test_loss."""
    best_step: int
    """Step of the best checkpoint so far, by checkpoint.best_metric."""
    best_metrics: dict[str, float] = Field(default_factory=dict)
    """Its metrics; empty before the first evaluation, and without a validation split."""
    evaluated: Literal["model", "ema"] | None = None
    """Group of the weights that `metrics` were measured on, at this very step: the parameters, or their moving average
    (train.ema_decay); None: metrics are of an earlier step. At the top: which of them the file holds."""
    evaluation_due: bool = False
    """An epoch ends here, and ranks were told to stop before its evaluation: a resume begins with it."""
    parameters_sha256: str
    """Hash over names and bytes of all parameters and buffers; empty where no rank had all of them."""
    profile: str = ""
    """Fingerprint of the profile report that training followed when this was written; empty: none."""
    attempt: int = 0
    """Number of the attempt that wrote it: its record names the checkpoint that it resumed from."""
    skipped_steps: int = 0
    """Optimizer steps left out since the start of training, since their gradients were not finite."""
    spent_s: float = 0.0
    """Seconds of training over all attempts that led here, from when the ranks were up; what a killed attempt did after
    its last checkpoint is not counted."""
    ended_by: Literal["", "epochs", "max_steps", "max_hours", "max_cost_usd", "early_stopping"] = ""
    """At the top of a training folder: what ended it."""
    initial: InitialWeights | None = None
    """Weights that training started from; None: random ones."""
    early_stopping: EarlyStopping | None = None
    """None without train.early_stopping."""
    calibration: dict[str, Any] = Field(default_factory=dict)
    """At the top of a training folder: what the task has chosen on the validation split with these weights, such as a
    threshold for each class; empty where it chooses nothing."""
    warnings: list[str] = Field(default_factory=list)
    """At the top of a training folder: what the task says that it cannot learn from, such as columns with one value."""
    finished_at: str = ""
    """At the top of a training folder: when it ended, UTC, ISO 8601."""
    numerics: dict[str, str] = Field(default_factory=dict)
    """What a step computes in: precision, TF32, memory layout, compilation, recomputation. Fixed when training
    starts."""
    environment: dict[str, str]
    """What decides the bits besides the configuration: ranks, threads, CPU capability, versions."""
    files: list[FileEntry]
    """A safetensors file for each group of tensors (model, optimizer, ...), or one for each group and rank (at the top:
    the best weights only)."""

    @field_validator("files")
    @classmethod
    def _is_tensor_file(cls, files: list[FileEntry]) -> list[FileEntry]:
        for entry in files:
            if (
                not _TENSOR_FILE.fullmatch(entry.name)
                or {"", ".", ".."} & set(entry.name.split("/"))
                or entry.bytes < 0
            ):
                raise ValueError(f"{entry.name!r} is no file of tensors below this folder")
        if len({entry.name for entry in files}) < len(files):
            raise ValueError("a file is named twice")
        return files

    @property
    def groups(self) -> list[str]:
        """Names of the groups of tensors, sorted."""
        return sorted({match[1] for entry in self.files if (match := _TENSOR_FILE.fullmatch(entry.name))})

    def files_of(self, group: str) -> list[FileEntry]:
        """Return the files of a group of tensors, by rank."""
        found = ((_TENSOR_FILE.fullmatch(entry.name), entry) for entry in self.files)
        return sorted((e for match, e in found if match and match[1] == group), key=lambda entry: entry.name)

    evaluation: FileEntry | None = None
    """At the top: evaluation.json beside the best weights; None without a test split. Not among the owned files: what
    can be had again from the weights is no reason to train again."""

    def owned_files(self) -> list[FileEntry]:
        """Return the tensors' files."""
        return self.files
