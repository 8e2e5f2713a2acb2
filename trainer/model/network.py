"""The network as it trains, before it is spread over ranks: built from the seed, tried out, and ready to be wrapped."""

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

# Bytes on a GPU that the passes on two samples take, in multiples of the network's own: itself, its gradients, and as
# much for activations.
_TRIAL_COPIES = 3


@dataclass(frozen=True)
class Network:
    """A network that nothing has wrapped yet."""

    module: nn.Module
    """With ddp on the device of the rank, with fsdp on the CPU. With weights to start from, the values that count are
    those of the first rank: it sends them to the others when the network is spread."""
    initial: InitialWeights | None
    """Report on the weights to start from; None: random ones."""
    frozen: Frozen
    """Named by model.freeze."""
    leaves_out: bool
    """A pass may leave out parameters at random, so that they get no gradient."""


def make_network(
    config: RunConfig,
    task: Task,
    rank: Rank,
    numerics: Numerics,
    log: Callable[[str], None],
    start: StartWeights | None = None,
) -> Network:
    """Return the network with the weights of run.seed, or those of `start`; all ranks must call this.

    Parameters that the loss does not depend on in training are frozen, since DDP would wait for their gradients.

    Raises:
        ModelError: It cannot be built, trained or saved, or the weights do not fit it.
        DataError: The weights have changed.
        ConfigError: It cannot be trained with parallel.strategy=fsdp, or as model.freeze says.
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
        kept = f", {len(frozen.norms)} normalisation layers keep their statistics" if frozen.norms else ""
        log(f"model.freeze: {len(frozen.parameters)} parameters are frozen, {elements} elements{kept}")
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
    # As steps run it, whatever mode it was built in: the first passes decide what steps communicate.
    module.train()
    return Network(module, initial, frozen, leaves_out)


def check_slots_of_one(
    model: nn.Module, inputs: Inputs, config: RunConfig, samples: int, slot_size: int, log: Callable[[str], None]
) -> None:
    """Refuse slots of one sample where a model cannot train on them (BatchNorm); warn where they are only noisy.

    `inputs` are those of one sample, `samples` those of an epoch.

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
    if not any(isinstance(module, _BatchNorm) and module.training for module in model.modules()):
        return
    try:
        with torch.no_grad(), buffers_restored(model), first_algorithms():
            model(*inputs)
    except ValueError as error:
        raise ConfigError(
            f"{given}, on which {network_name(config)} cannot train: {error}",
            allowed="slots of two samples or more for this model",
            todo=todo,
        ) from error
    log(f"warning: {given}, and BatchNorm's statistics of one sample are noisy: {todo}")


def _trial_device(module: nn.Module, *, device: torch.device, may_be_large: bool) -> torch.device:
    """Return the device of the rank, where kernels are that the CPU may lack; the CPU for what is too large for it."""
    if device.type != "cuda" or not may_be_large:
        return device
    size = sum(tensor.numel() * tensor.itemsize for tensor in [*module.parameters(), *module.buffers()])
    free, _ = torch.cuda.mem_get_info(device)
    return device if _TRIAL_COPIES * size < free else torch.device("cpu")


def _freeze_unused(
    module: nn.Module, config: RunConfig, task: Task, numerics: Numerics, log: Callable[[str], None]
) -> bool:
    """Freeze parameters without a gradient in training; return whether passes leave out parameters at random.

    It takes a forward and a backward pass on the example batch; where parameters have no gradient, a second one in
    evaluation mode tells them from those of layers that training leaves out at random. Values and buffers stay.
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
    # Ranks must find the same.
    random.seed(config.run.seed)
    before = _random_states(device)
    with buffers_restored(module), first_algorithms():
        unused = without_gradient(training=True)
        draws = _random_states(device) != before
        never = without_gradient(training=False) & unused if unused else set()
    random.setstate(python_state)
    module.train(was_training)
    at_random = (unused - never if draws else set()) - find_frozen(module, config.model.freeze).parameters
    if at_random and config.parallel.strategy == "fsdp":
        raise ConfigError(
            f"in training {network_name(config)} leaves out parameters at random "
            f"({first_names(sorted(at_random), 3)}), and ranks gather each block together, so none can leave one out",
            allowed="with parallel.strategy=fsdp networks whose parameters all get a gradient in each pass",
            todo="set parallel.strategy=ddp",
        )
    in_order = [name for name, _ in module.named_parameters()]
    in_evaluation = set() if draws else unused - never
    for names, why in (
        (never, "since the loss does not depend on them"),
        (in_evaluation, "since the loss depends on them in evaluation alone"),
    ):
        if names:
            log(f"frozen, {why}: {', '.join(name for name in in_order if name in names)}")
    for name in never | in_evaluation:
        module.get_parameter(name).requires_grad_(False)
    return bool(at_random)


def _random_states(device: torch.device) -> tuple[object, ...]:
    """Return the states of the generators that a network may decide by; they differ once a number was drawn."""
    on_device = torch.cuda.get_rng_state(device).tolist() if device.type == "cuda" else []
    return random.getstate(), torch.get_rng_state().tolist(), on_device


def _take_weights(module: nn.Module, task: Task, rank: Rank, start: StartWeights) -> InitialWeights:
    """Give the first rank's network the weights to start from; return the report on all ranks, or raise on all."""

    def take(alive: Callable[[], None]) -> InitialWeights | UserError:
        try:
            return start_from(module, start, task, alive)
        except UserError as error:
            return error

    taken = on_first_rank(rank.rank, rank.ranks, take, start.alive)
    if isinstance(taken, UserError):
        raise taken
    return taken
