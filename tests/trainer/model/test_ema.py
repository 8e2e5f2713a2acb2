"""A moving average of the parameters."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.model import ema
from trainer.model.ema import MovingAverage

TAKEN, LEFT_OUT = torch.zeros(()), torch.ones(())


def change(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


def test_it_is_the_average_of_its_formula() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    average = MovingAverage(model, 0.9)
    expected = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    for step in range(200):
        change(model)
        average.update(step, TAKEN)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, parameter in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * parameter.detach().double()
    assert set(average.state()) == set(expected)
    for name, value in average.state().items():
        assert torch.allclose(value.double(), expected[name], atol=1e-4)


class Scaled(nn.Linear):
    """With a scalar parameter besides, and a vector longer than what is averaged at a time."""

    def __init__(self) -> None:
        super().__init__(40, 30)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.long = nn.Parameter(torch.randn(300))


class Differences(TorchDispatchMode):
    """Records the elements of each list of differences."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == "_foreach_sub":
            self.elements.append(sum(tensor.numel() for tensor in args[0]))
        return func(*args, **(kwargs or {}))


def test_it_is_averaged_in_pieces_and_no_bit_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ema, "_CHUNK_ELEMENTS", 200)
    torch.manual_seed(0)
    model = Scaled()
    average = MovingAverage(model, 0.9)
    expected = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for step in range(5):
        change(model)
        with Differences() as differences:
            average.update(step, TAKEN)
        assert max(differences.elements) <= 200
        assert sum(differences.elements) == sum(parameter.numel() for parameter in model.parameters())
        weight = (1 - min(0.9, (1 + step) / (10 + step))) * (1 - TAKEN)
        for name, parameter in model.named_parameters():
            expected[name] += (parameter.detach() - expected[name]) * weight
    assert all(torch.equal(expected[name], value) for name, value in average.state().items())


def test_a_step_that_is_left_out_does_not_count() -> None:
    model = nn.Linear(3, 3)
    average = MovingAverage(model, 0.9)
    change(model)
    average.update(0, TAKEN)
    before = {name: value.clone() for name, value in average.state().items()}
    change(model)
    average.update(1, LEFT_OUT)
    assert all(torch.equal(before[name], value) for name, value in average.state().items())


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
