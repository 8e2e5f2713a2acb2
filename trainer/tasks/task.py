"""Task: the base class of built-in and user-defined tasks (docs/tasks.md).

A sample goes through the members in this order:

    fields -> prepare -> collate -> to_model -> model(*inputs) -> loss, or update of the metrics

`prepare` and `collate` run in loader processes, the others on the model's device. The model takes the entries of the
batch that `signature.inputs` names, by position and in that order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from contracts.artifacts import ShardManifest
from contracts.artifacts.evaluation import Baseline as Baseline
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig
from trainer.data.randomness import generator_of

if TYPE_CHECKING:
    from torchmetrics import Metric

    from trainer.weights.source import WeightSource

Sample = dict[str, Any]
"""Values of the fields by name. image and bytes: the file, as bytes; text: str; class: int, its place in the field's
classes; classes: tuple of such; number: float; json: the parsed value."""
Prepared = Any
"""The result of `prepare` for one sample: tensors, arrays and numbers, in dictionaries."""
Batch = dict[str, Any]
"""Tensors by name; dictionaries may be nested."""
Outputs = Any
"""The result of the model: a tensor, or a tuple or dictionary of tensors."""
Loss = tuple[torch.Tensor, torch.Tensor | int]
"""Sum of the loss, [] float32, and its denominator: the number of samples as an int, or any count as a tensor [] int64
on the device. Training divides the sum over a global batch by the sum of its counts."""
Columns = dict[str, Any]
"""Arrays [N] or lists by name, one value per sample."""


class RefusedSample(Exception):
    """Raised by `prepare` for a sample that the user's code fails on; training ends and names the sample.

    A sample whose bytes are damaged raises `records.decode.UndecodableImage`: data.on_bad_sample applies.
    """

    def __init__(self, given: str, *, allowed: str, todo: str) -> None:
        super().__init__(given, allowed, todo)
        self.given, self.allowed, self.todo = given, allowed, todo


@dataclass(frozen=True)
class TaskContext:
    """First argument of a task's class; the others are `task.arguments`."""

    config: RunConfig
    shards: ShardManifest
    """Manifest of the shards: fields and classes, mean and standard deviation of pixels."""
    shards_uri: str = ""
    """Folder of the shards, whose other files (a tokenizer) a task may read; empty before they are written."""


