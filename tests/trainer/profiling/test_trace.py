"""Recording a trace of steps, and its summary."""

import getpass
import gzip
import json
import re
import socket
from pathlib import Path

import pytest
import torch

from contracts.errors import DataError
from trainer.profiling.trace import LOADER, SLOT, UPDATE, annotate, record, summarise


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
    assert sum(summary.breakdown_s.values()) == pytest.approx(summary.step_s)
    # Values of a GPU are not measured, and not 0.
    assert {summary.gpu_busy_fraction, summary.kernels_per_step, summary.pageable_copies} == {None}
    assert not summary.kernels and all(row.device_s is None for row in summary.operators)
    assert 0 < sum(row.self_s for row in summary.operators) <= 2 * summary.steps * summary.step_s
    peak = max(event["args"]["Total Allocated"] for event in document["traceEvents"] if event["name"] == "[memory]")
    assert max(sample.allocated_bytes for sample in summary.memory) == peak
    # A trace that was cut short.
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"rank-3\.json\.gz is no trace of torch\.profiler"):
        summarise(path)
