"""The interface of a task: a class with these members, whatever it inherits from (docs/tasks.md).

A sample goes through the members in this order:

    fields -> prepare -> collate -> to_model -> model(*inputs) -> loss, or update of the metrics

`prepare` and `collate` run in loader processes, the others on the device of the model. A batch is a dictionary of
tensors, which may be nested; it travels as a whole. The model takes the entries of the batch that `signature.inputs`
names, by position and in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import nn

from contracts.artifacts import ShardManifest
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig
from trainer.data.randomness import generator_of

if TYPE_CHECKING:
    from torchmetrics import Metric

Sample = dict[str, Any]
"""Values of the fields by name. image and bytes: the file, as bytes; text: str; class: int, its place in the field's
classes; classes: tuple of such; number: float; json: what it holds."""
Prepared = Any
"""What `prepare` makes of one sample: tensors, arrays and numbers, in dictionaries."""
Batch = dict[str, Any]
"""Tensors by name, in dictionaries however deep."""
Outputs = Any
"""What the model returns: a tensor, or a tuple or dictionary of tensors."""
Loss = tuple[torch.Tensor, torch.Tensor | int]
"""Sum of the loss, [] float32, and what it is divided by: the number of samples as an int, or any count as a tensor []
int64 on the device. Training divides the sum of a global batch by the sum of its counts."""


class RefusedSample(Exception):
    """Raised by `prepare` for a sample that the user's code fails on; training ends and names the sample.

    A sample whose bytes are damaged raises `records.decode.UndecodableImage`: data.on_bad_sample decides about it.
    """

    def __init__(self, given: str, *, allowed: str, todo: str) -> None:
        super().__init__(given, allowed, todo)
        self.given, self.allowed, self.todo = given, allowed, todo


@dataclass(frozen=True)
class TaskContext:
    """What a task is made for: the first argument of its class; the others are `task.arguments`."""

    config: RunConfig
    shards: ShardManifest
    """Of the shards: their fields and classes, mean and standard deviation of their pixels."""
    shards_uri: str = ""
    """Folder of the shards, whose other files (a tokenizer) a task may read; empty before they are written."""


class Mode:
    """What a call is for: training or evaluation, with its random numbers.

    Args:
        training: Whether it is training.
        key: Of the random numbers.
        memory_format: Of images that the model takes (train.channels_last).
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
        """Random numbers of this sample in `prepare`, and of this slot in `collate`; in training alone.

        They depend on the seed and on the sample, or the slot, and on nothing that was drawn before.
        """
        assert self._key, "nothing is drawn in evaluation, and by the model's device"
        if self._random is None:
            # Not before it is asked for: it takes 10 us.
            self._random = generator_of(*self._key)
        return self._random


class Task(Protocol):
    """What a task must have. It is made as `Class(context, **task.arguments)`, in every process that needs it."""

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields that it needs, by name, with their kind (contracts/config/fields.py)."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the model."""

    @property
    def headline(self) -> str:
        """The metric that tells how good a model is: a name of `metrics`, or `loss`."""

    def build_model(self) -> nn.Module:
        """Return the network with random weights, drawn from torch's generator."""

    def prepare(self, sample: Sample, mode: Mode) -> Prepared:
        """Make tensors of one sample, in a loader process.

        Args:
            sample: Its fields.
            mode: In training `mode.random` is the sample's own generator.
        """

    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Batch:
        """Make a batch of prepared samples, in a loader process; what differs in length is padded here.

        Args:
            samples: At least one.
            mode: In training `mode.random` is the slot's own generator.
        """

    def example(self, size: int) -> Batch:
        """Return a batch of `size` samples as `to_model` returns it, of zeros or anything else that is valid.

        The network is tried out, compiled and exported with it.
        """

    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        """Finish a batch on the device of the model: normalise, mix. It may be returned as it is."""

    def loss(self, outputs: Outputs, batch: Batch, mode: Mode) -> Loss:
        """Return the sum of the loss over a batch, and its count.

        Args:
            outputs: Of the model; in lower precision where training is.
            batch: As `to_model` returned it.
            mode: In evaluation the loss may leave out what helps training alone, such as label smoothing.
        """

    def metrics(self) -> Mapping[str, Metric]:
        """Return new metrics of torchmetrics by name, made with sync_on_compute=False.

        And with validate_args=False, where the class takes it: else each update looks at the values of all tensors.

        Each must say whether higher is better (`higher_is_better`).
        """

    def update(self, metrics: Mapping[str, Metric], outputs: Outputs, batch: Batch) -> None:
        """Take a batch of an evaluation in, by `metrics[name].update(...)`."""
