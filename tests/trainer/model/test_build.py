"""Models by configuration or by callable, and what a user reads when one cannot be built."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from contracts.config import ModelSection
from contracts.errors import ModelError
from contracts.own_code import append_code
from tests.trainer.tasks.for_tests import image_network
from trainer.model.build import GradientUse, find_gradient_use, find_single_sample_fault, parameters_sha256

DIGITS = {"layer_type": "basic", "embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1]}


def build(architecture: str, arguments: dict[str, Any], num_classes: int = 10) -> nn.Module:
    section = ModelSection(architecture=architecture, arguments=arguments)
    return image_network(section, num_classes, 32)


def use_of(model: nn.Module, size: int) -> GradientUse:
    images = torch.zeros(2, 3, size, size)
    return find_gradient_use(model, lambda: model(images).sum())


def test_a_transformers_model_maps_images_to_logits() -> None:
    model = build("resnet", DIGITS)
    assert sum(parameter.numel() for parameter in model.parameters()) == 81_706
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_image_size_reaches_models_that_depend_on_it() -> None:
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "patch_size": 8,
    }
    assert build("vit", small)(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_the_seed_decides_the_weights() -> None:
    def digest(seed: int) -> str:
        torch.manual_seed(seed)
        return parameters_sha256(build("resnet", DIGITS).state_dict())

    assert digest(1) == digest(1) != digest(2)
    # That of torch's own generator: neither the trial on zeros nor anything else draws before the weights.
    assert digest(0) == "85e3234856a05b847e9aeadffe861c619d31a166a050b6d5a284fd3c07a6a82d"


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


def test_parameters_without_gradient_are_found(user_module: types.ModuleType) -> None:
    model = build("user_models:counting", {})
    assert use_of(model, 8) == GradientUse(["unused"], [], [])
    assert model.passes == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert use_of(build("resnet", DIGITS), 32) == GradientUse([], [], [])


class EvaluationHead(nn.Module):
    """Has a head that evaluation alone uses, and a layer that training leaves out in a share of its passes."""

    def __init__(self, dropped: float) -> None:
        super().__init__()
        self.layer, self.head, self.second = nn.Linear(3, 3), nn.Linear(3, 10), nn.Linear(3, 10)
        self.dropped = dropped

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = images.mean(dim=(2, 3))
        if not self.training or torch.rand(()) >= self.dropped:
            features = features + self.layer(features)
        logits: torch.Tensor = self.head(features)
        return logits if self.training else logits + self.second(features)


@pytest.mark.parametrize(("dropped", "at_random"), [(0.0, []), (0.5, ["layer.weight", "layer.bias"])])
def test_what_training_uses_at_random_is_told_from_what_it_never_uses(dropped: float, at_random: list[str]) -> None:
    expected = GradientUse([], ["second.weight", "second.bias"], at_random)
    for seed in range(5):
        torch.manual_seed(seed)
        assert use_of(EvaluationHead(dropped), 8) == expected


def test_a_network_without_kernels_for_the_cpu_is_tried_out_where_it_is_placed(user_module: types.ModuleType) -> None:
    """The meta device stands in for a GPU: it has kernels that a CPU lacks. The weights are of the CPU's seed."""
    section = ModelSection(architecture="user_models:no_cpu", arguments={})
    with pytest.raises(ModelError, match="no kernel for the CPU"):
        image_network(section, 10, 8)
    placed: list[torch.Tensor] = []

    def place(model: nn.Module) -> torch.device:
        placed.extend(parameter.detach().clone() for parameter in model.parameters())
        return torch.device("meta")

    torch.manual_seed(3)
    expected = NoCpu(10).head.weight
    after = torch.rand(1)
    torch.manual_seed(3)
    model = image_network(section, 10, 8, place=place)
    assert torch.equal(placed[0], expected)
    assert torch.rand(1) == after
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.gpu
def test_a_network_is_tried_out_on_the_gpu(user_module: types.ModuleType) -> None:
    section = ModelSection(architecture="user_models:no_cpu", arguments={})
    model = image_network(section, 10, 8, place=lambda model: torch.device("cuda"))
    assert all(parameter.is_cuda for parameter in model.parameters())


