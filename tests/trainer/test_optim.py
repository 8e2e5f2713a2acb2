"""The learning rate as a function of the step, and optimizers that come back whole and leave steps out."""

from typing import Any

import pytest
import torch
from torch import nn

from contracts.config import ModelSection, TrainSection
from contracts.errors import ConfigError
from tests.trainer.tasks.for_tests import image_network
from trainer.optim import (
    clip_divisor,
    gradient_norm,
    learning_rate,
    load_named_state,
    make_optimizer,
    named_state,
    peak_learning_rate,
    rate_factors,
    set_learning_rate,
    step_optimizer,
)

TAKEN, LEFT_OUT = torch.zeros(()), torch.ones(())


def rates(train: TrainSection, total_steps: int = 100, steps_per_epoch: int = 10) -> list[float]:
    return [
        learning_rate(step, total_steps=total_steps, steps_per_epoch=steps_per_epoch, train=train)
        for step in range(total_steps)
    ]


def test_the_rate_rises_to_its_peak_and_falls_to_zero() -> None:
    found = rates(TrainSection(learning_rate=0.5, warmup_fraction=0.1))
    assert found[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert found[10] == max(found) == 0.5
    assert found[10:] == sorted(found[10:], reverse=True)
    # Half of the cosine is half the rate; the last step is next to zero.
    assert found[55] == pytest.approx(0.25)
    assert 0 < found[99] < 0.001


def test_without_warmup_the_first_step_has_the_peak() -> None:
    assert rates(TrainSection(learning_rate=1.0, warmup_fraction=0))[0] == 1.0


def test_a_constant_rate_stays_at_its_peak() -> None:
    found = rates(TrainSection(schedule="constant", learning_rate=0.5, warmup_fraction=0.02))
    assert found == [0.25, *[0.5] * 99]


def test_a_stepped_rate_falls_by_its_factor_at_epochs() -> None:
    train = TrainSection(schedule="step", step_every_epochs=3, step_factor=0.1, learning_rate=1.0, warmup_fraction=0)
    found = rates(train)
    assert found[:30] == [1.0] * 30
    assert found[30:60] == pytest.approx([0.1] * 30)
    assert found[90:] == pytest.approx([0.001] * 10)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_peak_scales_with_the_global_batch(scaling: str, factor: float) -> None:
    train = TrainSection.model_validate(
        {"scale_learning_rate": scaling, "global_batch_size": 1024, "reference_batch_size": 256, "learning_rate": 0.1}
    )
    assert peak_learning_rate(train) == pytest.approx(0.1 * factor)
    assert max(rates(train)) == peak_learning_rate(train)


def test_vectors_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    for name in ("adamw", "sgd"):
        section = TrainSection.model_validate({"optimizer": name, "weight_decay": 0.3})
        groups = make_optimizer(model, section).param_groups
        assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.3), (3, 0.0)]


OPTIMIZERS: list[dict[str, Any]] = [
    {},
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "momentum": 0},
    {"optimizer": "sgd", "nesterov": True},
]


def make(section: dict[str, Any], layout: torch.memory_format) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).to(memory_format=layout)  # type: ignore[call-overload]
    return model, make_optimizer(model, TrainSection.model_validate(section))


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    for number in numbers:
        torch.manual_seed(number)
        model(torch.randn(2, 3, 8, 8)).square().sum().backward()
        set_learning_rate(optimizer, 1e-4 / (number + 1))
        step_optimizer(optimizer, found_inf=TAKEN)
        optimizer.zero_grad()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("section", OPTIMIZERS)
def test_a_restored_optimizer_goes_on_bit_for_bit(section: dict[str, Any], layout: torch.memory_format) -> None:
    whole, optimizer = make(section, layout)
    take_steps(whole, optimizer, range(6))

    first, optimizer = make(section, layout)
    take_steps(first, optimizer, range(3))
    # As from a file: every tensor in the order of its dimensions.
    state = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in first.state_dict().items()}
    kept = {name: t.clone(memory_format=torch.contiguous_format) for name, t in named_state(first, optimizer).items()}
    second, optimizer = make(section, layout)
    second.load_state_dict(state)
    load_named_state(second, optimizer, kept)
    take_steps(second, optimizer, range(3, 6))
    for one, other in zip(whole.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("section", OPTIMIZERS)
@pytest.mark.parametrize("first_taken", [0, 2])
def test_a_step_that_is_left_out_leaves_no_trace(section: dict[str, Any], first_taken: int) -> None:
    """Also the very first, when an optimizer makes its state."""
    model, optimizer = make(section, torch.contiguous_format)
    other, undisturbed = make(section, torch.contiguous_format)
    take_steps(model, optimizer, range(first_taken))
    take_steps(other, undisturbed, range(first_taken))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    step_optimizer(optimizer, found_inf=LEFT_OUT)
    optimizer.zero_grad()
    take_steps(model, optimizer, range(first_taken, 4))
    take_steps(other, undisturbed, range(first_taken, 4))
    for one, expected in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, expected)


