"""Numerics of a step: autocast, TF32, memory layout, compilation, fp16 loss scale, non-finite gradients.

Parameters, gradients and optimizer state are always float32. Forward and backward passes of training run in the lower
precision. Evaluation runs in bf16 if training does, and in float32 if training runs in fp16, where activations may
overflow. With fsdp, parameters are gathered in the lower precision (docs/parallel.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

import torch
from torch import nn

from contracts.config import TrainSection
from contracts.errors import DataError
from trainer.launch.choices import default_channels_last, default_precision, find_slow_precision

# Set to 1 for deterministic algorithms on a GPU.
DETERMINISTIC_VARIABLE = "SHARDLINE_DETERMINISTIC"
CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
# Consecutive skipped steps after which training fails. The initial loss scale needs 16 to decrease to 1.
MOST_SKIPS_IN_A_ROW = 100

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Numerics:
    """Settings that decide the numbers of a step besides data, parameters and machine; recorded in checkpoints."""

    precision: str
    channels_last: bool
    compile: bool
    activation_checkpointing: str

    @classmethod
    def of(cls, train: TrainSection) -> Numerics:
        """Return the numerics of a configuration; `auto` depends on this machine's GPUs only."""
        return cls(
            default_precision() if train.precision == "auto" else train.precision,
            default_channels_last() if train.channels_last == "auto" else train.channels_last,
            train.compile == "on",
            "none" if train.activation_checkpointing == "auto" else train.activation_checkpointing,
        )

    def document(self) -> dict[str, str]:
        """Return the values as recorded in a checkpoint manifest."""
        return {name: str(value).lower() for name, value in asdict(self).items()}

    def find_slow(self, device: torch.device) -> str:
        """Return a warning if another precision is faster on the device; empty otherwise."""
        major, minor = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
        return find_slow_precision(self.precision, 10 * major + minor or None)

    def apply(self, device: torch.device) -> None:
        """Set torch's process-wide flags."""
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True
            # Slots have few sizes, so trying the algorithms for each pays.
            torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()

    @property
    def dtype(self) -> torch.dtype | None:
        """Autocast dtype of forward and backward passes; None: no autocast."""
        return _DTYPES.get(self.precision)

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the autocast context of forward passes in training."""
        return nullcontext() if self.dtype is None else torch.autocast(device.type, dtype=self.dtype)

    def evaluation_autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the autocast context of forward passes in evaluation."""
        return nullcontext() if self.precision == "fp16" else self.autocast(device)

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Return the model in the configured memory layout; networks with 3D convolutions are unchanged."""
        if not self.channels_last or any(weight.ndim > 4 for weight in model.parameters()):
            return model
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def lay_out_input(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an input in the configured memory layout; only images [B, C, H, W] change."""
        if not self.channels_last or tensor.ndim != 4 or not tensor.is_floating_point():
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)

    @property
    def memory_format(self) -> torch.memory_format:
        """Memory layout of normalised images."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


def decide_numerics(train: TrainSection, recorded: dict[str, str], log: Callable[[str], None]) -> Numerics:
    """Return the numerics recorded in the checkpoint, else those of the configuration."""
    numerics = Numerics.of(train)
    if automatic := [
        f"{name} {getattr(numerics, name)}" for name in ("precision", "channels_last") if getattr(train, name) == "auto"
    ]:
        log(f"{', '.join(automatic)}: auto on this machine")
    configured = numerics.document()
    values = configured | recorded
    if different := [
        f"{name} {values[name]} (not {value})" for name, value in configured.items() if values[name] != value
    ]:
        log(f"as recorded in the checkpoint: {', '.join(different)}")
    return Numerics(
        values["precision"],
        values["channels_last"] == "true",
        values["compile"] == "true",
        values["activation_checkpointing"],
    )


def fix_numerics(threads: int, device: torch.device) -> None:
    """Set threads and deterministic algorithms for the process; call it before any computation.

    Algorithms are always deterministic on a CPU. On a GPU, where they are slower and some operations have none, they
    are with SHARDLINE_DETERMINISTIC=1 only.
    """
    torch.set_num_threads(threads)
    deterministic = os.environ.get(DETERMINISTIC_VARIABLE) == "1"
    if device.type == "cpu" or deterministic:
        torch.use_deterministic_algorithms(True)
    if device.type == "cuda" and deterministic:
        # https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html
        os.environ.setdefault(CUBLAS_VARIABLE, ":4096:8")
        # Benchmarking may choose another kernel in each process:
        # https://docs.pytorch.org/docs/stable/notes/randomness.html
        torch.backends.cudnn.benchmark = False


class LossScale:
    """Loss scale of fp16 training, which prevents underflow of small gradients.

    Rule and constants are those of torch.amp.GradScaler: halved after a non-finite gradient, doubled after 2000 finite
    steps. GradScaler checks the gradients of each rank separately; here the norm of the reduced gradients decides for
    all ranks, and the optimizer divides by the scale.
    """

    INITIAL, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), self.INITIAL, device=device)
        self._tracker = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: torch.Tensor) -> None:
        """Update the scale after a step; `found_inf` is 1.0 for non-finite gradients, else 0.0. No device sync."""
        bad = found_inf > 0
        good_steps = torch.where(bad, 0, self._tracker + 1)
        grows = good_steps == self.INTERVAL
        factor = torch.where(bad, self.BACKOFF, torch.where(grows, self.GROWTH, 1.0))
        grown = self.scale * factor
        self.scale.copy_(torch.where(torch.isfinite(grown), grown, self.scale))
        self._tracker.copy_(torch.where(grows, 0, good_steps))

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state for a checkpoint, with GradScaler's names."""
        return {"scale": self.scale, "growth_tracker": self._tracker}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` returned."""
        self.scale.copy_(state["scale"])
        self._tracker.copy_(state["growth_tracker"])


@dataclass(frozen=True)
class GradientCounts:
    """Counts of skipped steps since the start of training."""

    skipped: int
    """Skipped steps."""
    consecutive: int
    """Skipped steps since the last one that was taken."""
    fatal_step: int
    """First step (from 1) at which training must end; 0: none."""
    norm: float
    """Norm of the last gradient, before clipping."""


class GradientGuard:
    """Counts non-finite gradients on the device."""

    def __init__(self, device: torch.device) -> None:
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=device)
        self._fatal_step = torch.zeros((), dtype=torch.int64, device=device)
        self._norm = torch.zeros((), device=device)

    def update(self, norm: torch.Tensor, step: int, scale: torch.Tensor | None) -> torch.Tensor:
        """Return 1.0 if optimizer step `step` (from 0) must be skipped, else 0.0; a tensor on the device.

        `norm` [] is the global gradient norm, unscaled and before clipping. An overflow is not fatal while `scale` is
        above 1.
        """
        bad = ~torch.isfinite(norm)
        self._norm.copy_(norm)
        self._skipped += bad
        self._in_a_row.copy_(torch.where(bad, self._in_a_row + 1, 0))
        fatal = (self._in_a_row >= MOST_SKIPS_IN_A_ROW) | (bad if scale is None else bad & (scale <= 1))
        first = fatal & (self._fatal_step == 0)
        self._fatal_step.copy_(torch.where(first, step + 1, self._fatal_step))
        return bad.float()

    def tensors(self) -> torch.Tensor:
        """Return all counts as one tensor [4] float64 for `read`."""
        counts = torch.stack([self._skipped, self._in_a_row, self._fatal_step]).double()
        return torch.cat([counts, self._norm.double()[None]])

    def read(self, values: list[float]) -> GradientCounts:
        """Return the counts in the values of `tensors`.

        Raises:
            DataError: The gradients were non-finite and training must end.
        """
        counts = GradientCounts(int(values[0]), int(values[1]), int(values[2]), values[3])
        if counts.fatal_step:
            occurrence = f"at step {counts.fatal_step}"
            if counts.consecutive >= MOST_SKIPS_IN_A_ROW:
                occurrence = f"in {MOST_SKIPS_IN_A_ROW} steps in a row, up to step {counts.fatal_step}"
            raise DataError(
                f"the gradients were not finite {occurrence}",
                allowed="finite numbers",
                todo="lower train.learning_rate, set train.clip_grad_norm, or check the data",
            )
        return counts

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state for a checkpoint."""
        return {"skipped": self._skipped, "in_a_row": self._in_a_row}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` returned."""
        self._skipped.copy_(state["skipped"])
        self._in_a_row.copy_(state["in_a_row"])
