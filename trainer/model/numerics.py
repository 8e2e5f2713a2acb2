"""Numerics of a step: autocast, TF32, memory layout, compilation, loss scale of fp16, gradients that are not finite.

Parameters, gradients and optimizer are float32 whatever is set here. Forward and backward passes of training run in the
lower precision; evaluation in bf16 too, and in float32 where training is in fp16, whose range activations may leave.
With fsdp parameters are gathered in the lower precision (docs/parallel.md).
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
from trainer.launch.choices import DeviceKind, default_channels_last, default_precision, find_slow_precision

# Asks for deterministic algorithms on a GPU: 1.
DETERMINISTIC_VARIABLE = "SHARDLINE_DETERMINISTIC"
CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
# Steps left out in a row after which nothing is learnt any more. A loss scale comes down from its start to 1 in 16.
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
        """Return the numerics of a configuration; what is `auto` depends on this machine's GPUs alone."""
        return cls(
            default_precision() if train.precision == "auto" else train.precision,
            default_channels_last() if train.channels_last == "auto" else train.channels_last,
            train.compile == "on",
            "none" if train.activation_checkpointing == "auto" else train.activation_checkpointing,
        )

    def document(self) -> dict[str, str]:
        """Return the values as the manifest of a checkpoint has them."""
        return {name: str(value).lower() for name, value in asdict(self).items()}

    def find_slow(self, device: torch.device) -> str:
        """Return a warning of a precision that the device computes in slower than in another; empty: it does not."""
        if device.type == "cuda":
            kind = DeviceKind(torch.cuda.get_device_name(device), torch.cuda.is_bf16_supported(False))
        else:
            kind = DeviceKind()
        return find_slow_precision(self.precision, kind)

    def apply(self, device: torch.device) -> None:
        """Set what torch keeps for the whole process."""
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True
            # Slots have few sizes, so trying the algorithms for each pays.
            torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()

    @property
    def dtype(self) -> torch.dtype | None:
        """Type that forward and backward passes compute in; None: that of the parameters."""
        return _DTYPES.get(self.precision)

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which forward passes of training run."""
        return nullcontext() if self.dtype is None else torch.autocast(device.type, dtype=self.dtype)

    def evaluation_autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which forward passes of an evaluation run."""
        return nullcontext() if self.precision == "fp16" else self.autocast(device)

    def lay_out(self, model: nn.Module) -> nn.Module:
        """Return the model with its weights in the memory layout that is asked for; of volumes there is one alone."""
        if not self.channels_last or any(weight.ndim > 4 for weight in model.parameters()):
            return model
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def lay_out_input(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an input of the network in that layout, where it has one: images [B, C, H, W]."""
        if not self.channels_last or tensor.ndim != 4 or not tensor.is_floating_point():
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory layout of images, from where they are normalised on."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


def decide_numerics(train: TrainSection, recorded: dict[str, str], log: Callable[[str], None]) -> Numerics:
    """Return the numerics of a training: those that its first checkpoint recorded, else the configuration's."""
    numerics = Numerics.of(train)
    if automatic := [
        f"{name} {getattr(numerics, name)}" for name in ("precision", "channels_last") if getattr(train, name) == "auto"
    ]:
        log(f"{', '.join(automatic)}: auto on this machine")
    asked = numerics.document()
    values = asked | recorded
    if different := [f"{name} {values[name]} (not {asked[name]})" for name in asked if values[name] != asked[name]]:
        log(f"as recorded in the checkpoint: {', '.join(different)}")
    return Numerics(
        values["precision"],
        values["channels_last"] == "true",
        values["compile"] == "true",
        values["activation_checkpointing"],
    )


def fix_numerics(threads: int, device: torch.device) -> None:
    """Set threads and algorithms for the whole process, which decide the bits of a step; before anything is computed.

    A CPU has deterministic algorithms always. On a GPU they are slower, and some operations have none (torch says
    which): they are used where SHARDLINE_DETERMINISTIC=1 asks for them.
    """
    torch.set_num_threads(threads)
    is_asked = os.environ.get(DETERMINISTIC_VARIABLE) == "1"
    if device.type == "cpu" or is_asked:
        torch.use_deterministic_algorithms(True)
    if device.type == "cuda" and is_asked:
        # https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html
        os.environ.setdefault(CUBLAS_VARIABLE, ":4096:8")
        # It would try kernels and take another one in each process:
        # https://docs.pytorch.org/docs/stable/notes/randomness.html
        torch.backends.cudnn.benchmark = False


class LossScale:
    """The factor that keeps small gradients above fp16's least number.

    The rule is that of torch.amp.GradScaler (and its constants): halved after a gradient that is not finite, doubled
    after 2000 steps without one. GradScaler itself looks at each gradient of a rank in a pass of its own; here the norm
    of the reduced gradients has decided already, for all ranks alike, and the optimizer divides by the scale.
    """

    INITIAL, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), self.INITIAL, device=device)
        self._tracker = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: torch.Tensor) -> None:
        """Take in whether a step's gradients were not finite (1.0 or 0.0), without waiting for the device."""
        bad = found_inf > 0
        good_steps = torch.where(bad, 0, self._tracker + 1)
        grows = good_steps == self.INTERVAL
        factor = torch.where(bad, self.BACKOFF, torch.where(grows, self.GROWTH, 1.0))
        # GradScaler does not grow to infinity either.
        grown = self.scale * factor
        self.scale.copy_(torch.where(torch.isfinite(grown), grown, self.scale))
        self._tracker.copy_(torch.where(grows, 0, good_steps))

    def state(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint keeps, under GradScaler's names."""
        return {"scale": self.scale, "growth_tracker": self._tracker}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` returned."""
        self.scale.copy_(state["scale"])
        self._tracker.copy_(state["growth_tracker"])


@dataclass(frozen=True)
class Findings:
    """Counts since the start of training."""

    skipped: int
    """Steps left out."""
    in_a_row: int
    """Of these the newest, without a step between."""
    fatal_step: int
    """The first step (from 1) whose gradients must end training; 0: none."""
    norm: float
    """Norm of the newest gradient, before clipping."""


class GradientGuard:
    """Counts on the device of the gradients."""

    def __init__(self, device: torch.device) -> None:
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=device)
        self._fatal_step = torch.zeros((), dtype=torch.int64, device=device)
        self._norm = torch.zeros((), device=device)

    def judge(self, norm: torch.Tensor, step: int, scale: torch.Tensor | None) -> torch.Tensor:
        """Return 1.0 if optimizer step `step` (from 0) must be left out, else 0.0; a tensor on the device.

        `norm` [] is that of the gradients over all ranks, before clipping, the loss scale divided out. While `scale` is
        above 1 an overflow ends nothing.
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
        """Return all counts as one tensor [4] float64, to be read at once by `read`."""
        counts = torch.stack([self._skipped, self._in_a_row, self._fatal_step]).double()
        return torch.cat([counts, self._norm.double()[None]])

    def read(self, values: list[float]) -> Findings:
        """Return what `tensors` says.

        Raises:
            DataError: Training must end here.
        """
        found = Findings(int(values[0]), int(values[1]), int(values[2]), values[3])
        if found.fatal_step:
            where = f"at step {found.fatal_step}"
            if found.in_a_row >= MOST_SKIPS_IN_A_ROW:
                where = f"in {MOST_SKIPS_IN_A_ROW} steps in a row, up to step {found.fatal_step}"
            raise DataError(
                f"the gradients were not finite {where}",
                allowed="finite numbers",
                todo="lower train.learning_rate, set train.clip_grad_norm, or look at the data",
            )
        return found

    def state(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint keeps."""
        return {"skipped": self._skipped, "in_a_row": self._in_a_row}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` returned."""
        self._skipped.copy_(state["skipped"])
        self._in_a_row.copy_(state["in_a_row"])
