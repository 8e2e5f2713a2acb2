"""Numerics of a step, and the loss scale that follows torch.amp.GradScaler's rule."""

import os
import random

import pytest
import torch

from contracts.config import TrainSection
from trainer.model.numerics import CUBLAS_VARIABLE, DETERMINISTIC_VARIABLE, LossScale, Numerics, fix_numerics

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


def test_numerics_survive_a_manifest() -> None:
    numerics = Numerics.of(TrainSection(precision="bf16", channels_last=True, compile="on"))
    lines: list[str] = []
    assert Numerics.of(TrainSection()).or_recorded(numerics.document(), lines.append) == numerics
    assert len(lines) == 1
    assert Numerics.of(TrainSection()).or_recorded({}, lines.append) == Numerics.of(TrainSection())
    assert len(lines) == 1


def test_autocast_computes_in_the_lower_precision_and_a_slow_one_is_named() -> None:
    model = torch.nn.Linear(4, 4)
    numerics = Numerics.of(TrainSection(precision="bf16"))
    with numerics.autocast(CPU):
        assert model(torch.ones(1, 4)).dtype == torch.bfloat16
    assert model(torch.ones(1, 4)).dtype == torch.float32
    assert numerics.find_slow(CPU) == ""
    assert "a CPU is slower in fp16" in Numerics.of(TrainSection(precision="fp16")).find_slow(CPU)


@pytest.mark.parametrize(
    ("kind", "asked", "deterministic"), [("cpu", "", True), ("cuda", "", False), ("cuda", "1", True)]
)
def test_deterministic_algorithms(monkeypatch: pytest.MonkeyPatch, kind: str, asked: str, deterministic: bool) -> None:
    """On a CPU always, on a GPU where the environment asks for them."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    monkeypatch.setenv(DETERMINISTIC_VARIABLE, asked)
    monkeypatch.setenv(CUBLAS_VARIABLE, "")
    monkeypatch.delenv(CUBLAS_VARIABLE)
    try:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = True
        fix_numerics(1, torch.device(kind))
        assert torch.are_deterministic_algorithms_enabled() == deterministic
        assert torch.backends.cudnn.benchmark == (asked == "")
        assert os.environ.get(CUBLAS_VARIABLE) == (":4096:8" if asked else None)
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
        torch.backends.cudnn.benchmark = before[2]
