"""Operations of forward and backward passes, against products counted by hand."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from contracts.machines import ACCELERATORS, LEAST_FOR_CUDA_13, Accelerator
from trainer.export.runtime import GPUS
from trainer.profiling.flops import Precision, count_flops, peak_flops


class Attention(nn.Module):
    """Two heads over 16 places, eight wide."""

    def __init__(self) -> None:
        super().__init__()
        self.to_heads = nn.Linear(16, 48)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        query, key, value = self.to_heads(texts).view(len(texts), 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(query, key, value)


def needs_values(make: Callable[[], nn.Module]) -> nn.Module:
    """A network whose building reads a value, which the meta device does not have."""
    model = make()
    assert float(next(model.parameters()).detach().sum()) < 1e9
    return model


PLAIN = 2 * 2 * 64 * 32 * 32 * 9  # 2 pictures of 8 x 8, 32 to 32 channels, 3 x 3
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    # Forward, and the weight's gradient: the input asks for none.
    "linear": (partial(nn.Linear, 8, 4), (3, 8), 2 * (2 * 3 * 8 * 4)),
    "convolution": (partial(nn.Conv2d, 32, 32, 3, padding=1), (2, 32, 8, 8), 2 * PLAIN),
    "depthwise": (partial(nn.Conv2d, 32, 32, 3, padding=1, groups=32), (2, 32, 8, 8), 2 * PLAIN / 32),
}


@pytest.mark.parametrize("on_cpu", [False, True], ids=["meta", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_products_are_counted(name: str, on_cpu: bool) -> None:
    make, shape, wanted = CASES[name]
    build = partial(needs_values, make) if on_cpu else make
    assert count_flops(build, [torch.zeros(shape)], {}) == wanted


def test_attention_is_counted_on_a_cpu_as_on_meta() -> None:
    inputs = [torch.zeros(2, 16, 16)]
    on_meta, on_cpu = (count_flops(build, inputs, {}) for build in (Attention, partial(needs_values, Attention)))
    linear, product = 2 * (2 * 32 * 16 * 48), 2 * 2 * 2 * 16 * 16 * 8
    # Two products forward, four backward.
    assert on_meta == on_cpu == linear + 6 * product


def test_what_is_frozen_is_counted_as_far_as_it_is_computed() -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))

    one = 2 * 4 * 8 * 8
    whole = dict.fromkeys(name for name, _ in build().named_parameters())
    assert count_flops(build, [torch.zeros(4, 8)], {}) == 8 * one
    # The first two are frozen: nothing behind the head's input has a gradient.
    assert count_flops(build, [torch.zeros(4, 8)], {name: name.startswith("2.") for name in whole}) == 4 * one
    # The last two are: gradients pass through them to the first.
    assert count_flops(build, [torch.zeros(4, 8)], {name: name.startswith("0.") for name in whole}) == 6 * one
    assert count_flops(build, [torch.zeros(4, 8)], dict.fromkeys(whole, False)) == 3 * one


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("Tesla T4", "fp16", 65),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA GeForce RTX 3090", "fp32", None),
    ],
)
def test_peaks_are_dense_or_unknown(name: str | None, precision: Precision, tera: float | None) -> None:
    assert peak_flops(name, precision) == (None if tera is None else pytest.approx(tera * 1e12))


# Names by the driver of the kinds that contracts/machines.py knows; no data sheet gives the peak of the last one.
DRIVER_NAMES = {
    "NVIDIA_TESLA_T4": "Tesla T4",
    "NVIDIA_TESLA_V100": "Tesla V100-SXM2-16GB",
    "NVIDIA_L4": "NVIDIA L4",
    "NVIDIA_TESLA_A100": "NVIDIA A100-SXM4-40GB",
    "NVIDIA_A100_80GB": "NVIDIA A100-SXM4-80GB",
    "NVIDIA_H100_80GB": "NVIDIA H100 80GB HBM3",
    "NVIDIA_H100_MEGA_80GB": "NVIDIA H100 80GB HBM3",
    "NVIDIA_H200_141GB": "NVIDIA H200",
    "NVIDIA_B200": "NVIDIA B200",
    "NVIDIA_RTX_PRO_6000": None,
}


@pytest.mark.parametrize("kind", ACCELERATORS.values(), ids=lambda kind: kind.name)
def test_every_gpu_of_a_machine_type_is_known_to_the_export_and_has_a_peak(kind: Accelerator) -> None:
    driver_name = DRIVER_NAMES[kind.name]
    assert driver_name is None or peak_flops(driver_name, "fp16")
    if kind.capability_x10 >= LEAST_FOR_CUDA_13:
        name = kind.short.lower().replace(" ", "-")
        assert any(name.startswith(known) for known in GPUS[kind.capability])
