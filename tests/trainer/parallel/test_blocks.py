"""Which blocks are found in real architectures, and in networks that break the simple rule."""

from typing import Any

import pytest
import torch
from torch import nn

from contracts.config import ModelSection
from tests.trainer.tasks.for_tests import image_network
from trainer.parallel.blocks import find_gathered_blocks


def blocks_of(model: nn.Module, size: int = 8) -> list[str]:
    return find_gathered_blocks(model, (torch.zeros(2, 3, size, size),))


@pytest.mark.parametrize(
    ("architecture", "arguments", "expected"),
    [
        (
            "vit",
            {"hidden_size": 16, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 32},
            [f"vit.layers.{number}" for number in range(12)],
        ),
        (
            "resnet",
            {"layer_type": "bottleneck", "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [8, 10]},
            [f"resnet.encoder.stages.{s}.layers.{n}" for s, depth in ((0, 8), (1, 10)) for n in range(depth)],
        ),
    ],
)
def test_repeated_blocks_of_real_architectures(
    architecture: str, arguments: dict[str, Any], expected: list[str]
) -> None:
    section = ModelSection(architecture=architecture, arguments=arguments)
    model = image_network(section, image_size=32)
    names = find_gathered_blocks(model, (torch.zeros(2, 3, 32, 32),))
    total = sum(parameter.numel() for parameter in model.parameters())
    sizes = [sum(parameter.numel() for parameter in model.get_submodule(name).parameters()) for name in names]
    # A stage that is small beside the whole is one block.
    assert all(any(name.startswith(path) or path.startswith(name) for path in expected) for name in names)
    assert max(sizes) <= total / 4
    assert sum(sizes) >= total / 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Flatten()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(192, 192), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(192, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(images)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)  # type: ignore[no-any-return]


def test_no_block_lies_inside_another() -> None:
    assert blocks_of(Net()) == ["layers.0.0", "layers.1.0", "layers.2.0"]


def test_a_block_that_runs_twice_stays_with_the_rest() -> None:
    class Twice(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.layers[0](self.layers[0](self.layers[1](self.stem(images)))))  # type: ignore[no-any-return]

    assert blocks_of(Twice()) == ["layers.1.0"]


def test_a_block_whose_forward_is_bypassed_stays_with_the_rest() -> None:
    """Nothing would gather its parameters."""

    class Bypassed(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            hidden = self.layers[1](self.stem(images))
            return self.head(nn.functional.linear(hidden, self.layers[0][0].weight))  # type: ignore[index, no-any-return]

    assert blocks_of(Bypassed()) == ["layers.1.0"]


def test_blocks_that_share_a_parameter_stay_with_the_rest() -> None:
    model = Net()
    model.layers[2][0].weight = model.layers[0][0].weight  # type: ignore[index]
    assert blocks_of(model) == ["layers.1.0"]


def test_a_network_without_containers_is_one() -> None:
    assert blocks_of(nn.Sequential(nn.Flatten(), nn.Linear(192, 3))) == ["1"]
    assert blocks_of(nn.Sequential(Net())) == ["0.layers.0.0", "0.layers.1.0", "0.layers.2.0"]


def test_looking_for_blocks_changes_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(2, 3, 8, 8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    blocks_of(model)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training
