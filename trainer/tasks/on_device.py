"""A task in a training step: its members called on the rank's device, and the denominator of its loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist

from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.data.cursor import SlotRequest
from trainer.data.device import DataClock, leaves, map_tensors
from trainer.model.numerics import Numerics
from trainer.model.signature import Inputs, describe, find_misfit, largest_sizes, resize_inputs
from trainer.parallel.process_group import Rank
from trainer.tasks.loading import calling, network_name, running_network, task_error
from trainer.tasks.task import Batch, Loss, Mode, Outputs, Task


class TaskOnDevice:
    """A task in training.

    Raises:
        ConfigError: Steps are compiled, and sizes of its inputs vary.
    """

    def __init__(self, task: Task, config: RunConfig, device: torch.device, numerics: Numerics) -> None:
        if numerics.compile and task.signature.dimensions:
            # Each size is compiled when it first occurs, which would depend on the step of a resume.
            varying = ", ".join(task.signature.dimensions)
            raise ConfigError(
                f"train.compile is on, and inputs of {network_name(config)} vary in {varying}",
                allowed="train.compile=off for a task whose signature has dimensions",
                todo="set train.compile=off",
            )
        self._task, self._config, self._device, self._numerics = task, config, device, numerics
        self._input_names = tuple(task.signature.inputs)
        self._mode = Mode(training=True, memory_format=numerics.memory_format)
        self._has_seen_batch = False

    def example(self, size: int) -> Batch:
        """Return the example batch on the device."""
        batch: Batch = map_tensors(self._task.example(size), lambda tensor: tensor.to(self._device))
        return batch

    def largest_example(self, size: int) -> Batch:
        """Return the example batch with every dimension that varies at max, to try memory.

        Tensors of an input's shape, such as a label for each token, are resized with it.
        """
        batch, signature = self.example(size), self._task.signature
        inputs = self.inputs(batch)
        resized = resize_inputs(inputs, signature, largest_sizes(signature))
        larger = dict(zip(self._input_names, resized, strict=True))
        for name, tensor in batch.items():
            for tensor_in, tensor_out in zip(inputs, resized, strict=True):
                if name not in larger and isinstance(tensor, torch.Tensor) and tensor.shape == tensor_in.shape:
                    places = torch.arange(tensor_out.numel(), device=tensor.device) % tensor.numel()
                    larger[name] = tensor.flatten()[places].view(tensor_out.shape)
        return {**batch, **larger}

    def to_model(self, batch: Batch, clock: DataClock) -> Batch:
        """Finish a batch of the loader; `clock` measures its copy if no prefetcher has copied it."""
        device = self._device
        tensors = (leaf for _, leaf in leaves(batch) if isinstance(leaf, torch.Tensor))
        if device.type != "cpu" and next(tensors).device != device:
            with clock.copying():
                batch = map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))
        with calling(self._config, "to_model"):
            finished = self._task.to_model(batch, self._mode)
        if not self._has_seen_batch:
            check_inputs(finished, self._task, self._config)
            self._has_seen_batch = True
        return finished

    def inputs(self, batch: Batch) -> Inputs:
        """Return the network's inputs out of a batch; images in the memory layout of train.channels_last."""
        return tuple(self._numerics.lay_out_input(batch[name]) for name in self._input_names)

    def running(self) -> AbstractContextManager[None]:
        """Return the context that the network runs in (`loading.running_network`)."""
        return running_network(self._config)

    def loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """Return the sum of the loss and its count; raises as `checked_loss`."""
        with calling(self._config, "loss"):
            return checked_loss(self._task.loss(outputs, batch, self._mode), self._config)