def test_the_hash_sees_one_bit_a_name_and_a_shape() -> None:
    state = {"a": torch.arange(4.0), "b": torch.ones(2, dtype=torch.bfloat16)}
    digest = parameters_sha256(state)
    assert parameters_sha256({"b": state["b"], "a": state["a"]}) == digest
    changed = state["a"].clone()
    changed[3] = torch.nextafter(changed[3], torch.tensor(9.0))
    assert parameters_sha256({**state, "a": changed}) != digest
    assert parameters_sha256({"c": state["a"], "b": state["b"]}) != digest
    assert parameters_sha256({**state, "a": state["a"].reshape(2, 2)}) != digest


def test_a_model_that_cannot_train_on_one_sample_is_found() -> None:
    norm = nn.BatchNorm2d(3)
    assert find_single_sample_fault(norm, (torch.ones(1, 3, 4, 4),)) is None
    assert "more than 1 value per channel" in (find_single_sample_fault(norm, (torch.ones(1, 3, 1, 1),)) or "")
    assert norm.num_batches_tracked == 0


class NoCpu(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.device.type == "cpu":
            raise RuntimeError("no kernel for the CPU")
        logits: torch.Tensor = self.head(images.mean(dim=(2, 3)))
        return logits


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
    module.no_cpu = NoCpu  # type: ignore[attr-defined]
    module.integers = lambda num_classes: Integers()  # type: ignore[attr-defined]
    module.wrong = lambda num_classes: "no module"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "user_models", module)
    return module


def test_any_callable_can_build_the_model(user_module: types.ModuleType) -> None:
    assert build("user_models:linear", {"width": 3}, num_classes=5)(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize(
    ("architecture", "arguments", "given", "todo"),
    [
        ("resnett", {}, "'resnett' is unknown", "did you mean resnet?"),
        ("resnet", {"dephts": [1]}, "model.arguments.dephts", "did you mean depths?"),
        ("resnet", {"layer_type": "magic"}, "layer_type=magic", "correct model.arguments"),
        ("no_such_module:build", {}, "holds no module no_such_module", "install the package"),
        ("user_models:missing", {}, "missing", "write it, or correct the name"),
        ("user_models:linear", {"depth": 3}, "depth", "did you mean model.arguments.width?"),
        ("user_models:wrong", {}, "returned a str", "return the module itself"),
        ("user_models:integers", {}, "returns a torch.int64 tensor of shape (2, 10)", "model.architecture"),
        (
            "resnet",
            {**DIGITS, "num_channels": 1},
            "cannot take images float32 [2, 3, 32, 32]",
            "correct model.arguments",
        ),
        (
            "swin",
            {"image_size": 30},
            "with model.arguments {'image_size': 30} cannot take images float32 [2, 3, 32, 32]",
            "correct model.arguments or data.image_size",
        ),
        ("pp_lcnet", {}, "no attribute 'logits'", "choose another model.architecture"),
        ("dinat", {}, "natten", "correct model.arguments"),
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


@pytest.mark.parametrize("source", ["def build(:", "import no_such_module_here", "raise RuntimeError('no licence')"])
def test_a_module_that_fails_at_import_is_named(tmp_path: Path, source: str) -> None:
    (tmp_path / "failing_models.py").write_text(source)
    append_code(tmp_path)
    with pytest.raises(ModelError, match=r"model\.architecture 'failing_models:build'"):
        build("failing_models:build", {})


class LeavesOut(nn.Module):
    """Four layers, of which each is left out in one of ten training passes."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        self.head = nn.Linear(3, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = images.mean((2, 3))
        for layer in self.layers:
            if not self.training or float(torch.rand(())) > 0.1:
                values = values + layer(values)
        logits: torch.Tensor = self.head(values)
        return logits


def test_layers_that_are_left_out_at_random_are_seen_whatever_the_first_pass_did() -> None:
    seen = 0
    for seed in range(20):
        torch.manual_seed(seed)
        use = use_of(LeavesOut(3), 4)
        assert (use.never, use.evaluation_only) == ([], [])
        seen += bool(use.at_random)
    # 0.9 ** 4 of first passes leave out none: 13 of 20 would not be seen by those alone.
    assert seen >= 19
