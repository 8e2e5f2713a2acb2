"""A task's own optimizer, and steps in which nothing counts."""

from typing import Any

import pytest
import torch
from torch import nn

from contracts.config import TrainSection
from contracts.errors import DataError
from tests.trainer.one_rank import one_rank
from tests.trainer.tasks.weighted import SLOT, Case, Momentum, Weighted
from trainer.checkpoint.loading import require_optimizer_state
from trainer.data.cursor import SlotRequest
from trainer.data.device import DataClock
from trainer.data.loader import SlotBatch
from trainer.model.numerics import Numerics
from trainer.optim import learning_rate, load_named_state, make_optimizer, named_state
from trainer.report.readings import Readings
from trainer.step import Stepper


class Keeps(Momentum):
    """Keeps something of its own."""

    kept: Any = None

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["kept"] = self.kept


def task_with(kind: type[torch.optim.Optimizer], **more: Any) -> Any:
    class Own(Weighted):
        def optimizer(self, groups: Any, rate: float) -> torch.optim.Optimizer:
            return type("Kind", (kind,), more)(groups, rate)

    return Own(torch.float32)


def test_state_of_one_element_comes_back_whatever_its_shape() -> None:
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, TrainSection(), None, task_with(Keeps, kept=torch.full((1,), 5.0)))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = {name: tensor.clone() for name, tensor in named_state(model, optimizer).items()}
    require_optimizer_state(state, dict(model.named_parameters()), where="here")
    optimizer.state.clear()
    load_named_state(model, optimizer, state)
    found = named_state(model, optimizer)
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)
    with pytest.raises(DataError, match="fits no parameter"):
        require_optimizer_state({"weight/kept": torch.zeros(2)}, dict(model.named_parameters()), where="here")


def test_a_schedule_multiplies_the_peak() -> None:
    class Half:
        def schedule(self, step: int, total_steps: int) -> float:
            return 0.5 if step < total_steps / 2 else 0.25

    train = TrainSection(learning_rate=0.2)
    rates = [learning_rate(step, total_steps=4, train=train, task=Half()) for step in range(4)]  # type: ignore[arg-type]
    assert rates == [0.1, 0.1, 0.05, 0.05]


def test_a_step_that_counts_nothing_is_left_out_and_ends_nothing() -> None:
    case = Case()
    with one_rank() as rank:
        stepper = Stepper(case.config, case.task, rank, Numerics.of(case.config.train), lambda message: None)  # type: ignore[arg-type]
        stepper.warm_up(SLOT)
        readings = Readings(rank.device, stepper.guard)
        before = {name: tensor.clone() for name, tensor in stepper.model.state_dict().items()}
        batch = {name: tensor[:SLOT] for name, tensor in case.task.samples().items()}
        losses = []
        for step, weight in enumerate((torch.zeros_like(batch["weight"]), torch.ones_like(batch["weight"]))):
            request = SlotRequest(step, 0, 0, tuple(range(SLOT)), SLOT, counts=True, last_of_step=True)
            readings.add(stepper.compute(SlotBatch(request, {**batch, "weight": weight}), DataClock(rank.device)))
            update = stepper.update(step, 0.1)
            readings.end_step(update.left_out, update.count)
            readings.send(step + 1, 0.1, [], None)
            reading = readings.read()
            assert reading is not None and reading.found.skipped == 0
            losses.append(reading.loss)
            same = all(torch.equal(before[name], tensor) for name, tensor in stepper.model.state_dict().items())
            assert (float(update.left_out), same) == ((1.0, True) if step == 0 else (0.0, False))
        assert losses[0] is None and losses[1] is not None and losses[1] > 0


def test_a_slot_may_be_tried_before_the_warm_up_and_no_step_taken() -> None:
    """The profiling run tries the memory of a compiled network so: each rank alone, before anything is compiled."""
    case = Case()
    with one_rank() as rank:
        stepper = Stepper(case.config, case.task, rank, Numerics.of(case.config.train), lambda message: None)  # type: ignore[arg-type]
        batch = {name: tensor[:SLOT] for name, tensor in case.task.samples().items()}
        request = SlotRequest(0, 0, 0, tuple(range(SLOT)), SLOT, counts=True, last_of_step=False)
        stepper.compute(SlotBatch(request, batch), DataClock(rank.device))
        stepper.drop_slots()
        with pytest.raises(AssertionError, match="warm_up comes before a step"):
            stepper.update(0, 0.1)
