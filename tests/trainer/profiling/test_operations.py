"""Operations from recorded shapes are what torch counts for the same calls."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, conv_transpose2d, scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.flop_counter import FlopCounterMode

from trainer.profiling.kineto import Event
from trainer.profiling.operations import operations
from trainer.profiling.trace import summarise


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


CALLS: dict[str, Callable[[], torch.Tensor]] = {
    "linear": lambda: nn.functional.linear(tensor(4, 6), tensor(3, 6), tensor(3)),
    "batched": lambda: tensor(2, 4, 6) @ tensor(2, 6, 5),
    "convolution": lambda: conv2d(tensor(2, 4, 9, 7), tensor(6, 4, 3, 2), tensor(6), stride=2, padding=1),
    "same for both axes": lambda: nn.Conv2d(4, 8, 3, padding=2, dilation=2)(tensor(2, 4, 9, 9)),
    "groups": lambda: conv2d(tensor(2, 4, 8, 8), tensor(8, 1, 3, 3), groups=4),
    "first layer": lambda: conv2d(torch.randn(2, 3, 8, 8), tensor(4, 3, 3, 3)),
    "transposed": lambda: conv_transpose2d(tensor(2, 4, 5, 5), tensor(4, 6, 3, 3), stride=2),
    "attention": lambda: scaled_dot_product_attention(tensor(2, 3, 8, 16), tensor(2, 3, 8, 16), tensor(2, 3, 8, 16)),
}


# Where torch counts wrongly: a weight's gradient as if there were no groups, attention on a CPU not at all.
BY_HAND = {
    "groups": 3 * 2 * 2 * (6 * 6) * (8 * 1 * 3 * 3),
    # Two products of 8 x 16 x 8 for each of 2 x 3 heads, and five more backward.
    "attention": 7 * 2 * 6 * (8 * 16 * 8),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_what_torch_counts(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.json"
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(CALLS[name]().sum())
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=partial(_write, path),
        record_shapes=True,
        acc_events=True,
    ) as profiler:
        for _ in range(2):
            torch.autograd.backward(CALLS[name]().sum())
            profiler.step()
    found = sum(row.flops or 0.0 for row in summarise(path).operators)
    assert found == BY_HAND.get(name, counter.get_total_flops()) > 0


def _write(path: Path, profiler: profile) -> None:
    profiler.export_chrome_trace(str(path))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"Input Dims": []},
        {"Input Dims": [[2, 3]]},
        {"Input Dims": "?"},
        {"Input Dims": [[2, 3, 8, 8], [4, 3, 3, 3]]},
        {"Input Dims": [[2, 3, 8, 8], [4, 3, 3, 3]], "Concrete Inputs": ["", "", "", "?", "", "", "False"]},
    ],
)
@pytest.mark.parametrize("name", ["aten::convolution", "aten::convolution_backward", "aten::_scaled_dot_product_x"])
def test_unknown_shapes_have_no_number(name: str, given: dict[str, object]) -> None:
    assert operations(Event(name, "cpu_op", 0, 1, "1", "1", given)) is None
