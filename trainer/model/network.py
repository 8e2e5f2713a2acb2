"""Build the network for training: seeded weights, unused parameters frozen, ready for DDP or FSDP."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from contracts.artifacts import InitialWeights
from contracts.artifacts.training import first_names
from contracts.config import RunConfig
from contracts.errors import ConfigError, ModelError, UserError
from trainer.checkpoint.staging import require_storable
from trainer.data.device import map_tensors
from trainer.launch.choices import slot_sizes
from trainer.model.build import build_model
from trainer.model.freeze import Frozen, find_frozen, freeze, require_some_learns
from trainer.model.numerics import Numerics
from trainer.model.recompute import recompute_blocks
from trainer.model.signature import Inputs
from trainer.model.trial import buffers_restored, first_algorithms
from trainer.parallel.process_group import Rank, on_first_rank
from trainer.tasks.loading import network_name
from trainer.tasks.on_device import checked_loss
from trainer.tasks.task import Batch, Mode, Task
from trainer.weights.start import StartWeights, start_from

# GPU memory of the trial passes, in multiples of the network's size: weights, gradients and activations.
_TRIAL_COPIES = 3


@dataclass(frozen=True)
class Network:
    """A network before it is wrapped."""

    module: nn.Module
    """With ddp on the rank's device, with fsdp on the CPU. Only rank 0 has the initial weights of model.weights; it
    broadcasts them when the network is wrapped."""
    initial: InitialWeights | None
    """Report on the weights of model.weights; None: random weights."""
    frozen: Frozen
    """Parameters and layers frozen by model.freeze."""
    leaves_out: bool
    """Whether a pass may leave parameters without a gradient at random (layer drop)."""


def make_network(
    config: RunConfig,
    task: Task,
    rank: Rank,
    numerics: Numerics,
    log: Callable[[str], None],
    start: StartWeights | None = None,
) -> Network:
    """Return the network with the weights of run.seed, or those of `start`; all ranks must call this.

    Parameters that do not affect the training loss are frozen, since DDP would wait for their gradients.

    Raises:
        ModelError: It cannot be built, trained or saved, or the weights do not match it.
        DataError: The weights have changed.
        ConfigError: It cannot be trained with parallel.strategy=fsdp or with model.freeze.
    """
    is_sharded = config.parallel.strategy == "fsdp"
    torch.manual_seed(config.run.seed)
    module = build_model(task, config, partial(_trial_device, device=rank.device, may_be_large=is_sharded))
    require_storable(module, network_name(config))
    if not is_sharded:
        module = numerics.lay_out(module)
    leaves_out = _freeze_unused(module, config, task, numerics, log)
    if is_sharded:
        module.to("cpu")
    frozen = find_frozen(module, config.model.freeze)
    if config.model.freeze:
        freeze(module, frozen)
        learns = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        require_some_learns(learns, config.model.freeze)
        elements = sum(module.get_parameter(name).numel() for name in frozen.parameters)
        norms_note = f", {len(frozen.norms)} normalisation layers keep their statistics" if frozen.norms else ""
        log(f"model.freeze: {len(frozen.parameters)} parameters are frozen, {elements} elements{norms_note}")
    initial = None if start is None else _take_weights(module, task, rank, start)
    if initial is not None:
        if random_ones := sorted(frozen.parameters.intersection([*initial.missing, *initial.other_shape])):
            log(f"warning: frozen, and random, since the weights lack them: {first_names(random_ones)}")
        log(initial.in_words())
    blocks = recompute_blocks(module, numerics.activation_checkpointing)
    if blocks == [""]:
        log("warning: train.activation_checkpointing found no repeated blocks: the whole network is one, saving little")
    elif blocks:
        log(f"activation checkpointing, whole: {len(blocks)} blocks")
    # Training mode, as in steps: the first passes decide the DDP buckets.
    module.train()
    return Network(module, initial, frozen, leaves_out)


def check_slots_of_one(
    model: nn.Module, inputs: Inputs, config: RunConfig, samples: int, slot_size: int, log: Callable[[str], None]
) -> None:
    """Check slots of a single sample, on which BatchNorm fails or has noisy statistics (a warning).

    `inputs` are of one sample; `samples` is the number per epoch.

    Raises:
        ConfigError: A slot has one sample and the model cannot train on it.
    """
    batch = config.train.global_batch_size
    if 1 not in slot_sizes(samples, global_batch_size=batch, slot_size=slot_size):
        return
    problem = (
        f"{samples} training samples in batches of {batch} (train.global_batch_size) and slots of {slot_size} "
        "(parallel.slot_size) leave a slot of one sample"
    )
    todo = "choose train.global_batch_size and parallel.slot_size so that no slot has a single sample"
    model.train()
    if not any(isinstance(module, _BatchNorm) and module.training for module in model.modules()):
        return
    try:
        with torch.no_grad(), buffers_restored(model), first_algorithms():
            model(*inputs)
    except ValueError as error:
        raise ConfigError(
            f"{problem}, on which {network_name(config)} cannot train: {error}",
            allowed="slots of two samples or more for this model",
            todo=todo,
        ) from error
    log(f"warning: {problem}, and BatchNorm's statistics of one sample are noisy: {todo}")


def _trial_device(module: nn.Module, *, device: torch.device, may_be_large: bool) -> torch.device:
    """Return the rank's device, or the CPU if the network may not fit on it."""
    if device.type != "cuda" or not may_be_large:
        return device
    size = sum(tensor.numel() * tensor.itemsize for tensor in [*module.parameters(), *module.buffers()])
    free, _ = torch.cuda.mem_get_info(device)
    return device if _TRIAL_COPIES * size < free else torch.device("cpu")


