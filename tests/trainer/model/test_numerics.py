"""Numerics of a step, and the loss scale that follows torch.amp.GradScaler's rule."""

import random

import pytest
import torch
from torch import nn

from trainer.model.ema import MovingAverage
from trainer.model.numerics import LossScale

CPU = torch.device("cpu")


def test_the_loss_scale_is_that_of_grad_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the real one, over a sequence of overflows that also lets it grow, sooner than it does by default."""
    assert torch.amp.GradScaler("cpu").get_growth_interval() == LossScale.INTERVAL
    monkeypatch.setattr(LossScale, "INTERVAL", 200)
    draw = random.Random(0)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    theirs = torch.amp.GradScaler("cpu", init_scale=LossScale.INITIAL, growth_interval=200)
    ours = LossScale(CPU)
    for step in range(LossScale.INTERVAL * 2 + 60):
        bad = step < 60 and draw.random() < 0.3
        theirs.scale(torch.zeros(()))  # it makes its scale at the first use
        parameter.grad = torch.full((1,), torch.inf if bad else 1.0)
        theirs.step(optimizer)
        theirs.update()
        ours.update(torch.tensor(float(bad)))
        assert float(ours.scale) == theirs.get_scale()
    assert float(ours.scale) == theirs.get_scale() != LossScale.INITIAL
    assert int(ours.state()["growth_tracker"]) == theirs.state_dict()["_growth_tracker"]
    # It does not grow to infinity.
    ours.load({"scale": torch.tensor(3e38), "growth_tracker": torch.tensor(LossScale.INTERVAL - 1)})
    ours.update(torch.zeros(()))
    assert float(ours.scale) == pytest.approx(3e38)


TAKEN, LEFT_OUT = torch.zeros(()), torch.ones(())


def change(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


def test_it_is_the_average_of_its_formula_without_steps_that_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.register_parameter("scale", nn.Parameter(torch.tensor(0.5)))
    average = MovingAverage(model, 0.9)
    expected = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    for step in range(200):
        change(model)
        average.update(step, LEFT_OUT if step % 5 == 1 else TAKEN)
        decay = 1.0 if step % 5 == 1 else min(0.9, (1 + step) / (10 + step))
        for name, parameter in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * parameter.detach().double()
    assert set(average.state()) == set(expected)
    for name, value in average.state().items():
        assert torch.allclose(value.double(), expected[name], atol=1e-4)
