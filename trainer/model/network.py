"""The network as it trains, before it is spread over ranks: built, on its device, with what decides how it computes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from contracts.config import RunConfig
from trainer.checkpoint.staging import require_storable
from trainer.model.attention import describe_attention, watch_attention
from trainer.model.build import build_model, find_unused
from trainer.model.precision import Numerics
from trainer.model.recompute import recompute_blocks


def make_network(
    config: RunConfig, num_classes: int, device: torch.device, numerics: Numerics, log: Callable[[str], None]
) -> nn.Module:
    """Return the network with the weights of run.seed: the same in every process.

    Parameters that the logits do not depend on are frozen, since DDP would wait for their gradients.

    Args:
        config: The configuration.
        num_classes: Width of the last layer.
        device: Where it trains.
        numerics: What it computes in.
        log: Is told what was found about it.

    Raises:
        ModelError: It cannot be built, trained or saved.
    """
    torch.manual_seed(config.run.seed)
    model = build_model(config.model, num_classes=num_classes, image_size=config.data.image_size).to(device)
    require_storable(model, config.model.architecture)
    model = numerics.lay_out(model)
    size = config.data.image_size
    images = torch.zeros(2, 3, size, size, device=device).contiguous(memory_format=numerics.memory_format)
    with numerics.autocast(device), watch_attention() as attention:
        unused = find_unused(model, images)
    for name in unused:
        model.get_parameter(name).requires_grad_(False)
    if unused:
        log(f"frozen, since the logits do not depend on them: {', '.join(unused)}")
    if attention:
        log(describe_attention(attention))
    blocks = recompute_blocks(model, numerics.activation_checkpointing)
    if blocks == [""]:
        log("warning: train.activation_checkpointing found no repeated blocks: the whole network is one, saving little")
    elif blocks:
        log(f"activation checkpointing, {numerics.activation_checkpointing}: {len(blocks)} blocks")
    return model
