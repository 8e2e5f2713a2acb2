"""DDP: every rank holds the whole network; gradients are averaged in buckets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.model.trial import buffers_restored
from trainer.parallel.process_group import Rank


class Replicated:
    """A network of which every rank has a copy."""

    def __init__(self, model: nn.Module, rank: Rank, *, bucket_mb: float, find_unused_parameters: bool) -> None:
        self._ddp = DistributedDataParallel(
            model,
            device_ids=[rank.device] if rank.device.type == "cuda" else None,
            bucket_cap_mb=bucket_mb,
            find_unused_parameters=find_unused_parameters,
            # Otherwise gradients are held twice. They are views of buckets after the last slot of a step; until then,
            # as after zero_grad(set_to_none=True), they have memory of their own, so sums come in the same order.
            gradient_as_bucket_view=True,
        )
        # The stepper shares buffers at the start of every step, for both strategies alike. An attribute, since torch
        # 2.13 renames the argument.
        self._ddp.broadcast_buffers = False
        self.module = model

    @property
    def wrapped(self) -> nn.Module:
        """What a step calls as the network; it sees to it that gradients are averaged."""
        return self._ddp

    def reducing(self, now: bool) -> AbstractContextManager[None]:
        """Return a context for a forward and a backward pass: gradients are averaged over ranks in it, or add up."""
        return nullcontext() if now else self._ddp.no_sync()

    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        """Run two dummy passes, so that DDP's gradient buckets are final before the first real step.

        The first step after a start reduces in the initial buckets, later ones in rebuilt buckets. Without this a
        resumed run adds gradients in another order than an undisturbed one and differs in the last bits at three and
        more ranks. Parameters, buffers and gradients are as before afterwards. Later calls, with slots of other sizes,
        compile for these.

        Args:
            loss: Computes a loss as a step does, by way of `wrapped`.
        """
        with buffers_restored(self.module):
            for _ in range(2):
                (loss() * 0).backward()  # type: ignore[no-untyped-call]
        self.module.zero_grad(set_to_none=True)
