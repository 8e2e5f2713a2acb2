"""Recording a trace here, and summaries of traces that PyTorch recorded (traces/, by record_traces.py)."""

import getpass
import gzip
import json
import re
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from contracts.artifacts import TraceSummary
from contracts.errors import DataError
from trainer.profiling.trace import LOADER, SLOT, UPDATE, annotate, record, summarise

FOLDER = Path(__file__).parent / "traces"
RECORDED = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


@cache
def recorded(name: str) -> TraceSummary:
    return summarise(FOLDER / f"{name}.json.gz")


def share(summary: TraceSummary, part: str) -> float:
    return summary.breakdown_s[part] / sum(summary.breakdown_s.values())


def test_a_recorded_trace_has_its_steps_and_no_host(tmp_path: Path) -> None:
    layer, profiling = torch.nn.Linear(64, 64), list[bool]()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def take_step() -> None:
        profiling.append(torch.autograd.profiler._is_profiler_enabled)
        with annotate(LOADER):
            inputs = torch.randn(32, 64)
        with annotate(SLOT):
            layer(inputs).sum().backward()
        with annotate(UPDATE):
            optimizer.step()

    path = tmp_path / "rank-3.json.gz"
    record(path, take_step, steps=3, rank=3, cuda=False)
    take_step()
    assert profiling == [False, True, True, True, False]
    text = gzip.decompress(path.read_bytes()).decode()
    document = json.loads(text)
    # HolisticTraceAnalysis 0.5 finds the rank by this pattern.
    assert document["distributedInfo"]["rank"] == 3 and re.search(r'"rank":\s+3\b', text)
    assert not {"host_name", "username"} & set(document)
    assert f'"{socket.gethostname()}"' not in text and f"/{getpass.getuser()}/" not in text
    assert not any("Input Dims" in event.get("args", {}) for event in document["traceEvents"])
    summary = summarise(path)
    assert (summary.rank, summary.device, summary.steps) == (3, "cpu", 3)
    assert min(summary.breakdown_s[part] for part in ("loader", "forward", "backward", "optimizer")) > 0
    assert summary.memory


@pytest.mark.parametrize("name", RECORDED)
def test_parts_of_recorded_steps(name: str) -> None:
    summary = recorded(name)
    assert (summary.device, summary.steps) == ("cpu", 3)
    assert set(summary.breakdown_s) == {"loader", "forward", "backward", "optimizer", "communication", "other"}
    assert sum(summary.breakdown_s.values()) == pytest.approx(summary.step_s)
    assert share(summary, "other") < 0.05
    # Values of a GPU are not measured, and not 0.
    assert {summary.gpu_busy_fraction, summary.kernels_per_step, summary.pageable_copies} == {None}
    assert not summary.kernels
    assert 0 < sum(row.self_s for row in summary.operators) <= 2 * summary.steps * summary.step_s
    assert all(row.device_s is None for row in summary.operators)


def test_causes_are_seen() -> None:
    assert share(recorded("starved"), "loader") > 0.6 > 0.2 > share(recorded("steady"), "loader")
    copying, steady = recorded("copying").copy_kernel_fraction, recorded("steady").copy_kernel_fraction
    assert copying is not None and steady is not None and copying > 0.2 > 0.02 > steady
    assert min(share(recorded(f"exchange-{rank}"), "communication") for rank in (0, 1)) > 0.2
    # A rank that is alone has no exchange; the rank that waits for a slow one shows its wait as exchange.
    assert share(recorded("steady"), "communication") == 0
    assert share(recorded("straggler-0"), "communication") > 0.6
    assert share(recorded("straggler-1"), "communication") < 0.2


def test_memory_samples_keep_the_peak() -> None:
    for name in RECORDED:
        samples = recorded(name).memory
        raw = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))["traceEvents"]
        peak = max(event["args"]["Total Allocated"] for event in raw if event["name"] == "[memory]")
        assert max(sample.allocated_bytes for sample in samples) == peak
        assert 0 < len(samples) <= 400
        assert [sample.at_s for sample in samples] == sorted(sample.at_s for sample in samples)


def cut_short(path: Path) -> None:
    path.write_bytes((FOLDER / "steady.json.gz").read_bytes()[:20000])


def without_steps(path: Path) -> None:
    document = json.loads(gzip.decompress((FOLDER / "steady.json.gz").read_bytes()))
    document["traceEvents"] = [e for e in document["traceEvents"] if not e["name"].startswith("ProfilerStep")]
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: None,
        lambda path: path.write_text("not JSON"),
        lambda path: path.write_text('{"traceEvents": [1, 2]}'),
        cut_short,
        without_steps,
    ],
    ids=["missing", "text", "numbers", "cut short", "without steps"],
)
def test_a_file_that_is_no_trace(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "trace.json"
    write(path)
    with pytest.raises(DataError, match=r"trace\.json is no trace of torch\.profiler"):
        summarise(path)
