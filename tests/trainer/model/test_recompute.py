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
# Convolutions of the blocks' forward passes: two each, and one for the shortcut of the stage that shrinks.
MODELS = [("resnet", RESNET, 7), ("vit", VIT, 0)]


def build(architecture: str, arguments: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return image_network(ModelSection(architecture=architecture, arguments=arguments))


class Counted(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def train(model: nn.Module) -> tuple[dict[str, torch.Tensor], Counter[str]]:
    """Return parameters, buffers and gradients after two passes, and what the second backward pass computed."""
    for number in range(2):
        torch.manual_seed(number)
        loss = model(torch.randn(4, 3, 16, 16)).square().sum()
        with Counted() as counted:
            loss.backward()
    gradients = {f"grad {name}": parameter.grad for name, parameter in model.named_parameters()}
    return {**model.state_dict(), **{name: grad for name, grad in gradients.items() if grad is not None}}, counted.names


# SyncBatchNorm takes the place of the network's norms only when ranks are spread.
@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize(("architecture", "arguments", "convolutions"), MODELS)
def test_blocks_compute_again_no_bit_changes_and_batchnorm_counts_once(
    architecture: str, arguments: dict[str, Any], convolutions: int, converted: bool
) -> None:
    expected, without = train(build(architecture, arguments))
    model = build(architecture, arguments)
    assert recompute_blocks(model, "none") == [] and len(recompute_blocks(model, "whole")) == 3
    if converted:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    found, counted = train(model)
    assert (without["convolution"], counted["convolution"]) == (0, convolutions)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    assert all(int(tensor) == 2 for name, tensor in found.items() if name.endswith("num_batches_tracked"))


def test_blocks_are_the_innermost_that_are_repeated() -> None:
    layers = find_repeated_blocks(build("vit", VIT))
    assert [type(layer).__name__ for layer in layers.values()] == ["ViTLayer"] * 3
    blocks = find_repeated_blocks(build("resnet", RESNET))
    assert [type(block).__name__ for block in blocks.values()] == ["ResNetBasicLayer"] * 3
    plain = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU(), nn.Flatten())
    assert list(find_repeated_blocks(plain)) == [""]
    assert recompute_blocks(plain, "whole") == [""]
