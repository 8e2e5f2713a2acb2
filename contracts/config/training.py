"""Sections `model`, `train`, `parallel`, `checkpoint` and `profile`: how a network is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from contracts.config.base import Auto, NotBool, PositiveInt, Section


class ModelSection(Section):
    """The network."""

    architecture: str = "resnet"
    """A model type of transformers with an image-classification head (resnet, vit, ...), or `module:callable`."""
    arguments: dict[str, Any] = {}
    """Fields of the transformers configuration, or keyword arguments of the callable."""


class TrainSection(Section):
    """Optimisation. What is set here is never changed by the profile."""

    global_batch_size: PositiveInt = 256
    """Samples per optimizer step, over all ranks."""
    epochs: PositiveInt = 10
    """Passes over the training split."""
    learning_rate: Annotated[float, Field(gt=0), NotBool] = 1e-3
    """Peak learning rate of AdamW."""
    weight_decay: Annotated[float, Field(ge=0), NotBool] = 0.01
    """Decoupled weight decay; biases and normalisation weights are exempt."""
    warmup_fraction: Annotated[float, Field(ge=0, lt=1), NotBool] = 0.05
    """Share of all steps with a linearly rising learning rate; a cosine to 0 follows."""


class ParallelSection(Section):
    """How a step is spread over ranks."""

    strategy: Literal["ddp"] = "ddp"
    """DistributedDataParallel."""
    slot_size: PositiveInt | Auto = "auto"
    """Samples per forward pass; the global batch is cut into slots of this size. `auto` takes the profile's choice."""


class CheckpointSection(Section):
    """When checkpoints are written and which are kept. One is written at the end of each epoch, after evaluation."""

    every_steps: PositiveInt | None = None
    """Optimizer steps between checkpoints; where every_s is unset too, what a checkpoint costs decides."""
    every_s: Annotated[float, Field(gt=0), NotBool] | None = None
    """Seconds between checkpoints, instead of every_steps."""
    preemptions_per_hour: Annotated[float, Field(gt=0, le=3600), NotBool] = 0.1
    """Preemptions per hour of the whole job, all its machines together; decides the interval where none is given."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints kept."""
    keep_best: PositiveInt = 1
    """Number of best checkpoints kept, of those written at an evaluation."""
    best_metric: Literal["validation_accuracy", "validation_loss"] = "validation_accuracy"
    """What keep_best goes by: the highest accuracy (of equal ones the lower loss), or the lowest loss."""
    keep_every_steps: PositiveInt | None = None
    """Of each run of this many steps the first checkpoint is kept for good; unset: none."""
    num_buffers: Annotated[int, Field(strict=True, ge=1, le=2)] = 1
    """Copies of the state in host memory. With one, a checkpoint due while the last is being written is left out."""
    write_timeout_s: Annotated[float, Field(ge=10, le=86400), NotBool] = 1800
    """Seconds after which writing a checkpoint is given up."""

    @model_validator(mode="after")
    def _one_interval(self) -> CheckpointSection:
        if self.every_steps is not None and self.every_s is not None:
            raise ValueError("every_steps and every_s are both set: set one of them, or none")
        return self


class ProfileSection(Section):
    """What the profiling run tries."""

    slot_sizes: Annotated[list[PositiveInt], Field(min_length=1)] | Auto = "auto"
    """Slot sizes to measure; `auto`: an even share of the global batch per rank, and its half and quarter."""
    num_workers: Annotated[list[Annotated[int, Field(strict=True, ge=0, le=256)]], Field(min_length=1)] | Auto = "auto"
    """Numbers of loader processes to measure; `auto`: 0, 1, 2, ... doubling up to the cores of a rank."""
    window_s: Annotated[float, Field(ge=0.05, le=60), NotBool] = 0.5
    """Length of one measurement, in seconds; each point is measured three times."""
