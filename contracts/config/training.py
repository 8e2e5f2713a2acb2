"""Sections `model`, `train`, `parallel`, `checkpoint` and `profile`: how a network is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

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

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`ddp`: every rank holds the whole network (DistributedDataParallel). `fsdp`: parameters, gradients and optimizer
    state are sharded over ranks (FSDP2), for networks that do not fit on one GPU."""
    slot_size: PositiveInt | Auto = "auto"
    """Samples per forward pass; the global batch is cut into slots of this size. `auto` takes the profile's choice."""
    bucket_mb: Annotated[float, Field(gt=0), NotBool] = 25.0
    """With ddp: size in MiB of the buckets in which gradients are averaged, while the backward pass goes on."""
    shard_ranks: PositiveInt | None = None
    """With fsdp: ranks that hold the network once between them; the others hold copies (HSDP). It must divide the
    ranks: the GPUs of a machine keep the heavy traffic inside it. Unset: all ranks."""
    cpu_offload: bool = False
    """With fsdp: keep parameters, gradients and optimizer state in the CPU's memory; needs a GPU."""
    sync_batch_norm: bool = False
    """Compute BatchNorm's statistics over the slots that all ranks process at a time; needs a GPU."""


class CheckpointSection(Section):
    """When checkpoints are written and which are kept. The best by validation accuracy is always kept."""

    every_steps: PositiveInt | None = None
    """Optimizer steps between checkpoints, besides the one at the end of each epoch; unset: only that one."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints kept."""


class ProfileSection(Section):
    """What the profiling run tries."""

    slot_sizes: Annotated[list[PositiveInt], Field(min_length=1)] | Auto = "auto"
    """Slot sizes to measure; `auto`: an even share of the global batch per rank, and its half and quarter."""
    num_workers: Annotated[list[Annotated[int, Field(strict=True, ge=0, le=256)]], Field(min_length=1)] | Auto = "auto"
    """Numbers of loader processes to measure; `auto`: 0, 1, 2, ... doubling up to the cores of a rank."""
    window_s: Annotated[float, Field(ge=0.05, le=60), NotBool] = 0.5
    """Length of one measurement, in seconds; each point is measured three times."""