class Mode:
    """Purpose of a call: training or evaluation, with its random numbers.

    Args:
        training: Whether it is training.
        key: Key of the random numbers.
        memory_format: Memory layout of images that the model takes (train.channels_last).
    """

    __slots__ = ("_key", "_random", "memory_format", "training")

    def __init__(
        self,
        *,
        training: bool,
        key: tuple[int, ...] = (),
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.training, self.memory_format, self._key = training, memory_format, key
        self._random: np.random.Generator | None = None

    @property
    def random(self) -> np.random.Generator:
        """Generator of this sample in `prepare`, and of this slot in `collate`; only in training.

        Its numbers depend on the seed, the epoch and the sample or the slot, not on earlier draws.
        """
        assert self._key, "random numbers are drawn in prepare and collate, in training"
        if self._random is None:
            # Made on demand: it takes 10 us.
            self._random = generator_of(*self._key)
        return self._random


class Task(ABC):
    """A problem: its samples, its network, its loss and its metrics.

    Made as `Class(context, **task.arguments)` in every process that needs it. Abstract members must be
    implemented; the others have a default.
    """

    fields: Mapping[str, str]
    """Fields of a sample that it needs, by name, with their kind (docs/tasks.md)."""
    signature: Signature
    """Inputs and outputs of the model."""
    headline: str
    """Metric that ranks models: a name of `metrics`, or `loss`."""
    classes: Sequence[str] = ()
    """Names of the classes. Whole numbers in the columns `label` and `answer` of `outcomes` are places in it."""
    unit: str = ""
    """Unit of throughput beside samples, such as `tokens`; empty: none. `count_units` counts it."""
    calibration: Mapping[str, Any] = {}
    """Result of `calibrate`, once training has ended."""

    # --- a sample, a batch --------------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, sample: Sample, mode: Mode) -> Prepared:
        """Make tensors of one sample, in a loader process.

        Args:
            sample: Its fields. `shardline predict` has the fields of files and texts alone: read labels by
                `sample.get` to support it.
            mode: In training `mode.random` is the sample's own generator.
        """

    @abstractmethod
    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Batch:
        """Make a batch of prepared samples, in a loader process; samples of different lengths are padded here.

        Args:
            samples: At least one.
            mode: In training `mode.random` is the slot's own generator.
        """

    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        """Finish a batch on the device of the model: normalise, mix. By default it is returned unchanged."""
        return batch

    @abstractmethod
    def example(self, size: int) -> Batch:
        """Return a batch of `size` samples as `to_model` returns it, with any valid values, such as zeros.

        It is used to check, compile and export the network.
        """

    def count_units(self, batch: Batch) -> int:
        """Return the number of `unit` in a batch as `collate` returned it."""
        return 0

    # --- the network --------------------------------------------------------------------------------------------------

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return the network with random weights, drawn from torch's generator."""

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch, mode: Mode) -> Loss:
        """Return the sum of the loss over a batch, and its count.

        Args:
            outputs: Of the model; in the precision of training.
            batch: As `to_model` returned it.
            mode: The loss may omit regularisation, such as label smoothing, in evaluation.
        """

    def optimizer(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer | None:
        """Return an optimizer in place of train.optimizer; None: that one.

        Args:
            groups: Parameter groups with `params`, `weight_decay` and `lr`.
            rate: train.learning_rate.
        """
        return None

    def schedule(self, step: int, total_steps: int) -> float | None:
        """Return the factor of the learning rate at a step (from 0), in place of train.schedule; None: that one."""
        return None

    def check_weights(self, source: WeightSource) -> None:  # noqa: B027 - most tasks take all weights
        """Refuse initial weights (model.weights) that were trained with other inputs, such as another tokenizer.

        Raises:
            ModelError: The inputs differ.
        """

    def document(self) -> dict[str, Any]:
        """Return the description of the inputs that checkpoints record, as JSON values."""
        return {}

    # --- metrics and answers ------------------------------------------------------------------------------------------

    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """Return new metrics of torchmetrics by name.

        Each must define `higher_is_better`, and have sums, maxima or minima as states, no lists. `validate_args=False`
        saves the check of all values in each update, for classes with this argument.
        """

    @abstractmethod
    def update(self, metrics: Mapping[str, Metric], outputs: Outputs, batch: Batch) -> None:
        """Add a batch of an evaluation, by `metrics[name].update(...)`."""

    def answer(self, outputs: Outputs) -> Sequence[Any] | None:
        """Return the model's answer to each sample of a batch, values of JSON; None: the task has no answers.

        `shardline predict` prints them, and test-predictions.parquet has them.
        """
        return None

    def outcomes(self, outputs: Outputs, batch: Batch) -> Columns:
        """Return a value per sample of the test split for `report` and test-predictions.parquet.

        The file has its columns `label`, `answer` and `probability`, if present.

        Args:
            outputs: Of the model, in float32.
            batch: As `to_model` returned it.
        """
        answers = self.answer(outputs)
        return {} if answers is None else {"answer": list(answers)}

    def calibrate(self, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Return parameters fitted to the validation split after training, with the best weights, as JSON values.

        The result becomes the attribute `calibration`, and is stored in the training's manifest.

        Args:
            metrics: Of the validation split, over all ranks.
        """
        return {}

    def report(self, outcomes: Columns, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Return `details` of evaluation.json, values of JSON.

        Args:
            outcomes: Columns of all samples of the test split, in its order, with `shard` (path below the shards'
                folder) and `key` of each.
            metrics: Of the test split, over all ranks.
        """
        return {}

    def baseline(self, outcomes: Columns) -> Baseline | None:
        """Return the headline metric of a model that ignores its input; None: no baseline."""
        return None

    def first_samples(self, batch: Batch) -> torch.Tensor | str | None:
        """Return the first samples of training for TensorBoard: pictures [N, 3, H, W] uint8 or a text.

        Args:
            batch: As `to_model` returned it.
        """
        return None
