"""Slots of one sample, which BatchNorm cannot train on, or only noisily."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.launch.auto import slot_sizes
from trainer.model.build import Inputs, find_single_sample_fault
from trainer.tasks.load import network_name


def check_slots_of_one(
    model: nn.Module,
    inputs: Inputs,
    config: RunConfig,
    samples: int,
    slot_size: int,
    log: Callable[[str], None],
) -> None:
    """Refuse slots of one sample where a model cannot train on them; say so where they are only noisy.

    Args:
        model: The network.
        inputs: Of one sample.
        config: The configuration.
        samples: Of an epoch.
        slot_size: Of a full slot.
        log: Is told of noisy ones.

    Raises:
        ConfigError: There are such slots and the model cannot.
    """
    batch = config.train.global_batch_size
    if 1 not in slot_sizes(samples, global_batch_size=batch, slot_size=slot_size):
        return
    given = (
        f"{samples} training samples in batches of {batch} (train.global_batch_size) and slots of {slot_size} "
        "(parallel.slot_size) leave a slot of one sample"
    )
    todo = "choose train.global_batch_size and parallel.slot_size so that no slot has a single sample"
    model.train()
    fault = find_single_sample_fault(model, inputs)
    has_batch_norm = any(isinstance(module, _BatchNorm) and module.training for module in model.modules())
    if fault is not None:
        raise ConfigError(
            f"{given}, on which {network_name(config)} cannot train: {fault}",
            allowed="slots of two samples or more for this model",
            todo=todo,
        )
    if has_batch_norm:
        log(f"warning: {given}, and BatchNorm's statistics of one sample are noisy: {todo}")
