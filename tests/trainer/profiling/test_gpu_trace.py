"""What is planted in a synthetic GPU trace is what its summary says."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts.trace import TraceSummary
from tests.trainer.profiling.gpu_trace import HOST, SYNTHETIC, USER, write_gpu_trace
from trainer.profiling.trace import strip_host, summarise


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


@pytest.mark.parametrize(
    "what_is_wrong",
    [
        {},
        {"loader_us": 20000.0},
        {"kernel_us": 3.0, "kernels": 200},
        {"exchange_us": 6000.0, "exchange_beside": 0.0, "ranks": 4},
        {"copy_beside": False, "copy_us": 2000.0},
        {"sync_every": 10, "sync_idle_us": 300.0},
    ],
)
def test_the_parts_of_a_step_add_up(tmp_path: Path, what_is_wrong: dict[str, Any]) -> None:
    found = summary(tmp_path, **what_is_wrong)
    assert set(found.breakdown_s) == {"kernels", "communication", "copies", "loader", "other"}
    assert all(seconds >= 0 for seconds in found.breakdown_s.values())
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_s, rel=0.1)


def test_a_slow_loader_leaves_the_gpu_idle(tmp_path: Path) -> None:
    found = summary(tmp_path, loader_us=30000.0)
    assert found.gpu_busy_fraction is not None and found.gpu_busy_fraction < 0.8
    assert found.breakdown_s["loader"] > 0.9 * (sum(found.breakdown_s.values()) - found.breakdown_s["kernels"])


def test_exchange_counts_where_nothing_computes(tmp_path: Path) -> None:
    beside = summary(tmp_path, exchange_us=6000.0, exchange_beside=1.0, ranks=4)
    after = summary(tmp_path, exchange_us=6000.0, exchange_beside=0.0, ranks=4)
    assert beside.communication_fraction == pytest.approx(0.0, abs=1e-3)
    assert after.breakdown_s["communication"] == pytest.approx(6e-3, rel=1e-3)
    assert after.communication_fraction == pytest.approx(6e-3 / after.step_s, rel=0.05)


def test_strip_host_leaves_nothing_of_the_machine(tmp_path: Path) -> None:
    path = write_gpu_trace(tmp_path / "trace.json.gz")
    before = summarise(path)
    strip_host(path)
    text = gzip.decompress(path.read_bytes()).decode()
    for name in (HOST, HOST.split(".")[0], USER, "/home", "INFO", "host_name"):
        assert name not in text
    assert SYNTHETIC in text
    assert json.loads(text)["deviceProperties"][0]["name"] == before.gpu_name
    assert summarise(path) == before


def test_steps_that_were_queued_behind_others(tmp_path: Path) -> None:
    """The GPU still works off what was queued before the trace began: it is late, not idle."""
    path = write_gpu_trace(tmp_path / "trace.json")
    at_once = summarise(path)
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event["pid"] == 0 and event["ph"] == "X":
            event["ts"] += 40000.0
    path.write_text(json.dumps(document))
    late = summarise(path)
    assert late.gpu_busy_fraction == pytest.approx(at_once.gpu_busy_fraction, rel=0.01)
    assert late.step_s == pytest.approx(at_once.step_s, rel=0.01)


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
