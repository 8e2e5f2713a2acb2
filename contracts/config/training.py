"""Sections `model`, `train`, `parallel` and `checkpoint`: how a network is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from contracts.config.base import Auto, Fraction, NotBool, PositiveInt, Section

METRIC = r"^(validation_)?[A-Za-z]\w*$"
"""Name of a metric of the task, or `loss`, on the validation split."""


class ModelSection(Section):
    """The network."""

    architecture: str = "resnet"
    """A model type of transformers with an image-classification head (resnet, vit, ...), or `module:callable`."""
    arguments: dict[str, Any] = {}
    """Fields of the transformers configuration, or keyword arguments of the callable. Unset with `weights`: those of
    their config.json, where they have one."""
    weights: str = ""
    """Weights that training starts from (docs/fine-tuning.md): a folder that transformers saved, a .safetensors, .pt or
    .pth file, or a run, training, checkpoint or export of this tool, on this machine or in a bucket; `previous`: the
    newest finished training of the line. Unset: random weights, from run.seed."""
    min_matched_fraction: Fraction = 0.5
    """Least share of the network's elements, its classifier's head left out, that `weights` must have."""
    freeze: list[Annotated[str, Field(min_length=1)]] = []
    """Glob patterns (`*` matches dots too) of the parameters that training leaves as they are, by name."""


class EarlyStoppingSection(Section):
    """When training ends before its last epoch, since it no longer gets better."""

    metric: Annotated[str, Field(pattern=METRIC)] = "validation_loss"
    """What is watched: `validation_loss`, or `validation_NAME` of a metric of the task."""
    patience: PositiveInt = 3
    """Evaluations in a row without anything better after which training ends."""
    min_delta: Annotated[float, Field(ge=0), NotBool] = 0.0
    """By how much an evaluation must be better than the best before it, to count as better."""


class TrainSection(Section):
    """Optimisation. What is set here is never changed by the profile, but for what is `auto`."""

    global_batch_size: PositiveInt = 256
    """Samples per optimizer step, over all ranks."""
    epochs: PositiveInt = 10
    """Passes over the training split."""
    max_steps: PositiveInt | None = None
    """Optimizer steps after which training ends, if its epochs are not over before; the schedule is cut to fit."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or stochastic gradient descent with momentum."""
    momentum: Annotated[float, Field(ge=0, lt=1), NotBool] = 0.9
    """Momentum of sgd; 0: none."""
    nesterov: bool = False
    """Whether sgd's momentum is Nesterov's."""
    learning_rate: Annotated[float, Field(gt=0), NotBool] = 1e-3
    """Peak learning rate."""
    learning_rates: dict[str, Annotated[float, Field(gt=0), NotBool]] = {}
    """Factor of the learning rate of some parameters, by glob pattern of their names; no two patterns may match one
    parameter."""
    early_stopping: EarlyStoppingSection | None = None
    """Ends training when evaluations stop getting better; unset: it goes through all epochs."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """What follows the warmup: a cosine to 0, falls by `step_factor`, or the peak to the end."""
    step_every_epochs: PositiveInt = 30
    """With schedule=step: epochs between two falls of the learning rate."""
    step_factor: Annotated[float, Field(gt=0, lt=1), NotBool] = 0.1
    """With schedule=step: what the learning rate is multiplied by at each fall."""
    warmup_fraction: Annotated[float, Field(ge=0, lt=1), NotBool] = 0.05
    """Share of all steps with a linearly rising learning rate."""
    weight_decay: Annotated[float, Field(ge=0), NotBool] = 0.01
    """AdamW's decoupled weight decay, or sgd's L2 penalty; biases and normalisation weights are exempt."""
    clip_grad_norm: Annotated[float, Field(gt=0), NotBool] | None = None
    """Norm that the gradient of all parameters together is cut down to; unset: it is not."""
    ema_decay: Annotated[float, Field(gt=0, lt=1), NotBool] | None = None
    """Decay of an exponential moving average of the parameters, with which is evaluated and exported; unset: none."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1), NotBool] = 0.0
    """Share of the target that is spread evenly over all classes, in training."""
    non_finite: Literal["stop", "skip"] = "stop"
    """What a gradient that is not finite does: ends training, or has its optimizer step left out."""
    precision: Literal["fp32", "bf16", "fp16"] | Auto = "fp32"
    """What forward and backward passes compute in (autocast); parameters and optimizer are fp32, and evaluation with
    parallel.strategy=ddp. `auto` takes the profile's choice, fp32 without one."""
    allow_slow_precision: bool = False
    """Whether fp16 may be trained where it is slower than fp32 (a CPU)."""
    tf32: bool = True
    """Whether a GPU may round the factors of fp32 products to TF32 (10 bits of mantissa)."""
    channels_last: bool | Auto = False
    """Whether images and weights lie in memory with their channels last, as tensor cores want them; `auto` takes the
    profile's choice, false without one."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether the network is compiled by torch.compile; `auto` takes the profile's choice, off without one."""
    activation_checkpointing: Literal["none", "whole"] | Auto = "none"
    """What is computed again in the backward pass, to save memory: nothing, or each block whole. `auto` takes the
    profile's choice, none without one."""

    @field_validator("compile", mode="before")
    @classmethod
    def _read_truth(cls, value: object) -> object:
        # true says on, and false off.
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _options_fit_each_other(self) -> TrainSection:
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError("nesterov needs optimizer=sgd and a momentum above 0")
        if self.compile == "on" and self.activation_checkpointing == "whole":
            raise ValueError(
                "activation_checkpointing needs compile=off: torch.compile decides by itself what it computes again"
            )
        return self


class ParallelSection(Section):
    """How a step is spread over ranks."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`ddp`: every rank holds the whole network (DistributedDataParallel). `fsdp`: parameters, gradients and optimizer
    state are sharded over ranks (FSDP2), for networks that do not fit on one GPU."""
    slot_size: PositiveInt | Auto = "auto"
    """Samples per forward pass; the global batch is cut into slots of this size. `auto` takes the profile's choice."""
    bucket_mb: Annotated[float, Field(gt=0), NotBool] = 25.0
    """With ddp: size in MiB of the buckets in which gradients are averaged, while the backward pass goes on."""
    find_unused_parameters: bool = False
    """With ddp: look in each step for parameters without a gradient, for networks that leave some out on their way; it
    costs a walk through the graph of each backward pass."""
    shard_ranks: PositiveInt | None = None
    """With fsdp: ranks that hold the network once between them; the others hold copies (HSDP). It must divide the
    ranks: the GPUs of a machine keep the heavy traffic inside it. Unset: all ranks."""
    cpu_offload: bool = False
    """With fsdp: keep parameters, gradients and optimizer state in the CPU's memory; needs a GPU."""
    sync_batch_norm: bool = False
    """Compute BatchNorm's statistics over the slots that all ranks process at a time; needs a GPU."""


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
    best_metric: Annotated[str, Field(pattern=f"^$|{METRIC}")] = ""
    """What keep_best goes by: `validation_loss`, or `validation_NAME` of a metric of the task; empty: its headline
    metric, which for image classification is the accuracy. Of equal ones the lower loss is better; of equal losses, the
    better headline metric."""
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
