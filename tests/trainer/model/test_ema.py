"""A moving average of the parameters."""

import torch
from torch import nn

from trainer.model.ema import MovingAverage

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


def test_the_model_has_it_for_a_while_and_gets_its_own_back() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[0].bias.requires_grad_(False)
    average = MovingAverage(model, 0.5)
    change(model)
    average.update(100, TAKEN)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    smooth = {name: tensor.clone() for name, tensor in average.state().items()}
    with average.in_place():
        inside = model.state_dict()
        for name, tensor in inside.items():
            assert torch.equal(tensor, smooth.get(name, own[name]))
        assert "0.bias" not in smooth
    assert all(torch.equal(own[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(smooth[name], tensor) for name, tensor in average.state().items())
