"""What is planted in a synthetic GPU trace is what its summary says."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts.trace import TraceSummary
from tests.trainer.profiling.gpu_trace import write_gpu_trace
from trainer.profiling.trace import summarise


def summary(folder: Path, **what_is_wrong: Any) -> TraceSummary:
    return summarise(write_gpu_trace(folder / "trace.json.gz", **what_is_wrong))


def test_a_busy_gpu(tmp_path: Path) -> None:
    found = summary(tmp_path, steps=3, slots=2, kernels=60, kernel_us=120.0, occupancy=62.0)
    assert (found.device, found.gpu_name, found.rank, found.steps) == ("gpu", "NVIDIA A100-SXM4-40GB", 0, 3)
    # Twice 60 + 120 kernels and the update's; they follow each other without a gap.
    assert found.kernels_per_step == 361
    assert found.mean_kernel_us == pytest.approx(120, rel=1e-3)
    assert found.step_s == pytest.approx(361 * 120e-6, rel=0.02)
    assert found.gpu_busy_fraction is not None and found.gpu_busy_fraction > 0.99
    assert found.occupancy_fraction == pytest.approx(0.62)
    assert found.pageable_copies == 0
    assert found.sync_calls == 0


def test_what_the_probe_waits_for_between_steps_is_no_wait_of_theirs(tmp_path: Path) -> None:
    path = write_gpu_trace(tmp_path / "trace.json", steps=1)
    document = json.loads(path.read_text())
    (step,) = [event for event in document["traceEvents"] if event["name"].startswith("ProfilerStep#")]
    # Within the step, behind its last part.
    wait = {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": step["pid"], "tid": step["tid"]}
    document["traceEvents"].append(wait | {"ts": step["ts"] + step["dur"], "dur": 900.0, "args": {}})
    step["dur"] += 1000.0
    path.write_text(json.dumps(document))
    found = summarise(path)
    assert (found.sync_calls, found.sync_fraction) == (0, 0)


def test_what_the_loader_waits_for_is_no_wait_of_the_steps(tmp_path: Path) -> None:
    path = write_gpu_trace(tmp_path / "trace.json", loader_us=5000.0, loader_sync_us=4000.0, sync_every=90)
    names = [event["name"] for event in json.loads(path.read_text())["traceEvents"]]
    found = summarise(path)
    assert names.count("cudaEventSynchronize") == 2 * found.steps
    # Of 361 kernels a step every 90th is waited for; the loader's two waits do not count.
    assert found.sync_calls == pytest.approx(names.count("cudaStreamSynchronize") / found.steps)
    assert found.sync_calls == pytest.approx(4, abs=0.5)
