"""The denominator of the loss: what the sum over a global batch is divided by, over slots and ranks."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from contracts.config import RunConfig
from trainer.data.cursor import SlotRequest
from trainer.parallel.process_group import Rank
from trainer.tasks.load import task_error
from trainer.tasks.protocol import Loss

ALLOWED = "the sum of the loss, a floating-point tensor [], and its count, an int or a tensor [] int64"


def checked_loss(found: object, config: RunConfig) -> Loss:
    """Return what a task's loss returned, having seen that it is a sum and a count.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(found, tuple) or len(found) != 2:
        shown = f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a {type(found).__name__}"
        raise task_error(config, "loss", f"returned {shown}", allowed=ALLOWED)
    loss, count = found
    if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.is_floating_point():
        raise task_error(config, "loss", f"returned {_shown(loss)} as its sum", allowed=ALLOWED)
    is_tensor = isinstance(count, torch.Tensor) and count.ndim == 0 and count.dtype == torch.int64
    if not is_tensor and (not isinstance(count, int) or isinstance(count, bool)):
        raise task_error(config, "loss", f"returned {_shown(count)} as its count", allowed=ALLOWED)
    # Sums over many samples leave the range of lower precisions.
    return loss if loss.dtype == torch.float64 else loss.float(), count


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor {list(value.shape)}"
    return f"a {type(value).__name__}"


class Denominator:
    """Counts of the slots of a step.

    Where a task counts samples, the denominator of a slot is known before anything is computed: the samples of the
    global batch. Any other count is known when all ranks have added theirs. Until then slots are divided by a power of
    two near it: sums over a global batch would leave the range of fp16 (65504), from 512 samples on at a loss scale of
    2**16.

    Args:
        config: The configuration.
        rank: This process among its peers.
    """

    def __init__(self, config: RunConfig, rank: Rank) -> None:
        self._config, self._ranks = config, rank.ranks
        self._counts_samples: bool | None = None
        self._constant = 1.0
        self._count = torch.zeros((), dtype=torch.int64, device=rank.device)
        self._samples = 0

    def decide(self, count: torch.Tensor | int, samples: int) -> None:
        """Take from the first batch, the task's example, what the task counts: the first rank decides for all.

        Args:
            count: Of the example.
            samples: Of it.
        """
        if self._counts_samples is not None:
            return
        expected = max(1, int(count)) / samples * self._config.train.global_batch_size
        counts_samples = isinstance(count, int) and count == samples
        found = torch.tensor([counts_samples, round(math.log2(expected))], device=self._count.device)
        if self._ranks > 1:
            # The example may be drawn: ranks that differ here would wait for each other, or part.
            dist.broadcast(found, src=0)
        first, exponent = found.tolist()
        self._counts_samples, self._constant = bool(first), 2.0**exponent

    def divides_slots_by(self, request: SlotRequest) -> float:
        """Return what the loss of a slot is divided by before the backward pass."""
        return self._constant if self._counts_samples is False else request.batch_samples

    def add(self, count: torch.Tensor | int, request: SlotRequest) -> None:
        """Take in the count of a slot.

        Raises:
            ConfigError: The task counted samples on its example batch, and counts something else here.
        """
        self._samples = request.batch_samples
        if self._counts_samples:
            if not isinstance(count, int) or count != len(request.samples):
                shown = count if isinstance(count, int) else "a tensor"
                raise task_error(
                    self._config,
                    "loss",
                    f"counted the samples of the example batch, and {shown} for a slot of {len(request.samples)}",
                    allowed="the number of samples as an int for every batch, or any count as a tensor [] int64",
                )
        elif self._counts_samples is False and request.counts:
            # Undecided is a slot that the profiling run tries before it compiles: no step is taken with it.
            self._count += count

    def take(self) -> tuple[torch.Tensor | int, torch.Tensor | None]:
        """Return the count of the global batch, and what gradients are still to be divided by; all ranks together.

        The second is None where slots were divided by the count itself.
        """
        assert self._counts_samples is not None, "nothing was decided: warm_up comes before a step"
        if self._counts_samples:
            return self._samples, None
        count = self._count.clone()
        self._count.zero_()
        if self._ranks > 1:
            dist.all_reduce(count)
        return count, count.double() / self._constant

    def drop(self) -> None:
        """Forget the slots since the last step."""
        self._count.zero_()
