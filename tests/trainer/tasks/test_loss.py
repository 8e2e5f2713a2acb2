"""Losses that count samples or tokens: gradients are those of one process on whole batches, however cut."""

from typing import Any

import pytest
import torch
from torch import nn

from contracts.config import RunConfig, TrainSection
from contracts.errors import ConfigError, DataError
from tests.trainer.one_rank import one_rank
from tests.trainer.tasks import weighted
from tests.trainer.tasks.weighted import SLOT, Case, Tagged
from trainer.checkpoint.loading import require_optimizer_state
from trainer.data.cursor import SlotRequest
from trainer.data.device import DataClock
from trainer.data.loader import SlotBatch
from trainer.log import Readings
from trainer.model.numerics import Numerics
from trainer.optim import learning_rate, load_named_state, make_optimizer, named_state
from trainer.parallel.process_group import Rank
from trainer.step import Stepper
from trainer.tasks.on_device import Denominator, checked_loss

CONFIG = RunConfig.model_validate({"task": {"name": "mine:Task"}, "train": {"global_batch_size": 48}})


@pytest.mark.parametrize(("number", "case"), list(enumerate(weighted.cases())), ids=str)
def test_gradients_are_those_of_the_whole_batch(
    evaluations: dict[int, dict[str, Any]], number: int, case: Case
) -> None:
    expected, limit = weighted.plain(case), 1e-12 if case.dtype == torch.float64 else 1e-5
    assert len(set(expected["counts"])) == 2
    for by_case in evaluations.values():
        result = by_case[str(number)]
        assert result["counts"] == expected["counts"], "counted over all ranks"
        # Momentum and Adam's averages are sums of gradients.
        for kind in ("state", "parameters"):
            assert result[kind].keys() == expected[kind].keys() and expected[kind]
            for name, tensor in expected[kind].items():
                assert_near(result[kind][name], tensor, limit, name)


def assert_near(ours: torch.Tensor, expected: torch.Tensor, limit: float, name: str) -> None:
    assert ours.dtype == expected.dtype or ours.numel() == 1, name
    error = float((ours - expected).abs().max() / expected.abs().max())
    assert error <= limit, f"{name}: {error}"


class Keeps(torch.optim.SGD):
    """Keeps a tensor of one element."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["kept"] = torch.full((1,), 5.0)


def test_state_of_one_element_comes_back_whatever_its_shape() -> None:
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, TrainSection(), None, Tagged(torch.float32, Keeps))
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


def slot(samples: int, *, batch_samples: int = 48, counts: bool = True) -> SlotRequest:
    return SlotRequest(0, 0, 0, tuple(range(samples)), batch_samples, counts=counts, last_of_step=False)


def decided(count: torch.Tensor | int) -> Denominator:
    denominator = Denominator(CONFIG, Rank(0, 0, 1, torch.device("cpu")))
    denominator.decide(count, samples=4)
    return denominator


def test_a_count_of_samples_divides_slots_by_the_global_batch() -> None:
    denominator = decided(4)
    # Warm-ups with slots of other sizes come later.
    denominator.decide(torch.tensor(99), samples=3)
    assert denominator.divides_slots_by(slot(4)) == 48
    assert denominator.divides_slots_by(slot(4, batch_samples=13)) == 13, "the last batch of an epoch is smaller"
    denominator.add(4, slot(4, batch_samples=13))
    assert denominator.take() == (13, None)
    for count, words in ((3, "3"), (torch.tensor(4), "a tensor")):
        with pytest.raises(ConfigError, match=f"counted the samples of the example batch, and {words} for a slot of 4"):
            denominator.add(count, slot(4))


@pytest.mark.parametrize(("of_example", "constant"), [(20, 256), (torch.tensor(4), 64)])
def test_any_other_count_is_summed_and_corrected(of_example: torch.Tensor | int, constant: int) -> None:
    """A tensor even where it is the number of samples: nobody waits for the device to see it."""
    denominator = decided(of_example)
    # The power of two next to the expected count of a global batch of 48: 240, or 48.
    assert denominator.divides_slots_by(slot(4)) == constant
    denominator.add(torch.tensor(999), slot(4))
    denominator.drop()
    denominator.add(torch.tensor(17), slot(4))
    denominator.add(25, slot(4))
    denominator.add(torch.tensor(1000), slot(4, counts=False))
    count, correction = denominator.take()
    assert int(count) == 42 and correction is not None and float(correction) == 42 / constant


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ((torch.zeros(()), 3.0), "a float"),
        ((torch.zeros(4), 4), r"float32 \[4\]"),
    ],
)
def test_a_loss_that_is_no_sum_and_count_is_refused(loss: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"task mine:Task: loss returned .*{words}") as caught:
        checked_loss(loss, CONFIG)
    assert "the sum of the loss" in caught.value.allowed and "correct loss" in caught.value.todo


def test_a_schedule_multiplies_the_peak() -> None:
    class Half(Tagged):
        def schedule(self, step: int, total_steps: int) -> float:
            return 0.5 if step < total_steps / 2 else 0.25

    train = TrainSection(learning_rate=0.2)
    rates = [learning_rate(step, total_steps=4, train=train, task=Half(torch.float32)) for step in range(4)]
    assert rates == [0.1, 0.1, 0.05, 0.05]


def test_a_step_that_counts_nothing_is_left_out_and_ends_nothing() -> None:
    case = Case()
    with one_rank() as rank:
        stepper = Stepper(case.config, case.task, rank, Numerics.of(case.config.train), lambda message: None)
        stepper.warm_up(SLOT)
        readings = Readings(rank.device, stepper.guard)
        before = {name: tensor.clone() for name, tensor in stepper.model.state_dict().items()}
        batch = {name: tensor[:SLOT] for name, tensor in case.task.samples().items()}
        losses = []
        for step, mask in enumerate((torch.zeros_like(batch["mask"]), torch.ones_like(batch["mask"]))):
            request = SlotRequest(step, 0, 0, tuple(range(SLOT)), SLOT, counts=True, last_of_step=True)
            readings.add(stepper.compute(SlotBatch(request, {**batch, "mask": mask}), DataClock(rank.device)))
            update = stepper.update(step, 0.1)
            readings.end_step(update.skipped, update.count)
            readings.send(step + 1, 0.1, [], None)
            reading = readings.read()
            assert reading is not None and reading.gradients.skipped == 0
            losses.append(reading.loss)
            same = all(torch.equal(before[name], tensor) for name, tensor in stepper.model.state_dict().items())
            assert (float(update.skipped), same) == ((1.0, True) if step == 0 else (0.0, False))
        assert losses[0] is None and losses[1] is not None and losses[1] > 0
