"""Networks at the ends of the ranges of their dimensions, and inputs of other sizes."""

import pytest
import torch
from torch import nn

from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from contracts.errors import ModelError
from trainer.model.build import check_sizes
from trainer.model.signature import resize_inputs


class Recorder(nn.Module):
    """Keeps the shapes that it was given; fails at some; its states have the length of its input, or a fixed one."""

    def __init__(self, fails_at: tuple[int, ...] = (), states: int = 0) -> None:
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(1)), []
        self.fails_at, self.states = fails_at, states

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        batch, *shape = images.shape
        self.seen.append((batch, *shape))
        if batch in self.fails_at or any(size in self.fails_at for size in shape):
            raise ValueError("nothing\nof that size")
        return torch.zeros(batch, self.states or shape[0])


PLANE = Signature(
    inputs={"images": TensorSpec(dtype="float32", shape=["batch", "height", "width"])},
    outputs={"rows": OutputSpec(dtype="float32", shape=["batch", "height"])},
    dimensions={"height": Dimension(min=4, opt=6, max=12, multiple=2), "width": Dimension(min=5, opt=5, max=7)},
)


def check(model: Recorder, *, largest_only: bool = False) -> list[tuple[int, ...]]:
    check_sizes(model, (torch.rand(2, 8, 6),), PLANE, name="it", largest_only=largest_only)
    return model.seen


def test_both_ends_and_a_batch_of_one_are_tried_on_values_of_the_example() -> None:
    assert check(Recorder()) == [(1, 6, 5), (2, 4, 5), (2, 12, 7)]
    assert check(Recorder(), largest_only=True) == [(1, 12, 7)]
    values = torch.arange(12.0).view(2, 3, 2)
    (resized,) = resize_inputs((values,), PLANE, {"batch": 1, "height": 5, "width": 1})
    assert resized.tolist() == [[[0.0], [2.0], [4.0], [0.0], [2.0]]]


@pytest.mark.parametrize(
    ("model", "given", "todo"),
    [
        (Recorder((12,)), "it fails at height 12 and width 7 (max of its range", "or set max of height, width"),
        (Recorder(states=6), "rows is float32 [2, 6], the task's signature says float32 [batch, height]", "set min of"),
    ],
)
def test_a_size_that_fails_is_named(model: Recorder, given: str, todo: str) -> None:
    with pytest.raises(ModelError) as raised:
        check(model)
    assert given in raised.value.given and "\n" not in raised.value.given
    assert todo in raised.value.todo
