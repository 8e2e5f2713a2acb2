"""Checkpoints of the train stage; a finished training has a copy of the best one at the top of its folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from contracts import storage
from contracts.artifacts.document import Contract, Document, FileEntry
from contracts.artifacts.evaluation import Direction, Headline


class SampleOrder(Document):
    """Settings of the order of samples beside seed and shards, fixed when training starts."""

    kind: Literal["full", "blocks"]
    window_shards: int | None = None
    """Most shards of a window; None unless kind=blocks."""


# Group of a tensor file; for a sharded checkpoint also rank and number of ranks.
_TENSOR_FILE = re.compile(r"(?:.+/)?([a-z][a-z0-9_]*?)(?:-(\d{5})-of-(\d{5}))?\.safetensors")


def tensor_file(group: str, rank: int | None = None, ranks: int | None = None) -> str:
    """Return the name of a group's file; with `rank` and `ranks` of one rank's part."""
    return f"{group}.safetensors" if rank is None else f"{group}-{rank:05d}-of-{ranks:05d}.safetensors"


class InitialWeights(Document):
    """Weights that training started from (`model.weights`), by names of the network's tensors."""

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
    """Tensors of the network that the source lacks; randomly initialised."""
    unexpected: list[str]
    """Tensors of the source that the network lacks."""
    other_shape: list[str]
    """Tensors of both with different shapes; randomly initialised."""
    head: list[str]
    """Tensors of the classifier's head."""
    head_taken: bool
    """Whether the head was loaded, since it has the same classes; else it is randomly initialised."""

    def in_words(self) -> str:
        """Return a description of the loaded weights in one line."""
        share = f"{100 * self.matched_fraction:.4g} % of the elements without the head"
        parts = [f"weights from {storage.display(self.source)}: {self.taken} tensors, {share}"]
        named = {"missing (random)": self.missing, "of another shape (random)": self.other_shape}
        named["not used"] = self.unexpected
        parts += [f"{label}: {first_names(names)}" for label, names in named.items() if names]
        unknown = "a file names no classes" if self.kind == "file" else "the classes are others"
        label = "taken, for the same classes" if self.head_taken else f"random, since {unknown}"
        head = f"head ({', '.join(self.head)}): {label}" if self.head else "no tensor has a row per class: no head"
        return "; ".join([*parts, head])


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first names and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class EarlyStopping(Document):
    """State of train.early_stopping."""

    best: float | None = None
    """Of all evaluations; None: there was none yet."""
    since_best: int = 0
    """Evaluations since the best one."""


class CheckpointManifest(Contract):
    """A checkpoint; at the top of a training folder the best one, once training is finished."""

    kind: Literal["checkpoint"] = "checkpoint"
    finished: bool = False
    """True only at the top of a training folder."""
    step: int
    """Optimizer steps taken."""
    position: int
    """Global sample position: samples since the start of training. The whole data state."""
    epoch: int
    """Epochs completed."""
    slot_size: int
    """Fixed when training starts, as are `order` and `numerics`: later profiles and places do not change them."""
    order: SampleOrder
    model: dict[str, Any]
    """Section `model` of the network."""
    task: dict[str, Any]
    """Section `task`."""
    classes: list[str]
    """`classes` of the shards' manifest; empty where they have none."""
    data: dict[str, Any]
    """`document` of the task about its inputs; of image tasks the evaluation transform: image_size, mean, std."""
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
    """Group of the weights that `metrics` were measured on at this step: the parameters, or their moving average
    (train.ema_decay); None: metrics are of an earlier step. At the top: the weights in the file."""
    evaluation_due: bool = False
    """Whether ranks stopped at the end of an epoch before its evaluation; a resume starts with it."""
    parameters_sha256: str
    """Hash over names and bytes of all parameters and buffers; empty where no rank had all of them."""
    profile: str = ""
    """Fingerprint of the profile report that training followed when this was written; empty: none."""
    attempt: int = 0
    """Number of the attempt that wrote it: its record names the checkpoint that it resumed from."""
    skipped_steps: int = 0
    """Optimizer steps skipped since the start of training because of non-finite gradients."""
    spent_s: float = 0.0
    """Seconds of training over all attempts that led here; the time of a killed attempt after its last checkpoint is
    not counted."""
    ended_by: Literal["", "epochs", "max_steps", "max_hours", "max_cost_usd", "early_stopping"] = ""
    """At the top: the reason of the end."""
    initial: InitialWeights | None = None
    """Weights that training started from; None: random ones."""
    early_stopping: EarlyStopping | None = None
    """None without train.early_stopping."""
    calibration: dict[str, Any] = Field(default_factory=dict)
    """At the top: the task's choices on the validation split with these weights, such as a threshold per class."""
    finished_at: str = ""
    """At the top: when training ended, UTC, ISO 8601."""
    numerics: dict[str, str] = Field(default_factory=dict)
    """Precision, TF32, memory layout, compilation and recomputation of steps."""
    environment: dict[str, str]
    """What decides the bits besides the configuration: ranks, threads, CPU capability, versions."""
    files: list[FileEntry]
    """A safetensors file for each group of tensors (model, optimizer, ...), or one for each group and rank (at the top:
    the best weights only)."""
    evaluation: FileEntry | None = None
    """At the top: evaluation.json beside the best weights; None without a test split. It is not among the owned files:
    it can be made again from the weights, so its loss is no reason to train again."""
    predictions: FileEntry | None = None
    """At the top: test-predictions.parquet beside evaluation.json; None without it."""

    @field_validator("files")
    @classmethod
    def _is_tensor_file(cls, files: list[FileEntry]) -> list[FileEntry]:
        for entry in files:
            is_below = not {"", ".", ".."} & set(entry.name.split("/"))
            if not _TENSOR_FILE.fullmatch(entry.name) or not is_below or entry.bytes < 0:
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
        matches = ((_TENSOR_FILE.fullmatch(entry.name), entry) for entry in self.files)
        return sorted((e for match, e in matches if match and match[1] == group), key=lambda entry: entry.name)

    def owned_files(self) -> list[FileEntry]:
        """Return the tensors' files."""
        return self.files