def check_inputs(batch: object, task: Task, config: RunConfig) -> None:
    """Compare a batch of `to_model` with the signature, and its types with those of the example batch.

    Raises:
        ConfigError: An input is missing, or has another type or shape.
    """
    allowed = "each input of the signature, in its type and shape"
    if not isinstance(batch, Mapping):
        raise task_error(config, "to_model", f"returned a {type(batch).__name__}", allowed=allowed)
    example, specs = task.example(2), task.signature.inputs
    misfit = find_misfit(batch, specs, {})
    for name in specs:
        if not misfit and batch[name].dtype != example[name].dtype:
            misfit = f"{name} is {describe(batch[name])}, in the example batch {describe(example[name])}"
    if misfit:
        raise task_error(config, "to_model", f"returned another input: {misfit}", allowed=allowed)


# --- the loss ---------------------------------------------------------------------------------------------------------


def checked_loss(loss: object, config: RunConfig) -> Loss:
    """Return the result of a task's `loss`, in float32 at least.

    Raises:
        ConfigError: It is no sum and count.
    """
    match loss:
        case (torch.Tensor(ndim=0) as total, int() | torch.Tensor(ndim=0, dtype=torch.int64) as count) if (
            isinstance(loss, tuple) and total.is_floating_point() and not isinstance(count, bool)
        ):
            # Sums over many samples leave the range of lower precisions.
            return total if total.dtype == torch.float64 else total.float(), count
    shown = f"({', '.join(map(describe, loss))})" if isinstance(loss, tuple) else describe(loss)
    allowed = "the sum of the loss, a floating-point tensor [], and its count, an int or a tensor [] int64"
    raise task_error(config, "loss", f"returned {shown}", allowed=allowed)


class Denominator:
    """The count that the loss of a step is divided by, over its slots and all ranks.

    If a task counts samples, the divisor is the number of samples of the global batch, without an all-reduce. Any other
    count is summed over slots and ranks, and gradients are corrected at the end of the step. Until then the loss is
    divided by a power of two near the expected count: undivided sums would exceed the range of fp16 (65504) from 512
    samples on, at a loss scale of 2**16.
    """

    def __init__(self, config: RunConfig, rank: Rank) -> None:
        self._config, self._ranks = config, rank.ranks
        self._counts_samples: bool | None = None
        self._constant = 1.0
        self._count = torch.zeros((), dtype=torch.int64, device=rank.device)
        self._samples = 0

    def decide(self, count: torch.Tensor | int, samples: int) -> None:
        """Choose the kind of count by the first example batch; the first rank decides for all."""
        if self._counts_samples is not None:
            return
        expected = max(1, int(count)) / samples * self._config.train.global_batch_size
        counts_samples = isinstance(count, int) and count == samples
        decision = torch.tensor([counts_samples, round(math.log2(expected))], device=self._count.device)
        if self._ranks > 1:
            # The example may be random, and ranks that decide differently would deadlock or diverge.
            dist.broadcast(decision, src=0)
        self._counts_samples, self._constant = bool(decision[0]), 2.0 ** int(decision[1])

    def divides_slots_by(self, request: SlotRequest) -> float:
        """Return the divisor of a slot's loss before the backward pass."""
        return self._constant if self._counts_samples is False else request.batch_samples

    def add(self, count: torch.Tensor | int, request: SlotRequest) -> None:
        """Add the count of a slot.

        Raises:
            ConfigError: The task counted samples on its example batch, but not for this slot.
        """
        self._samples = request.batch_samples
        if self._counts_samples and (not isinstance(count, int) or count != len(request.samples)):
            raise task_error(
                self._config,
                "loss",
                "counted the samples of the example batch, and "
                f"{count if isinstance(count, int) else 'a tensor'} for a slot of {len(request.samples)}",
                allowed="the number of samples as an int for every batch, or any count as a tensor [] int64",
            )
        # Before `decide`, the profiling run tries a slot without taking a step.
        if self._counts_samples is False and request.counts:
            self._count += count

    def take(self) -> tuple[torch.Tensor | int, torch.Tensor | None]:
        """Return the count of the global batch, and the remaining divisor of gradients; all ranks together.

        The second is None where slots were divided by the count itself.
        """
        assert self._counts_samples is not None, "decide was not called: warm_up comes before a step"
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