def _freeze_unused(
    module: nn.Module, config: RunConfig, task: Task, numerics: Numerics, log: Callable[[str], None]
) -> bool:
    """Freeze parameters without a gradient in training; return whether passes skip parameters at random.

    Runs a forward and a backward pass on the example batch. If parameters have no gradient, a second run in evaluation
    mode distinguishes unused ones from those of randomly dropped layers. Values and buffers do not change.
    """
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    batch: Batch = map_tensors(task.example(2), lambda tensor: tensor.to(device))
    inputs = [numerics.lay_out_input(batch[name]) for name in task.signature.inputs]

    def without_gradient(*, training: bool) -> set[str]:
        module.train(training)
        with numerics.autocast(device):
            outputs = module(*inputs)
        mode = Mode(training=training, memory_format=numerics.memory_format)
        loss = checked_loss(task.loss(outputs, batch, mode), config)[0]
        if not loss.requires_grad and training:
            raise ModelError(
                f"{network_name(config)} cannot be trained: its loss has no gradient",
                allowed="a network whose outputs depend on its parameters",
                todo="correct model.architecture, model.arguments or the task",
            )
        if loss.requires_grad:
            (loss * 0).backward()  # type: ignore[no-untyped-call]
        named = {name for name, tensor in module.named_parameters() if tensor.requires_grad and tensor.grad is None}
        module.zero_grad(set_to_none=True)
        return named

    was_training, python_state = module.training, random.getstate()
    # All ranks must get the same result.
    random.seed(config.run.seed)
    before = _random_states(device)
    with buffers_restored(module), first_algorithms():
        unused = without_gradient(training=True)
        draws = _random_states(device) != before
        independent = without_gradient(training=False) & unused if unused else set()
    random.setstate(python_state)
    module.train(was_training)
    dropped = (unused - independent if draws else set()) - find_frozen(module, config.model.freeze).parameters
    if dropped and config.parallel.strategy == "fsdp":
        raise ConfigError(
            f"in training {network_name(config)} leaves out parameters at random "
            f"({first_names(sorted(dropped), 3)}), and ranks gather each block together, so none can leave one out",
            allowed="with parallel.strategy=fsdp networks whose parameters all get a gradient in each pass",
            todo="set parallel.strategy=ddp",
        )
    in_order = [name for name, _ in module.named_parameters()]
    evaluation_only = set() if draws else unused - independent
    for names, reason in (
        (independent, "since the loss does not depend on them"),
        (evaluation_only, "since the loss depends on them in evaluation alone"),
    ):
        if names:
            log(f"frozen, {reason}: {', '.join(name for name in in_order if name in names)}")
    for name in independent | evaluation_only:
        module.get_parameter(name).requires_grad_(False)
    return bool(dropped)


def _random_states(device: torch.device) -> tuple[object, ...]:
    """Return the states of the random generators; they change when a number is drawn."""
    on_device = torch.cuda.get_rng_state(device).tolist() if device.type == "cuda" else []
    return random.getstate(), torch.get_rng_state().tolist(), on_device


def _take_weights(module: nn.Module, task: Task, rank: Rank, start: StartWeights) -> InitialWeights:
    """Load model.weights into rank 0's network; return the report, or raise its error, on all ranks."""

    def take(alive: Callable[[], None]) -> InitialWeights | UserError:
        try:
            return start_from(module, start, task, alive)
        except UserError as error:
            return error

    result = on_first_rank(rank.rank, rank.ranks, take, start.alive)
    if isinstance(result, UserError):
        raise result
    return result
