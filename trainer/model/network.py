"""The network as it trains, before it is spread over ranks: built from the seed, tried out, and ready to be wrapped.

With ddp every rank builds it, on its device. With fsdp the first rank alone does (trainer/model/meta.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from contracts.artifacts import InitialWeights
from contracts.artifacts.training import first_names
from contracts.config import RunConfig
from contracts.errors import ConfigError, UserError
from trainer.checkpoint.staging import require_storable
from trainer.data.device import map_tensors
from trainer.model.build import build_model, find_gradient_use
from trainer.model.freeze import Frozen, find_frozen, freeze, require_some_learns
from trainer.model.meta import build_on_first_rank
from trainer.model.precision import Numerics
from trainer.model.recompute import recompute_blocks
from trainer.model.trial import first_algorithms
from trainer.parallel.blocks import find_gathered_blocks
from trainer.parallel.process_group import Rank, on_first_rank
from trainer.tasks.load import network_name
from trainer.tasks.loss import checked_loss
from trainer.tasks.protocol import Batch, Mode, Task
from trainer.weights.start import StartWeights, check_inputs, find_head, start_from

# Bytes on a GPU that the passes on two samples take, in multiples of the network's own: itself, its gradients, and as
# much for activations.
_TRIAL_COPIES = 3


@dataclass(frozen=True)
class Network:
    """A network that nothing has wrapped yet."""

    module: nn.Module
    """With ddp whole, on the rank's device. With fsdp on the CPU, or on the meta device of all ranks but the first."""
    gathered_blocks: list[str]
    """With fsdp: names of the blocks that are gathered as one."""
    initial: InitialWeights | None
    """Report on the weights to start from; None: random ones. With ddp the first rank alone has them so far."""
    frozen: Frozen
    """What model.freeze names."""
    leaves_out: bool
    """A pass may leave out parameters at random, so that they get no gradient."""


@dataclass(frozen=True)
class Examination:
    """What forward and backward passes have shown of a network."""

    frozen: list[str]
    """Parameters that training would wait in vain for the gradients of."""
    gathered_blocks: list[str]
    leaves_out: bool
    """A pass may leave out parameters at random."""
    initial: InitialWeights | None = None
    """Report on the weights that it was given before."""


def make_network(
    config: RunConfig,
    task: Task,
    rank: Rank,
    numerics: Numerics,
    log: Callable[[str], None],
    start: StartWeights | None = None,
) -> Network:
    """Return the network with the weights of run.seed, or those to start from; all ranks must call this.

    Parameters that the loss does not depend on in training are frozen, since DDP would wait for their gradients.

    Args:
        config: The configuration.
        task: The task.
        rank: This process among its peers.
        numerics: What it computes in.
        log: Is told what was found about it.
        start: The weights to start from; None: random ones. The first rank alone reads them.

    Raises:
        ModelError: It cannot be built, trained or saved, or the weights are not its own.
        DataError: The weights have changed.
        ConfigError: It cannot be trained with parallel.strategy=fsdp, or as model.freeze says.
    """
    examine = partial(_examine, config=config, task=task, numerics=numerics, log=log, start=start)
    if config.parallel.strategy == "ddp":
        module = numerics.lay_out(_build(config, task, lambda module: rank.device))
        # With weights to start from only the first rank has the values that count: DistributedDataParallel sends them
        # to the others when it is made.
        found = examine(module) if start is None else _examine_on_first_rank(module, examine, rank, start)
    else:
        build = partial(_build, config, task, partial(_trial_device, device=rank.device))
        module, found = build_on_first_rank(build, examine, config, task, rank, log)
    for name in found.frozen:
        module.get_parameter(name).requires_grad_(False)
    frozen = find_frozen(module, config.model.freeze)
    if config.model.freeze:
        freeze(module, frozen)
        learns = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        require_some_learns(learns, config.model.freeze)
        elements = sum(module.get_parameter(name).numel() for name in frozen.parameters)
        kept = f", {len(frozen.norms)} normalisation layers keep their statistics" if frozen.norms else ""
        log(f"model.freeze: {len(frozen.parameters)} parameters are frozen, {elements} elements{kept}")
        if found.initial is not None:
            drawn = [*found.initial.missing, *found.initial.other_shape]
            if random := sorted(frozen.parameters.intersection(drawn)):
                log(f"warning: frozen, and random, since the weights lack them: {first_names(random)}")
    blocks = recompute_blocks(module, numerics.activation_checkpointing)
    if blocks == [""]:
        log("warning: train.activation_checkpointing found no repeated blocks: the whole network is one, saving little")
    elif blocks:
        log(f"activation checkpointing, whole: {len(blocks)} blocks")
    # As steps run it, whatever mode it was built in: the first passes decide what steps communicate.
    module.train()
    if found.initial is not None:
        log(found.initial.in_words())
    return Network(module, found.gathered_blocks, found.initial, frozen, found.leaves_out)


