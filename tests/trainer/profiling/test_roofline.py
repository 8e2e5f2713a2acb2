"""Operators that memory limits, on traces whose bytes, times and bandwidth are known by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.trainer.profiling.kineto_writer import KinetoWriter
from trainer.profiling.kineto import Event, read_document
from trainer.profiling.roofline import bytes_moved
from trainer.profiling.trace import summarise

# Bytes per second of the writer's GPU, an A100-SXM4-40GB.
BANDWIDTH = 1555e9
MB = 10**6
Call = tuple[str, list[list[int]], list[str], float]


def traced(folder: Path, *calls: Call, gpu: str = "NVIDIA A100-SXM4-40GB") -> dict[str, float] | None:
    """Return what is said of operators that follow each other, each with one kernel of that many microseconds."""
    trace, at = KinetoWriter(gpu=gpu).step(0, 1000), 0.0
    for number, (name, dims, types, took) in enumerate(calls):
        given: dict[str, Any] = {"External id": number, "Input Dims": dims, "Input type": types}
        trace.operator(name, at, at + 1, **given).kernel(at, at + took, **{"External id": number})
        at += took
    return summarise(trace.write(folder / "trace.json")).memory_bound


# 64 MB read and 64 MB written in 100 us: 1,280 GB/s, 82 % of the bandwidth.
PASSED_ON: Call = ("aten::relu", [[32, 1_000_000]], ["c10::Half"], 100.0)
# 101 MB for 137 GFLOP in 500 us: 88 % of the tensor cores' peak, 13 % of the bandwidth.
PRODUCT: Call = ("aten::mm", [[4096, 4096], [4096, 4096]], ["c10::Half", "c10::Half"], 500.0)
# A vector by a matrix, 134 MB in 100 us: 86 % of the bandwidth.
BY_A_VECTOR: Call = ("aten::mm", [[1, 8192], [8192, 8192]], ["c10::Half", "c10::Half"], 100.0)


def test_what_memory_limits_has_its_share_of_the_kernels_time(tmp_path: Path) -> None:
    found = traced(tmp_path, PASSED_ON, PRODUCT, BY_A_VECTOR, PASSED_ON, ("aten::sort", [], [], 200.0))
    assert found == pytest.approx({"aten::relu": 0.2, "aten::mm": 0.1})
    assert found is not None and list(found) == ["aten::relu", "aten::mm"]


@pytest.mark.parametrize(
    "call",
    [
        PRODUCT,
        # 205 MB of which 32 rows are read; as much, read from a tensor that was expanded: faster than memory is.
        ("aten::embedding", [[50_000, 1024], [32]], ["float", "long int"], 150.0),
        ("aten::sum", [[50_000, 1024]], ["float"], 10.0),
        # 2 MB in 20 us: it is the launch that takes the time.
        ("aten::add", [[500_000], [500_000]], ["c10::BFloat16", "c10::BFloat16"], 20.0),
    ],
)
def test_what_memory_does_not_limit_is_not_said_to_be(tmp_path: Path, call: Call) -> None:
    assert traced(tmp_path, call, ("aten::mm", [[8, 8], [8, 8]], ["float", "float"], 5.0)) == {}


def test_what_cannot_be_told_is_none(tmp_path: Path) -> None:
    assert traced(tmp_path, ("aten::relu", [], [], 100.0)) is None
    assert traced(tmp_path, PASSED_ON, gpu="NVIDIA GeForce RTX 3090") is None


@pytest.mark.parametrize(
    ("given", "least"),
    [
        (lambda: torch.randn(10, 20).add_(torch.randn(10, 20)), {"aten::add_": 3 * 800}),
        (lambda: torch.randn(10, 20).half().copy_(torch.randn(10, 20)), {"aten::copy_": 400 + 800}),
        (lambda: torch.mm(torch.randn(10, 20), torch.randn(20, 5)), {"aten::mm": 800 + 400 + 200}),
        (lambda: torch.ones(10, 20).sum(), {"aten::sum": 800}),
        (lambda: torch.cat([torch.ones(10), torch.ones(10)]), {"aten::cat": None}),
        (lambda: torch.nn.functional.batch_norm(torch.ones(4, 2, 5, 5), None, None, training=True), {}),
    ],
)
def test_bytes_of_calls_as_torch_records_them(tmp_path: Path, given: Any, least: dict[str, int | None]) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as profiler:
        given()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found: dict[str, int | None] = {}
    for raw in read_document(tmp_path / "trace.json")["traceEvents"]:
        if raw.get("cat") == "cpu_op":
            found[raw["name"]] = bytes_moved(Event(raw["name"], "cpu_op", 0, 1, "1", "1", raw["args"]))
    assert {name: found[name] for name in least} == least
    if not least:
        # Once in and once out, at least.
        assert found["aten::native_batch_norm"] == 2 * 800
