"""One optimizer step: slots forward and backward, then the update of the network and all that follows it.

A step never waits for the device: losses and gradient counts stay there until they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal

import torch
from torch import nn

from contracts.config import RunConfig
from contracts.errors import ConfigError, ModelError
from trainer.checkpoint.loading import Groups, require_groups, require_optimizer_state, require_same
from trainer.data.device import DataClock
from trainer.data.loader import SlotBatch
from trainer.data.randomness import hash_integers
from trainer.launch.choices import slot_sizes
from trainer.model.ema import MovingAverage
from trainer.model.freeze import keep_statistics
from trainer.model.network import check_slots_of_one, make_network
from trainer.model.numerics import GradientGuard, LossScale, Numerics
from trainer.model.trial import buffers_restored
from trainer.optim import (
    clip_divisor,
    gradient_norm,
    load_named_state,
    make_optimizer,
    named_state,
    rate_factors,
    set_learning_rate,
    step_optimizer,
)
from trainer.parallel.process_group import Rank
from trainer.parallel.spread import (
    SpreadNetwork,
    full_tensor,
    load_state,
    release_gathered,
    share_buffers,
    written_buffers,
)
from trainer.tasks.loading import network_name
from trainer.tasks.on_device import Denominator, TaskOnDevice
from trainer.tasks.task import Batch, Loss, Outputs, Task
from trainer.weights.start import StartWeights

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Update:
    """Result of an optimizer step; tensors on the device."""

    skipped: torch.Tensor
    """[] 1.0 if the step was skipped because of non-finite gradients or a zero loss denominator, else 0.0."""
    count: torch.Tensor | int
    """Loss denominator of the global batch."""


class Stepper:
    """The network of one rank, spread over all ranks, with its optimizer, average and loss scale.

    `initial` reports on the weights of model.weights. `on_model_input` is called with each batch before the network.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        rank: Rank,
        numerics: Numerics,
        log: Callable[[str], None],
        start: StartWeights | None = None,
    ) -> None:
        self._config, self._rank, self._numerics, self._log = config, rank, numerics, log
        self._task = TaskOnDevice(task, config, rank.device, numerics)
        self._denominator = Denominator(config, rank)
        train, self._max_norm = config.train, config.train.clip_grad_norm
        if warning := numerics.find_slow(rank.device):
            log(f"warning: {warning}")
        numerics.apply(rank.device)
        network = make_network(config, task, rank, numerics, log, start)
        factors = rate_factors(network.module, train)
        self.initial = network.initial
        self._parallel = SpreadNetwork(
            network.module,
            config.parallel,
            rank,
            log,
            name=network_name(config),
            dtype=numerics.dtype,
            find_unused=network.leaves_out,
        )
        # SyncBatchNorm may have replaced modules.
        keep_statistics(self.model, network.frozen.norms)
        # Compiled per slot size: a dynamic graph would depend on the sizes seen before a resume.
        wrapped = self._parallel.wrapped
        self._forward = torch.compile(wrapped, dynamic=False) if numerics.compile else wrapped
        self._optimizer = make_optimizer(self.model, train, factors, task)
        self._average = MovingAverage(self.model, train.ema_decay) if train.ema_decay else None
        self._slots_of_step = 0
        # Buffers written by training passes: names, and (module, attribute), since a module may replace the tensor.
        self._written: set[str] = set()
        self._changing: list[tuple[nn.Module, str]] | None = None
        self._scale = LossScale(rank.device) if numerics.precision == "fp16" else None
        self.guard = GradientGuard(rank.device)
        self.on_model_input: Callable[[Batch], None] | None = None

    @property
    def model(self) -> nn.Module:
        """The network without its DDP wrapper."""
        return self._parallel.module

    def check_slots_of_one(self, samples: int, slot_size: int, config: RunConfig | None = None) -> None:
        """Raise ConfigError if there are slots of one sample and the model cannot train on them.

        `samples` is the number per epoch. `config`, by default the stepper's, has the global batch of all machines.
        """
        inputs = self._task.inputs(self._task.example(1))
        check_slots_of_one(self.model, inputs, config or self._config, samples, slot_size, self._log)
        release_gathered(self.model)

    def warm_up(self, slot_size: int, samples: int | None = None) -> None:
        """Run dummy passes so that gradient buckets are final (trainer/parallel/), and compile; before state is loaded.

        With `samples` (per epoch), the smaller slots of the last batch are compiled too, while no peer waits for them.

        Raises:
            ConfigError: torch.compile cannot compile the network.
            ModelError: A forward pass writes to a buffer that no checkpoint holds.
        """
        smaller: list[int] = []
        if self._numerics.compile and samples is not None:
            batch = self._config.train.global_batch_size
            smaller = slot_sizes(samples, global_batch_size=batch, slot_size=slot_size)
        for size in dict.fromkeys([slot_size, *smaller]):
            with self._naming_compiler() if self._numerics.compile else nullcontext():
                self._parallel.warm_up(partial(self._example_loss, self._task.example(size), size))
        paths = (name.rpartition(".") for name in sorted(self._written))
        self._changing = [(self.model.get_submodule(path), attribute) for path, _, attribute in paths]
        self._require_saved_buffers()

    def _example_loss(self, batch: Batch, size: int) -> torch.Tensor:
        # Recorded in every pass: some buffers are written in the first one only, and then restored.
        with written_buffers(self.model) as names:
            outputs = self._outputs(batch)
        self._written |= names
        loss, count = self._task.loss(outputs, batch)
        self._denominator.decide(count, size)
        return loss

    @contextmanager
    def _naming_compiler(self) -> Iterator[None]:
        """Raise failures of torch.compile as ConfigError; errors of the network's code pass through."""
        # Imported late: it takes seconds.
        from torch._dynamo.exc import TorchDynamoException

        try:
            yield
        except TorchDynamoException as error:
            if isinstance(inner := getattr(error, "inner_exception", None), torch.OutOfMemoryError):
                raise inner from error
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise ConfigError(
                f"train.compile is on, and torch.compile failed on {network_name(self._config)}: "
                f"{type(error).__name__}: {lines[0] if lines else 'no message'}",
                allowed="a network that torch.compile takes, on a machine with a C++ compiler (CPU) or Triton (GPU)",
                todo="set train.compile=off, or correct what the message names",
            ) from error

    def _require_saved_buffers(self) -> None:
        """Raise ModelError if training writes to a buffer with persistent=False."""
        saved = {id(tensor) for tensor in self.model.state_dict(keep_vars=True).values()}
        unsaved = [name for name in sorted(self._written) if id(self.model.get_buffer(name)) not in saved]
        if unsaved:
            raise ModelError(
                f"{network_name(self._config)}: training writes to {', '.join(unsaved)}, registered with "
                "persistent=False, so neither a checkpoint nor an export would have what it holds",
                allowed="buffers with persistent=False that stay as they are built",
                todo="register what training learns with persistent=True (the default), and keep what each pass "
                "computes anew from its inputs in no buffer",
            )

    # --- state --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensors]:
        """Return the tensors that a resume needs, by group and name.

        They are not copies, and some are sharded (trainer/parallel/): copy them before the next step.
        """
        groups = {
            "model": self.model.state_dict(),
            "optimizer": named_state(self.model, self._optimizer),
            "guard": self.guard.state(),
        }
        if self._average is not None:
            groups["ema"] = self._average.state()
        if self._scale is not None:
            groups["scaler"] = self._scale.state()
        return groups

    def share_buffers(self) -> None:
        """Broadcast all buffers of rank 0; every rank must call this."""
        share_buffers(self.model.buffers())

    def _buffers_that_change(self) -> Iterable[torch.Tensor]:
        """Return the buffers that training passes write to; before `warm_up`, all buffers."""
        if self._changing is None:
            return self.model.buffers()
        return [getattr(module, name) for module, name in self._changing]

    def full_model_state(self) -> Tensors:
        """Return unsharded parameters and buffers on rank 0; all ranks must call this."""
        gathered = {}
        for name, tensor in self.model.state_dict().items():
            # Gathered tensors move to the CPU at once: the whole network may not fit on the device.
            full = full_tensor(tensor)
            if self._rank.is_first:
                gathered[name] = full if full is tensor else full.cpu()
        return gathered

    def load(self, groups: Groups, *, where: str) -> None:
        """Load a checkpoint saved with any strategy and number of ranks; `where` is its URI.

        Raises:
            DataError: The tensors do not match this network and its optimizer.
        """
        current = self.state()
        require_groups(groups, set(current) - {"guard"}, where=where)
        require_same(groups["model"], current["model"], where=where)
        if "ema" in current:
            require_same(groups["ema"], current["ema"], where=where)
        require_optimizer_state(groups["optimizer"], dict(self.model.named_parameters()), where=where)
        load_state(self.model, groups["model"])
        load_named_state(self.model, self._optimizer, groups["optimizer"])
        if "guard" in groups:
            self.guard.load({name: value[...] for name, value in groups["guard"].items()})
        if self._average is not None:
            self._average.load(groups["ema"])
        if self._scale is not None:
            self._scale.load({name: value[...] for name, value in groups["scaler"].items()})

    def load_evaluated(self, groups: Groups) -> None:
        """Load the evaluated weights of a checkpoint as parameters; the optimizer is unchanged."""
        load_state(self.model, groups["model"])
        if self._average is not None:
            self._average.load(groups["ema"])
            self._average.copy_to_model()

    @property
    def evaluated_weights(self) -> Literal["model", "ema"]:
        """Checkpoint group of the evaluated and published weights."""
        return "model" if self._average is None else "ema"

    @contextmanager
    def evaluation_weights(self) -> Iterator[nn.Module]:
        """Yield the network with the evaluated weights; its parameters are restored afterwards."""
        with nullcontext() if self._average is None else self._average.in_place():
            yield self.model

    # --- steps --------------------------------------------------------------------------------------------------------

    def compute(self, slot: SlotBatch, clock: DataClock, *, largest: bool = False, alone: bool = False) -> torch.Tensor:
        """Run one slot forward and backward; return the sum of its loss, [].

        With `largest`, samples have the maximum length. With `alone`, other ranks need not call it: there is no
        collective before the last slot of a step.
        """
        request = slot.request
        # Dropout uses torch's global generator, seeded by the slot, whichever rank computes it.
        torch.manual_seed(hash_integers(self._config.run.seed, request.step, request.slot))
        task = self._task
        batch = task.largest_example(len(request.samples)) if largest else task.to_model(slot.batch, clock)
        if self.on_model_input is not None:
            self.on_model_input(batch)
        if self._slots_of_step == 0 and not alone:
            # Running statistics differ between ranks after a step: rank 0's are authoritative.
            share_buffers(self._buffers_that_change())
        # A repeated slot, run for the collectives only, must not change buffers. Rank 0, whose statistics count, may
        # have no slot in a step: then it keeps those of its neighbour's slot.
        repeated = not request.counts and self._slots_of_step > 0
        self._slots_of_step = 0 if request.last_of_step else self._slots_of_step + 1
        with self._parallel.reducing(request.last_of_step), buffers_restored(self.model) if repeated else nullcontext():
            loss, count = self._slot_loss(batch)
            loss = loss * (1.0 if request.counts else 0.0)
            self._denominator.add(count, request)
            # Gradients are averaged over ranks; the loss is divided by the denominator of the global batch.
            share = loss * (self._rank.ranks / self._denominator.divides_slots_by(request))
            (share if self._scale is None else share * self._scale.scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _slot_loss(self, batch: Batch) -> Loss:
        return self._task.loss(self._outputs(batch), batch)

    def _outputs(self, batch: Batch) -> Outputs:
        with self._numerics.autocast(self._rank.device), self._task.running():
            return self._forward(*self._task.inputs(batch))

    def update(self, step: int, rate: float) -> Update:
        """Take optimizer step `step` (from 0) with the gradients of its slots; all ranks must call this."""
        scale = None if self._scale is None else self._scale.scale
        norm = gradient_norm(self.model.parameters(), self._rank.device)
        if scale is not None:
            norm = norm / scale
        count, correction = self._denominator.take()
        if correction is not None:
            # A step with denominator 0 has no gradient.
            norm = torch.where(correction == 0, 0.0, norm / correction)
        nonfinite = self.guard.update(norm, step, scale)
        skipped = nonfinite if correction is None else torch.maximum(nonfinite, (correction == 0).float())
        clip = None if self._max_norm is None else clip_divisor(norm, self._max_norm)
        divisors = [divisor for divisor in (scale, correction, clip) if divisor is not None]
        set_learning_rate(self._optimizer, rate)
        step_optimizer(self._optimizer, found_inf=skipped, divisor=reduce(torch.mul, divisors) if divisors else None)
        self._optimizer.zero_grad(set_to_none=True)
        if self._scale is not None:
            self._scale.update(nonfinite)
        if self._average is not None:
            self._average.update(step, skipped)
        return Update(skipped, count)

    def drop_slots(self) -> None:
        """Discard the slots since the last update, and their gradients."""
        self._optimizer.zero_grad(set_to_none=True)
        self._slots_of_step = 0
        self._denominator.drop()

    @property
    def loss_scale(self) -> torch.Tensor | None:
        """The loss scale of fp16, on the device."""
        return None if self._scale is None else self._scale.scale
