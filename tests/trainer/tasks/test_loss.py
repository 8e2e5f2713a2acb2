"""The sum and the count that a task's loss returns, and what the sum over a global batch is divided by."""

from typing import Any

import pytest
import torch

from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.data.cursor import SlotRequest
from trainer.parallel.process_group import Rank
from trainer.tasks.loss import Denominator, checked_loss

CONFIG = RunConfig.model_validate({"task": {"name": "mine:Task"}, "train": {"global_batch_size": 48}})
RANK = Rank(0, 0, 1, torch.device("cpu"))


def slot(samples: int, *, batch_samples: int = 48, counts: bool = True) -> SlotRequest:
    places = tuple(range(samples))
    return SlotRequest(0, 0, 0, places, batch_samples, counts=counts, last_of_step=False)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (torch.zeros(()), "loss returned a Tensor"),
        ([torch.zeros(()), 3], "loss returned a list"),
        (None, "loss returned a NoneType"),
        ((torch.zeros(()),), "loss returned a tuple of 1"),
        ((torch.zeros(()), None), "loss returned a NoneType as its count"),
        ((torch.zeros(()), 3.0), "loss returned a float as its count"),
        ((torch.zeros(()), True), "loss returned a bool as its count"),
        ((torch.zeros(()), torch.tensor(3.0)), r"loss returned a torch.float32 tensor \[\] as its count"),
        ((torch.zeros(()), torch.tensor([3])), r"loss returned a torch.int64 tensor \[1\] as its count"),
        ((torch.zeros(4), 4), r"loss returned a torch.float32 tensor \[4\] as its sum"),
        ((torch.tensor(4), 4), r"loss returned a torch.int64 tensor \[\] as its sum"),
        ((4.0, 4), "loss returned a float as its sum"),
    ],
)
def test_a_loss_that_is_no_sum_and_count_is_refused(found: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"task mine:Task: {words}") as caught:
        checked_loss(found, CONFIG)
    assert "the sum of the loss" in caught.value.allowed and "correct loss" in caught.value.todo


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_a_sum_is_float32_at_least(given: torch.dtype, kept: torch.dtype) -> None:
    for count in (7, torch.tensor(7)):
        loss, same = checked_loss((torch.tensor(2.5, dtype=given), count), CONFIG)
        assert loss.dtype == kept and float(loss) == 2.5 and same is count


def test_a_count_of_samples_divides_slots_by_the_global_batch() -> None:
    denominator = Denominator(CONFIG, RANK)
    denominator.decide(4, samples=4)
    # The last batch of an epoch is smaller.
    assert denominator.divides_slots_by(slot(4)) == 48
    assert denominator.divides_slots_by(slot(4, batch_samples=13)) == 13
    denominator.add(4, slot(4, batch_samples=13))
    denominator.add(1, slot(1, batch_samples=13))
    assert denominator.take() == (13, None)


@pytest.mark.parametrize("count", [3, torch.tensor(4)])
def test_a_count_that_is_of_samples_on_the_example_alone_is_refused(count: torch.Tensor | int) -> None:
    denominator = Denominator(CONFIG, RANK)
    denominator.decide(4, samples=4)
    shown = "a tensor" if isinstance(count, torch.Tensor) else "3"
    with pytest.raises(ConfigError, match=f"counted the samples of the example batch, and {shown} for a slot of 4"):
        denominator.add(count, slot(4))


@pytest.mark.parametrize("of_example", [torch.tensor(20), 20, torch.tensor(4)])
def test_any_other_count_is_summed_and_corrected(of_example: torch.Tensor | int) -> None:
    """A tensor counts so even where it is the number of samples, since nobody may ask the device for its value."""
    denominator = Denominator(CONFIG, RANK)
    denominator.decide(of_example, samples=4)
    # The power of two that is next to the count that a global batch of 48 is expected to have: 240, or 48.
    constant = 256.0 if int(of_example) == 20 else 64.0
    assert denominator.divides_slots_by(slot(4)) == constant
    denominator.add(torch.tensor(17), slot(4))
    denominator.add(25, slot(4))
    # A repeated slot is there for collectives alone.
    denominator.add(torch.tensor(1000), slot(4, counts=False))
    count, correction = denominator.take()
    assert int(count) == 42 and correction is not None and float(correction) == 42 / constant
    # What slots were divided by, times the correction, is the count: the mean.
    assert float(correction) * denominator.divides_slots_by(slot(4)) == 42
    denominator.add(torch.tensor(5), slot(4))
    assert int(denominator.take()[0]) == 5


def test_slots_that_are_dropped_do_not_count() -> None:
    denominator = Denominator(CONFIG, RANK)
    denominator.decide(torch.tensor(8), samples=4)
    denominator.add(torch.tensor(17), slot(4))
    denominator.drop()
    denominator.add(torch.tensor(5), slot(4))
    assert int(denominator.take()[0]) == 5


def test_the_first_example_decides() -> None:
    """Warm-ups with slots of other sizes come later, and counts of theirs must not change it."""
    denominator = Denominator(CONFIG, RANK)
    denominator.decide(4, samples=4)
    denominator.decide(torch.tensor(99), samples=3)
    assert denominator.divides_slots_by(slot(4)) == 48
    counted = Denominator(CONFIG, RANK)
    counted.decide(torch.tensor(0), samples=4)
    # An example that counts nothing: log2(1 / 4 * 48) is 3.6.
    assert counted.divides_slots_by(slot(4)) == 16