def _examine_on_first_rank(
    module: nn.Module, examine: Callable[..., Examination], rank: Rank, start: StartWeights
) -> Examination:
    """Return what the first rank has found of its network, or raise on all ranks what it has raised there."""

    def look(alive: Callable[[], None]) -> Examination | UserError:
        try:
            return examine(module, alive=alive)
        except UserError as error:
            return error

    answer = on_first_rank(rank.rank, rank.ranks, look, start.alive)
    if isinstance(answer, UserError):
        raise answer
    return answer


def _build(config: RunConfig, task: Task, place: Callable[[nn.Module], torch.device]) -> nn.Module:
    torch.manual_seed(config.run.seed)
    return build_model(task, config, place)


def _trial_device(module: nn.Module, device: torch.device) -> torch.device:
    """Return the rank's device, where kernels are that the CPU may lack; the CPU for what is too large for it."""
    if device.type != "cuda":
        return device
    size = sum(tensor.numel() * tensor.itemsize for tensor in [*module.parameters(), *module.buffers()])
    free, _ = torch.cuda.mem_get_info(device)
    return device if _TRIAL_COPIES * size < free else torch.device("cpu")


def _examine(
    module: nn.Module,
    *,
    config: RunConfig,
    task: Task,
    numerics: Numerics,
    log: Callable[[str], None],
    start: StartWeights | None = None,
    alive: Callable[[], None] | None = None,
) -> Examination:
    """Give a whole network its weights, and run it on zeros where it is.

    Parameters, buffers and gradients are as before the passes afterwards.
    """
    initial = None
    if start is not None:
        initial = start_from(module, start, find_head(task), alive or start.alive, partial(check_inputs, task))
    parallel = config.parallel
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    require_storable(module, network_name(config))
    batch: Batch = map_tensors(task.example(2), lambda tensor: tensor.to(device))
    inputs = [numerics.lay_out_input(batch[name]) for name in task.signature.inputs]

    def loss() -> torch.Tensor:
        mode = Mode(training=module.training, memory_format=numerics.memory_format)
        with numerics.autocast(device):
            outputs = module(*inputs)
        return checked_loss(task.loss(outputs, batch, mode), config)[0]

    with first_algorithms():
        use = find_gradient_use(module, loss)
    # What is frozen asks for no gradient.
    frozen = find_frozen(module, config.model.freeze)
    at_random = [name for name in use.at_random if name not in frozen.parameters]
    if at_random and parallel.strategy == "fsdp":
        raise ConfigError(
            f"in training {network_name(config)} leaves out parameters at random ({first_names(at_random, 3)}), "
            "and ranks gather each block together, so none can leave one out",
            allowed="with parallel.strategy=fsdp networks whose parameters all get a gradient in each pass",
            todo="set parallel.strategy=ddp",
        )
    if use.never:
        log(f"frozen, since the loss does not depend on them: {', '.join(use.never)}")
    evaluation_only = [] if at_random else use.evaluation_only
    if evaluation_only:
        log(f"frozen, since the loss depends on them in evaluation alone: {', '.join(evaluation_only)}")
    gathered = []
    if parallel.strategy == "fsdp":
        with first_algorithms():
            gathered = find_gathered_blocks(module, inputs)
    return Examination([*use.never, *evaluation_only], gathered, bool(at_random), initial)
