"""Peaks of GPUs by the names that drivers give them."""

import pytest

from trainer.profiling.peaks import Precision, peak_bandwidth, peak_flops


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("Tesla T4", "fp16", 65),
        ("Tesla T4", "fp32", 8.1),
        ("Tesla P100-PCIE-16GB", "fp32", 9.3),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA A100-SXM4-40GB", "tf32", 156),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
    ],
)
def test_peaks_are_dense(name: str, precision: Precision, tera: float) -> None:
    assert peak_flops(name, precision) == pytest.approx(tera * 1e12)


def test_products_of_a_gpu_without_tf32_are_fp32() -> None:
    assert peak_flops("Tesla V100-SXM2-16GB", "tf32") == peak_flops("Tesla V100-SXM2-16GB", "fp32")


@pytest.mark.parametrize(
    "name", [None, "", "NVIDIA GeForce RTX 3090", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A1000", "AMD Instinct"]
)
def test_what_no_data_sheet_says_is_unknown(name: str | None) -> None:
    assert peak_flops(name, "fp32") is None
    assert peak_bandwidth(name) is None


def test_a_gpu_without_bf16_has_no_peak_in_it() -> None:
    assert peak_flops("Tesla T4", "bf16") is None
    assert peak_flops("Tesla V100-SXM2-16GB", "bf16") is None


@pytest.mark.parametrize(
    ("name", "giga"),
    [
        ("Tesla P4", 192),
        ("Tesla T4", 320),
        ("Tesla V100-SXM2-16GB", 900),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA L4", 300),
        ("NVIDIA L40S", 864),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H200", 4800),
        ("NVIDIA GH200 480GB", 4000),
        ("NVIDIA GB200", 8000),
    ],
)
def test_bandwidth_is_that_of_the_memory_a_gpu_has(name: str, giga: float) -> None:
    assert peak_bandwidth(name) == giga * 1e9
    assert peak_flops(name, "fp32") is not None


def test_bandwidth_without_a_peak_is_bandwidth() -> None:
    """Sources contradict each other on this one's tensor cores."""
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert (peak_bandwidth(name), peak_flops(name, "bf16")) == (1597e9, None)
