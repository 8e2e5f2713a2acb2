"""Summaries of constructed GPU traces against values computed by hand; steps are [0, 1000) in each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.profiling.kineto_writer import KinetoWriter
from trainer.profiling.trace import summarise

OPERATOR: dict[str, Any] = {"External id": 1}


@dataclass(frozen=True)
class Truth:
    """Shares of the window; `idle`: neither kernels nor copies. The step's parts add up to it."""

    busy: float
    exchange: float = 0.0
    copies: float = 0.0
    loader: float = 0.0
    other: float = 0.0

    @property
    def kernels(self) -> float:
        return self.busy - self.exchange


def two_steps() -> KinetoWriter:
    return KinetoWriter().step(0, 500).step(500, 1000)


def every_hundred(writer: KinetoWriter) -> KinetoWriter:
    for start in range(0, 1000, 100):
        writer.kernel(start, start + 40).kernel(start + 20, start + 60, stream=8).kernel(
            start + 25, start + 35, stream=9
        )
    return writer


TRACES: dict[str, tuple[KinetoWriter, Truth]] = {
    "gaps, some of them the loader's": (
        # 100 to 200 is idle in next(), 200 to 260 idle otherwise; the loader's 600 to 700 is beside a kernel.
        two_steps().kernel(0, 100).loader(50, 200).kernel(260, 800).loader(600, 700).kernel(800, 1000),
        Truth(busy=0.84, loader=0.10, other=0.06),
    ),
    "an exchange of which half is exposed": (
        two_steps().kernel(0, 400).exchange(300, 500).kernel(500, 1000),
        Truth(busy=1.0, exchange=0.1),
    ),
    "copies to the device, beside computing and not": (
        # Exposed: [400, 450) of the first, all of the second; of one on the device, too, but no host copy.
        two_steps().kernel(0, 400).copy(300, 450).copy(450, 500).kernel(500, 900).copy(900, 940, "DtoD"),
        Truth(busy=0.8, copies=0.14, other=0.06),
    ),
    "kernels of another GPU": (
        two_steps().kernel(100, 500).kernel(500, 900).kernel(0, 300, device=1),
        Truth(busy=0.8, other=0.2),
    ),
    "small kernels between gaps, on three streams": (
        # Every 100: 40 on the first stream, 40 from 20 on on the second, 10 on the third within both: 60.
        every_hundred(two_steps()),
        Truth(busy=0.6, other=0.4),
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_constructed_trace_of_a_gpu(tmp_path: Path, name: str) -> None:
    written, truth = TRACES[name]
    summary = summarise(written.write(tmp_path / "trace.json"))
    shares = {part: seconds * summary.steps / 1000e-6 for part, seconds in summary.breakdown_s.items()}
    assert summary.gpu_busy_fraction == pytest.approx(truth.busy)
    assert sum(summary.exchanges_s) == pytest.approx(truth.exchange * 1000e-6)
    assert shares == pytest.approx(
        {
            "kernels": truth.kernels,
            "communication": truth.exchange,
            "copies": truth.copies,
            "loader": truth.loader,
            "other": truth.other,
        },
        abs=1e-9,
    )


def test_shares_of_kernels_and_copies(tmp_path: Path) -> None:
    trace = two_steps().operator("aten::copy_", 0, 10, **OPERATOR)
    # Of 800: a copy by its operator, one by its kernel's name, a fused kernel that computes, tensor cores.
    trace.kernel(0, 100, **OPERATOR)
    trace.kernel(100, 200, name="void cudnn::ops::nchwToNhwcKernel<float>")
    trace.kernel(200, 400, name="triton_poi_fused_add_permute_3")
    trace.kernel(400, 800, name="sm80_xmma_fprop_implicit_gemm_f16f16").copy(800, 900, "HtoD (Pageable -> Device)")
    trace.copy(900, 950, "HtoD (Pageable -> Device)")
    summary = summarise(trace.write(tmp_path / "trace.json"))
    assert summary.copy_kernel_fraction == pytest.approx(200 / 800)
    assert summary.tensor_core_fraction == pytest.approx(400 / 800)
    assert (summary.kernels_per_step, summary.mean_kernel_us) == (2, 200)
    assert summary.exposed_copy_fraction == pytest.approx(0.15)
    assert summary.pageable_copies == 1
    (row,) = [row for row in summary.operators if row.name == "aten::copy_"]
    assert row.device_s == pytest.approx(100e-6)
    assert summary.kernels[0].total_s == pytest.approx(400e-6)
