"""Activation checkpointing computes again what it must, and no number changes."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.config import ModelSection
from tests.trainer.tasks.for_tests import image_network
from trainer.model.recompute import find_repeated_blocks, recompute_blocks

RESNET = {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 1]}
VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "patch_size": 8,
    "hidden_dropout_prob": 0.2,
}


class Convolutions(TorchDispatchMode):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def build(architecture: str, arguments: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return image_network(ModelSection(architecture=architecture, arguments=arguments))


def train(model: nn.Module) -> tuple[dict[str, torch.Tensor], int]:
    """Return parameters, buffers and gradients after two passes, and the second backward pass's convolutions."""
    for number in range(2):
        torch.manual_seed(number)
        loss = model(torch.randn(4, 3, 16, 16)).square().sum()
        with Convolutions() as counted:
            loss.backward()
    gradients = {f"grad {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {**model.state_dict(), **gradients}, counted.names["convolution"]


# SyncBatchNorm takes the place of the norms only when ranks are spread. Of the forward passes of the blocks there are
# two convolutions each, and one for the shortcut of the stage that shrinks.
@pytest.mark.parametrize(
    ("architecture", "arguments", "convolutions", "converted"),
    [("resnet", RESNET, 7, False), ("resnet", RESNET, 7, True), ("vit", VIT, 0, False)],
)
def test_blocks_compute_again_no_bit_changes_and_batchnorm_counts_once(
    architecture: str, arguments: dict[str, Any], convolutions: int, converted: bool
) -> None:
    expected, _ = train(build(architecture, arguments))
    model = build(architecture, arguments)
    assert len(find_repeated_blocks(model)) == len(recompute_blocks(model, "whole")) == 3
    if converted:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    gradients, counted = train(model)
    assert counted == convolutions
    assert gradients.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(expected[name], gradients[name])] == []
