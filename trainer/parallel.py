"""How a model is spread over ranks: DDP, and what makes its sums the same after a resume."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.distributed import Rank


def distribute(model: nn.Module, rank: Rank) -> DistributedDataParallel:
    """Wrap a model in DDP."""
    devices = [rank.device] if rank.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices)


def settle_buckets(
    model: DistributedDataParallel, images: torch.Tensor, forward: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Run two dummy passes, so that DDP's gradient buckets are final before the first real step.

    The first step after a start reduces in the initial buckets, later ones in rebuilt buckets. Without this a resumed
    run adds gradients in another order than an undisturbed one and differs in the last bits at three and more ranks.
    Parameters, buffers and gradients are as before afterwards.

    Args:
        model: The network as it is spread over ranks.
        images: [B, 3, H, W] float32 on the model's device.
        forward: Maps them to logits as a step does, by way of `model`.
    """
    state = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    for _ in range(2):
        (forward(images).sum() * 0).backward()  # type: ignore[no-untyped-call]
    model.module.load_state_dict(state)
    model.zero_grad(set_to_none=True)
