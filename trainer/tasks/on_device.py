"""Members of a task as a step calls them: on the rank's device, with what they fail at told as the user's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch

from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.data.device import DataClock, leaves, map_tensors
from trainer.model.numerics import Numerics
from trainer.model.signature import Inputs, describe
from trainer.tasks.load import calling, network_name, running_network, task_error
from trainer.tasks.loss import checked_loss
from trainer.tasks.optional import largest_example
from trainer.tasks.protocol import Batch, Loss, Mode, Outputs, Task


class TaskOnDevice:
    """A task in training.

    Args:
        task: The task.
        config: The configuration.
        device: Where the model is.
        numerics: What steps compute in.

    Raises:
        ConfigError: Steps are compiled, and sizes of its inputs vary.
    """

    def __init__(self, task: Task, config: RunConfig, device: torch.device, numerics: Numerics) -> None:
        if numerics.compile and task.signature.dimensions:
            # Sizes are compiled as they come: which were seen would depend on where training was resumed.
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
        """Return the example batch."""
        batch: Batch = map_tensors(self._task.example(size), lambda tensor: tensor.to(self._device))
        return batch

    def largest_example(self, size: int) -> Batch:
        """Return the example batch with every dimension that varies at max."""
        with calling(self._config, "largest_example"):
            found = largest_example(self._task, size)
        batch: Batch = map_tensors(found, lambda tensor: tensor.to(self._device))
        return batch

    def to_model(self, batch: Batch, clock: DataClock) -> Batch:
        """Finish a batch of the loader; `clock` measures its copy, where no prefetcher has made it."""
        device = self._device
        tensors = (leaf for _, leaf in leaves(batch) if isinstance(leaf, torch.Tensor))
        if device.type != "cpu" and next(tensors).device != device:
            with clock.copying():
                batch = map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))
        with calling(self._config, "to_model"):
            finished = self._task.to_model(batch, self._mode)
        if not self._has_seen_batch:
            if misfit := find_misfit(finished, self._task):
                raise misfit_error(self._config, misfit)
            self._has_seen_batch = True
        return finished

    def inputs(self, batch: Batch) -> Inputs:
        """Return what the network takes of a batch; images in the memory layout of train.channels_last."""
        return tuple(self._numerics.lay_out_input(batch[name]) for name in self._input_names)

    def running(self) -> AbstractContextManager[None]:
        """Return what the network is run in (load.running_network)."""
        return running_network(self._config)

    def loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """Return the sum of the loss and its count.

        Raises:
            ConfigError: The task fails, or returns something else.
        """
        with calling(self._config, "loss"):
            return checked_loss(self._task.loss(outputs, batch, self._mode), self._config)


def find_misfit(batch: object, task: Task) -> str:
    """Return what of a batch is no input of the signature, in the type of the example batch; empty: all is."""
    if not isinstance(batch, Mapping):
        return f"a {type(batch).__name__}"
    example, sizes = task.example(2), dict[str, int]()
    for name, spec in task.signature.inputs.items():
        tensor = batch.get(name)
        if not isinstance(tensor, torch.Tensor):
            return f"no tensor {name}"
        expected = [
            sizes.setdefault(size, actual) if isinstance(size, str) else size
            for size, actual in zip(spec.shape, tensor.shape, strict=False)
        ]
        if tensor.dtype != example[name].dtype or tensor.ndim != len(spec.shape) or list(tensor.shape) != expected:
            return f"{name} as {describe(tensor)}"
    return ""


def misfit_error(config: RunConfig, misfit: str) -> ConfigError:
    """Return the error of a `to_model` that does not what the signature says."""
    return task_error(
        config, "to_model", f"returned {misfit}", allowed="each input of the signature, in its type and shape"
    )
