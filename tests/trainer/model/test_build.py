"""Models by configuration or by callable, messages where one cannot be built, and parameters without a gradient."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from contracts.config import ModelSection, RunConfig
from contracts.errors import ConfigError, ModelError
from contracts.own_code import append_code
from tests.conftest import small_config
from tests.trainer.tasks.for_tests import image_network, task_of
from trainer.model.build import parameters_sha256
from trainer.model.network import Network, check_slots_of_one, make_network
from trainer.model.numerics import Numerics
from trainer.parallel.process_group import Rank

DIGITS = {"layer_type": "basic", "embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1]}


def build(architecture: str, arguments: dict[str, Any], num_classes: int = 10) -> nn.Module:
    section = ModelSection(architecture=architecture, arguments=arguments)
    return image_network(section, num_classes, 32)


def make(rank: Rank, architecture: str, log: list[str], **parallel: str) -> Network:
    model = {"architecture": architecture, "arguments": {}}
    config = RunConfig.model_validate(small_config(model=model, parallel=parallel))
    return make_network(config, task_of(config, 3), rank, Numerics.of(config.train), log.append)


def test_a_transformers_model_maps_images_to_logits_and_the_seed_decides_its_weights() -> None:
    torch.manual_seed(0)
    model = build("resnet", DIGITS)
    assert sum(parameter.numel() for parameter in model.parameters()) == 81_706
    # That of torch's own generator: neither the trial on zeros nor anything else draws before the weights.
    digest = "85e3234856a05b847e9aeadffe861c619d31a166a050b6d5a284fd3c07a6a82d"
    assert parameters_sha256(model.state_dict()) == digest
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    # The image size reaches models that depend on it.
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    assert build("vit", {**size, "patch_size": 8})(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


class Counting(nn.Module):
    """Draws and counts in every forward pass, and has a parameter that nothing uses."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        logits: torch.Tensor = self.head(images.mean(dim=(2, 3)) + torch.rand(1))
        return logits


def test_the_trial_leaves_no_trace(user_module: types.ModuleType) -> None:
    torch.manual_seed(3)
    weights = Counting(10).head.weight
    expected = torch.rand(1)
    torch.manual_seed(3)
    model = build("user_models:counting", {})
    assert torch.rand(1) == expected
    assert torch.equal(model.head.weight, weights)  # type: ignore[union-attr,arg-type]
    assert model.passes == 0
    assert model.training
    assert build("user_models:linear", {"width": 3}, num_classes=5)(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


def test_parameters_without_gradient_are_frozen_with_a_warning(rank: Rank, user_module: types.ModuleType) -> None:
    lines: list[str] = []
    module = make(rank, "user_models:counting", lines).module
    assert lines == ["frozen, since the loss does not depend on them: unused"]
    assert [name for name, parameter in module.named_parameters() if not parameter.requires_grad] == ["unused"]
    assert module.passes == 0 and all(parameter.grad is None for parameter in module.parameters())


def test_slots_of_one_sample_are_refused_where_batchnorm_cannot_train_on_them() -> None:
    """17 samples in batches of 16 leave one."""
    config = RunConfig.model_validate(small_config(train={"global_batch_size": 16}))
    norm, lines = nn.BatchNorm2d(3), list[str]()
    check_slots_of_one(norm, (torch.ones(1, 3, 1, 1),), config, 18, 4, lines.append)
    assert lines == []
    with pytest.raises(ConfigError, match="more than 1 value per channel"):
        check_slots_of_one(norm, (torch.ones(1, 3, 1, 1),), config, 17, 4, lines.append)
    check_slots_of_one(norm, (torch.ones(1, 3, 4, 4),), config, 17, 4, lines.append)
    assert "BatchNorm's statistics of one sample are noisy" in lines[0] and norm.num_batches_tracked == 0
    check_slots_of_one(nn.Conv2d(3, 3, 1), (torch.ones(1, 3, 4, 4),), config, 17, 4, lines.append)
    assert len(lines) == 1


class Integers(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(images), 10, dtype=torch.int64)


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("user_models")
    module.__file__ = str(tmp_path / "user_models.py")
    Path(module.__file__).touch()
    append_code(tmp_path)

    def linear(num_classes: int, width: int = 4) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, num_classes))

    module.linear = linear  # type: ignore[attr-defined]
    module.counting = Counting  # type: ignore[attr-defined]
    module.integers = lambda num_classes: Integers()  # type: ignore[attr-defined]
    module.wrong = lambda num_classes: "no module"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "user_models", module)
    return module


@pytest.mark.parametrize(
    ("architecture", "arguments", "given", "todo"),
    [
        ("resnet", {"dephts": [1]}, "model.arguments.dephts", "did you mean depths?"),
        ("user_models:missing", {}, "missing", "or the name"),
        ("user_models:wrong", {}, "returned a str", "return the module itself"),
        ("user_models:integers", {}, "logits is int64 [2, 10], the task's signature says float32", "architecture"),
        ("resnet", {**DIGITS, "num_channels": 1}, "cannot take images float32 [2, 3, 32, 32]", "model.arguments"),
    ],
)
def test_what_cannot_be_built_is_explained(
    user_module: types.ModuleType, architecture: str, arguments: dict[str, Any], given: str, todo: str
) -> None:
    with pytest.raises(ModelError) as caught:
        build(architecture, arguments)
    assert given in caught.value.given
    assert todo in caught.value.todo
    assert caught.value.exit_code == 2
