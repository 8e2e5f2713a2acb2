"""One optimizer step: slots forward and backward, then the update. The network and its optimizer live here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.cut import has_single_sample_slot
from trainer.data.clock import DataClock
from trainer.data.loader import SlotBatch
from trainer.data.prepare import prepare
from trainer.data.transforms import TrainTransform
from trainer.distributed import Rank
from trainer.model import build_model, find_single_sample_fault, find_unused
from trainer.optim import learning_rate, load_named_state, make_optimizer, named_state, set_learning_rate
from trainer.parallel import distribute, settle_buckets
from trainer.permutation import mix
from trainer.phases import reached


class Stepper:
    """The network of one rank, spread over all ranks, and its optimizer."""

    def __init__(self, config: RunConfig, num_classes: int, rank: Rank, log: Callable[[str], None]) -> None:
        self._config, self._rank, self._log = config, rank, log
        # Every rank builds the same weights; DDP broadcasts the first rank's all the same.
        torch.manual_seed(config.run.seed)
        model = build_model(config.model, num_classes=num_classes, image_size=config.data.image_size).to(rank.device)
        self._freeze_unused(model)
        self._parallel = distribute(model, rank)
        self._optimizer = make_optimizer(model, config.train)

    @property
    def model(self) -> nn.Module:
        """The network itself, without what spreads it."""
        return self._parallel.module  # type: ignore[no-any-return]

    def _freeze_unused(self, model: nn.Module) -> None:
        """Freeze the parameters that the logits do not depend on: DDP would wait for their gradients."""
        unused = find_unused(model, self._images(2))
        for name in unused:
            model.get_parameter(name).requires_grad_(False)
        if unused:
            self._log(f"frozen, since the logits do not depend on them: {', '.join(unused)}")

    def check_slots_of_one(self, samples: int, slot_size: int) -> None:
        """Refuse slots of one sample where the model cannot train on them; say so where they are only noisy.

        Raises:
            ConfigError: There are such slots and the model cannot.
        """
        batch = self._config.train.global_batch_size
        if not has_single_sample_slot(samples, global_batch_size=batch, slot_size=slot_size):
            return
        given = (
            f"{samples} training samples in batches of {batch} (train.global_batch_size) and slots of {slot_size} "
            "(parallel.slot_size) leave a slot of one sample"
        )
        todo = "choose train.global_batch_size and parallel.slot_size so that no slot has a single sample"
        fault = find_single_sample_fault(self.model, self._images(1))
        if fault is not None:
            raise ConfigError(
                f"{given}, on which {self._config.model.architecture} cannot train: {fault}",
                allowed="slots of two samples or more for this model",
                todo=todo,
            )
        if any(isinstance(module, _BatchNorm) for module in self.model.modules()):
            self._log(f"warning: {given}, and BatchNorm's statistics of one sample are noisy: {todo}")

    def settle(self, slot_size: int) -> None:
        """Make the first step's sums those of all steps (trainer/parallel.py); before state is loaded."""
        settle_buckets(self._parallel, self._images(slot_size))

    def _images(self, number: int) -> torch.Tensor:
        size = self._config.data.image_size
        return torch.zeros(number, 3, size, size, device=self._rank.device)

    # --- state --------------------------------------------------------------------------------------------------------

    def load(self, model: dict[str, torch.Tensor], optimizer: dict[str, torch.Tensor]) -> None:
        """Take over the tensors of a checkpoint."""
        self.model.load_state_dict(model)
        load_named_state(self.model, self._optimizer, optimizer)

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's tensors by name."""
        return named_state(self.model, self._optimizer)

    # --- steps --------------------------------------------------------------------------------------------------------

    def compute(self, slot: SlotBatch, transform: TrainTransform, clock: DataClock) -> torch.Tensor:
        """Run one slot forward and backward; return its part of the loss, summed over samples."""
        request = slot.request
        given = prepare(slot, transform, self._rank.device, clock)
        # Dropout draws from torch's global generator: its stream is that of the slot, whoever computes it.
        torch.manual_seed(mix(self._config.run.seed, request.step, request.slot))
        weight = 1.0 if request.counts else 0.0
        with nullcontext() if request.last_of_step else self._parallel.no_sync():
            reached("forward")
            loss = given.loss_sum(self._parallel(given.images)) * weight
            reached("backward")
            # DDP divides by the number of ranks; the true mean divides by the samples of the global batch.
            (loss * (self._rank.ranks / request.batch_samples)).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self, step: int, *, total_steps: int) -> float:
        """Take optimizer step `step` (from 0) with the gradients of its slots; return the learning rate."""
        rate = learning_rate(step, total_steps=total_steps, train=self._config.train)
        set_learning_rate(self._optimizer, rate)
        reached("optimizer")
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return rate
