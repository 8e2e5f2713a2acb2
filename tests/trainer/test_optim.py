"""The learning rate as a function of the step, and an optimizer that comes back whole."""

import pytest
import torch
from torch import nn

from contracts.config import TrainSection
from trainer.optim import learning_rate, load_named_state, make_optimizer, named_state, set_learning_rate


def test_the_rate_rises_to_its_peak_and_falls_to_zero() -> None:
    train = TrainSection(learning_rate=0.5, warmup_fraction=0.1)
    rates = [learning_rate(step, total_steps=100, train=train) for step in range(100)]
    assert rates[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert rates[10] == max(rates) == 0.5
    assert rates[10:] == sorted(rates[10:], reverse=True)
    # Half of the cosine is half the rate; the last step is next to zero.
    assert rates[55] == pytest.approx(0.25)
    assert 0 < rates[99] < 0.001


def test_without_warmup_the_first_step_has_the_peak() -> None:
    assert learning_rate(0, total_steps=10, train=TrainSection(learning_rate=1.0, warmup_fraction=0)) == 1.0


def test_vectors_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    groups = make_optimizer(model, TrainSection(weight_decay=0.3)).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.3), (3, 0.0)]


def test_a_restored_optimizer_goes_on_bit_for_bit() -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        return model, make_optimizer(model, TrainSection())

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        for number in numbers:
            torch.manual_seed(number)
            model(torch.randn(8, 4)).square().sum().backward()
            set_learning_rate(optimizer, 0.1 / (number + 1))
            optimizer.step()
            optimizer.zero_grad()

    whole, optimizer = make()
    steps(whole, optimizer, range(6))

    first, optimizer = make()
    steps(first, optimizer, range(3))
    weights, state = first.state_dict(), named_state(first, optimizer)
    assert set(state) == {
        f"{name}/{e}" for name, _ in first.named_parameters() for e in ("step", "exp_avg", "exp_avg_sq")
    }
    second, optimizer = make()
    second.load_state_dict(weights)
    load_named_state(second, optimizer, {name: tensor.clone() for name, tensor in state.items()})
    steps(second, optimizer, range(3, 6))
    for one, other in zip(whole.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)