@pytest.mark.parametrize("most", [0.01, 1e9])
def test_gradients_are_clipped_as_torch_does(most: float) -> None:
    model, optimizer = make({"optimizer": "sgd", "momentum": 0, "weight_decay": 0}, torch.contiguous_format)
    other, plain = make({"optimizer": "sgd", "momentum": 0, "weight_decay": 0}, torch.contiguous_format)
    for network in (model, other):
        torch.manual_seed(1)
        network(torch.randn(2, 3, 8, 8)).square().sum().backward()
    norm = gradient_norm(model.parameters(), torch.device("cpu"))
    assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(other.parameters(), most)))
    step_optimizer(optimizer, found_inf=TAKEN, divisor=clip_divisor(norm, most))
    step_optimizer(plain, found_inf=TAKEN)
    for one, expected in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, expected, rtol=1e-5, atol=1e-8)


def rate_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> float:
    (group,) = [g for g in optimizer.param_groups if any(parameter is one for one in g["params"])]
    return float(group["lr"])


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_factor_scales_the_step_of_its_parameters_alone(name: str) -> None:
    section = {"optimizer": name, "learning_rates": {"2.*": 0.5}, "weight_decay": 0.0, "momentum": 0.0}
    train = TrainSection.model_validate(section)
    moved = []
    for factors in (None, "configured"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = make_optimizer(model, train, rate_factors(model, train) if factors else None)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        model(torch.ones(2, 3)).square().sum().backward()
        set_learning_rate(optimizer, 0.1)
        step_optimizer(optimizer, found_inf=TAKEN)
        moved.append([parameter.detach() - old for parameter, old in zip(model.parameters(), before, strict=True)])
    assert rate_of(optimizer, model[0].weight) == 0.1
    assert rate_of(optimizer, model[2].weight) == 0.05
    for plain, scaled, factor in zip(*moved, (1, 1, 0.5, 0.5), strict=True):
        assert torch.allclose(scaled, plain * factor, atol=1e-7)


def test_patterns_must_match_and_must_not_overlap() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for rates, said in (({"2.*": 2.0}, "matches no parameter"), ({"0.*": 2.0, "*weight": 3.0}, "both match 0.weight")):
        with pytest.raises(ConfigError, match=said) as caught:
            rate_factors(model, TrainSection(learning_rates=rates))
        assert caught.value.exit_code == 2


VIT = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16, "patch_size": 8}
SWIN = {"embed_dim": 8, "depths": [2, 1], "num_heads": [1, 2], "window_size": 2, "patch_size": 4}
CONVNEXT = {"hidden_sizes": [8, 16], "depths": [2, 1], "num_stages": 2}
# L blocks; the end of a parameter's name, and how many layers lie behind it.
LAYERS: dict[str, tuple[dict[str, Any], int, dict[str, int]]] = {
    "vit": (VIT, 3, {"cls_token": 4, "position_embeddings": 4, "classifier.weight": 0, "vit.layernorm.weight": 0}),
    "swin": (
        SWIN,
        3,
        {
            "patch_embeddings.projection.weight": 4,
            "layers.0.blocks.0.layernorm_before.weight": 3,
            "layers.0.blocks.1.layernorm_before.weight": 2,
            "layers.0.downsample.norm.weight": 2,
            "layers.1.blocks.0.layernorm_before.weight": 1,
            "swin.layernorm.weight": 0,
            "classifier.weight": 0,
        },
    ),
    "convnext": (
        CONVNEXT,
        3,
        {
            "embeddings.patch_embeddings.weight": 4,
            "stages.0.layers.0.dwconv.weight": 3,
            "stages.0.layers.1.dwconv.weight": 2,
            "stages.1.downsampling_layer.1.weight": 2,
            "stages.1.layers.0.dwconv.weight": 1,
            "classifier.weight": 0,
        },
    ),
}


@pytest.mark.parametrize("architecture", LAYERS)
def test_rates_fall_from_block_to_block(architecture: str) -> None:
    arguments, blocks, expected = LAYERS[architecture]
    section = ModelSection(architecture=architecture, arguments=arguments)
    model = image_network(section)
    plain = rate_factors(model, TrainSection(layer_decay=0.5))
    assert set(plain.values()) == {0.5**layers for layers in range(blocks + 2)}
    for end, layers in expected.items():
        (name,) = [name for name in plain if name.endswith(end)]
        assert plain[name] == 0.5**layers, name
    if architecture == "vit":
        for number in range(3):
            of_block = {value for name, value in plain.items() if f".{number}.layernorm_before" in name}
            assert of_block == {0.5 ** (3 - number)}
    both = rate_factors(model, TrainSection(layer_decay=0.5, learning_rates={"*classifier*": 3.0, "*embeddings*": 4.0}))
    assert {both[name] / plain[name] for name in plain if "classifier" in name} == {3.0}
    assert {both[name] / plain[name] for name in plain if "embeddings" in name} == {4.0}
    assert {both[name] / plain[name] for name in plain} == {1.0, 3.0, 4.0}


def test_without_blocks_there_is_no_decay_by_layer() -> None:
    with pytest.raises(ConfigError, match="no repeated blocks"):
        rate_factors(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), TrainSection(layer_decay=0.5))
