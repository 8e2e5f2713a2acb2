"""Sections `model`, `train`, `parallel` and `checkpoint`: how a network is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from contracts.config.base import Auto, NotBool, Positive, PositiveInt, Section, refusal

DEFAULT_INTERVAL_S = 300.0
"""A preemption loses half of it on average; a checkpoint holds training for less than a second."""
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
    freeze: list[Annotated[str, Field(min_length=1)]] = []
    """Glob patterns (`*` matches dots too) of the parameters that training leaves as they are, by name."""


class EarlyStoppingSection(Section):
    """When training ends before its last epoch, since it no longer gets better."""

    metric: Annotated[str, Field(pattern=METRIC)] = "validation_loss"
    """What is watched: `validation_loss`, or `validation_NAME` of a metric of the task."""
    patience: PositiveInt = 3
    """Evaluations in a row without anything better after which training ends."""


class TrainSection(Section):
    """Optimisation. Nothing of it is changed by the profile; `auto` depends on the machine's GPUs alone."""

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
    learning_rate: Positive = 1e-3
    """Peak learning rate."""
    learning_rates: dict[str, Positive] = {}
    """Factor of the learning rate of some parameters, by glob pattern of their names; no two patterns may match one
    parameter."""
    early_stopping: EarlyStoppingSection | None = None
    """Ends training when evaluations stop getting better; unset: it goes through all epochs."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """What follows the warmup: a cosine to 0, or the peak to the end."""
    warmup_fraction: Annotated[float, Field(ge=0, lt=1), NotBool] = 0.05
    """Share of all steps with a linearly rising learning rate."""
    weight_decay: Annotated[float, Field(ge=0), NotBool] = 0.01
    """AdamW's decoupled weight decay, or sgd's L2 penalty; biases and normalisation weights are exempt."""
    clip_grad_norm: Positive | None = None
    """Norm that the gradient of all parameters together is cut down to; unset: it is not."""
    ema_decay: Annotated[float, Field(gt=0, lt=1), NotBool] | None = None
    """Decay of an exponential moving average of the parameters, with which is evaluated and exported; unset: none."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1), NotBool] = 0.0
    """Share of the target that is spread evenly over all classes, in training."""
    precision: Literal["fp32", "bf16", "fp16"] | Auto = "fp32"
    """What forward and backward passes compute in (autocast); parameters and optimizer are fp32, and evaluation of fp16
    with parallel.strategy=ddp. `auto`: bf16 on GPUs from sm80 on, else fp32."""
    channels_last: bool | Auto = False
    """Whether images and weights lie in memory with their channels last, as tensor cores want them; `auto`: true on a
    GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether the network is compiled by torch.compile; `auto`: off."""
    activation_checkpointing: Literal["none", "whole"] | Auto = "none"
    """What is computed again in the backward pass, to save memory: nothing, or each block whole. `auto`: none."""

    @field_validator("compile", mode="before")
    @classmethod
    def _read_truth(cls, value: object) -> object:
        # true says on, and false off.
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _check_options(self) -> TrainSection:
        if self.compile == "on" and self.activation_checkpointing == "whole":
            raise refusal(
                "train.compile=on with train.activation_checkpointing=whole",
                allowed="one of them: torch.compile decides by itself what it computes again",
                todo="set train.compile=off, or train.activation_checkpointing=none",
            )
        return self


class ParallelSection(Section):
    """How a step is spread over ranks."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`ddp`: every rank holds the whole network (DistributedDataParallel). `fsdp`: parameters, gradients and optimizer
    state are sharded over ranks (FSDP2), for networks that do not fit on one GPU."""
    slot_size: PositiveInt | Auto = "auto"
    """Samples per forward pass; the global batch is cut into slots of this size. `auto` takes the profile's choice."""
    sync_batch_norm: bool = False
    """Compute BatchNorm's statistics over the slots that all ranks process at a time; needs a GPU."""


class CheckpointSection(Section):
    """When checkpoints are written and which are kept. One is written at the end of each epoch, after evaluation."""

    every_steps: PositiveInt | None = None
    """Optimizer steps between checkpoints, instead of every_s."""
    every_s: Positive | None = None
    """Seconds between checkpoints, unless every_steps is set. Unset: 300."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints kept."""
    best_metric: Annotated[str, Field(pattern=f"^$|{METRIC}")] = ""
    """What the best checkpoint, which is kept too, is chosen by: `validation_loss`, or `validation_NAME` of a metric of
    the task; empty: its headline metric, which for image classification is the accuracy. Of equal ones the lower loss
    is better; of equal losses, the better headline metric."""

    @model_validator(mode="after")
    def _check_intervals(self) -> CheckpointSection:
        if self.every_steps is not None and self.every_s is not None:
            raise refusal(
                "checkpoint.every_steps and checkpoint.every_s are both set",
                allowed="one of them, or none",
                todo="leave one of them out",
            )
        return self

    @property
    def interval_s(self) -> float:
        """Seconds between checkpoints where every_steps is unset."""
        return DEFAULT_INTERVAL_S if self.every_s is None else self.every_s
