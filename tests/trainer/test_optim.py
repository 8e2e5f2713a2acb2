"""The learning rate as a function of the step, and optimizers that leave steps out."""

from typing import Any

import pytest
import torch
from torch import nn

from contracts.config import TrainSection
from contracts.errors import ConfigError
from trainer.optim import (
    clip_divisor,
    gradient_norm,
    learning_rate,
    make_optimizer,
    rate_factors,
    set_learning_rate,
    step_optimizer,
)

TAKEN, LEFT_OUT = torch.zeros(()), torch.ones(())


def rates(train: TrainSection) -> list[float]:
    return [learning_rate(step, total_steps=100, train=train) for step in range(100)]


def test_the_rate_rises_to_its_peak_and_falls_to_zero() -> None:
    found = rates(TrainSection(learning_rate=0.5, warmup_fraction=0.1))
    assert found[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert found[10] == max(found) == 0.5
    assert found[10:] == sorted(found[10:], reverse=True)
    # Half of the cosine is half the rate; the last step is next to zero.
    assert found[55] == pytest.approx(0.25)
    assert 0 < found[99] < 0.001
    constant = rates(TrainSection(schedule="constant", learning_rate=0.5, warmup_fraction=0.02))
    assert constant == [0.25, *[0.5] * 99]


def test_vectors_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    for name in ("adamw", "sgd"):
        section = TrainSection.model_validate({"optimizer": name, "weight_decay": 0.3})
        groups = make_optimizer(model, section).param_groups
        assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.3), (3, 0.0)]


OPTIMIZERS: list[dict[str, Any]] = [{}, {"optimizer": "sgd"}]


def make(section: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    return model, make_optimizer(model, TrainSection.model_validate(section))


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    for number in numbers:
        torch.manual_seed(number)
        model(torch.randn(2, 3, 8, 8)).square().sum().backward()
        set_learning_rate(optimizer, 1e-4 / (number + 1))
        step_optimizer(optimizer, found_inf=TAKEN)
        optimizer.zero_grad()


@pytest.mark.parametrize("section", OPTIMIZERS)
def test_the_first_step_leaves_no_trace_if_it_is_left_out(section: dict[str, Any]) -> None:
    """When an optimizer makes its state; of later ones that is in test_loop_options.py."""
    model, optimizer = make(section)
    other, undisturbed = make(section)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    step_optimizer(optimizer, found_inf=LEFT_OUT)
    optimizer.zero_grad()
    take_steps(model, optimizer, range(4))
    take_steps(other, undisturbed, range(4))
    for one, expected in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, expected)


@pytest.mark.parametrize("most", [0.01, 1e9])
def test_gradients_are_clipped_as_torch_does(most: float) -> None:
    model, optimizer = make({"optimizer": "sgd", "momentum": 0, "weight_decay": 0})
    other, plain = make({"optimizer": "sgd", "momentum": 0, "weight_decay": 0})
    for network in (model, other):
        torch.manual_seed(1)
        network(torch.randn(2, 3, 8, 8)).square().sum().backward()
    norm = gradient_norm(model.parameters(), torch.device("cpu"))
    assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(other.parameters(), most)))
    step_optimizer(optimizer, found_inf=TAKEN, divisor=clip_divisor(norm, most))
    step_optimizer(plain, found_inf=TAKEN)
    for one, expected in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, expected, rtol=1e-5, atol=1e-8)


def test_a_factor_scales_the_step_of_its_parameters_alone() -> None:
    train = TrainSection(learning_rates={"2.*": 0.5}, weight_decay=0.0)
    moved = []
    for scales in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = make_optimizer(model, train, rate_factors(model, train) if scales else None)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        model(torch.ones(2, 3)).square().sum().backward()
        set_learning_rate(optimizer, 0.1)
        step_optimizer(optimizer, found_inf=TAKEN)
        moved.append([parameter.detach() - old for parameter, old in zip(model.parameters(), before, strict=True)])
    for plain, scaled, factor in zip(*moved, (1, 1, 0.5, 0.5), strict=True):
        assert torch.allclose(scaled, plain * factor, atol=1e-7)


def test_patterns_must_match_and_must_not_overlap() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for rates, said in (({"2.*": 2.0}, "matches no parameter"), ({"0.*": 2.0, "*weight": 3.0}, "both match 0.weight")):
        with pytest.raises(ConfigError, match=said) as caught:
            rate_factors(model, TrainSection(learning_rates=rates))
        assert caught.value.exit_code == 2
