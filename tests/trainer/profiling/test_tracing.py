"""The profiler exists while steps are traced, and neither before nor after."""

import gc
import re
from pathlib import Path

import pytest
import torch

from contracts.artifacts import Settings
from contracts.config import RunConfig
from tests.conftest import small_config
from tests.trainer.one_rank import one_rank
from trainer.profiling.diagnosis import count_ranks
from trainer.profiling.kineto import read_document
from trainer.profiling.messages import Request
from trainer.profiling.probe import RankProbe
from trainer.profiling.service import Service
from trainer.profiling.steps import Steps
from trainer.profiling.trace import summarise


def profilers() -> int:
    """Return how many profilers there are in this process."""
    kinds = (torch.profiler.profile, torch.autograd.profiler.profile)
    # By the type itself: isinstance asks some objects for their class, which warns.
    return sum(issubclass(type(thing), kinds) for thing in gc.get_objects())


def test_no_profiler_object_exists_outside_of_the_traced_steps(
    small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = small_config(profile={"window_s": 0.05}, resources={"ranks": 1})
    config = RunConfig.model_validate({name: value for name, value in values.items() if name != "sharding"})
    assignment = RankProbe(config, shards=small_shards, ranks=1, threads=1).assignment
    seen: list[tuple[int, bool]] = []
    take_one = Steps.take_one

    def watched(steps: Steps) -> int:
        slots = take_one(steps)
        seen.append((profilers(), torch.autograd._profiler_enabled()))
        return slots

    monkeypatch.setattr(Steps, "take_one", watched)
    with one_rank() as rank:
        service = Service(assignment, config, rank, tmp_path)
        monkeypatch.setattr("trainer.profiling.memory._free_bytes", lambda: 8 << 30)
        began = service.hello()
        service.answer(Request(name="open", settings=Settings(slot_size=4, slots_per_rank=4, num_workers=0), number=0))
        service.answer(Request(name="window", number=0))
        service.answer(Request(name="close"))
        assert set(seen) == {(0, False)}
        seen.clear()
        # Others took what was free when the probe began.
        monkeypatch.setattr("trainer.profiling.memory._free_bytes", lambda: 1 << 20)
        counted = service.trace(Settings(slot_size=4, slots_per_rank=4, num_workers=0), steps=3)
        assert began.memory_limit_bytes is not None and counted.memory_limit_bytes is not None
        assert counted.memory_limit_bytes < began.memory_limit_bytes
        judged = count_ranks(config, Settings(slot_size=4, slots_per_rank=4, num_workers=0), [counted], began)
        assert judged.memory_limit_bytes == counted.memory_limit_bytes
        # One step for which it only gets ready, and three that it records; likewise two in detail.
        assert [enabled for number, enabled in seen if number] == [False, True, True, True, False, True, True]
        assert seen[:-7] == [(0, False)] * (len(seen) - 7)
        assert len(seen) > 7
        gc.collect()
        assert profilers() == 0 and not torch.autograd._profiler_enabled()
    # As TensorBoard's plugin wants them (torch_tb_profiler/consts.py, WORKER_PATTERN), with a word for the host.
    trace_name, details_name = counted.files
    (tmp_path / "details").mkdir()
    for name, content in counted.files.items():
        (tmp_path / name).write_bytes(content)
    pattern = r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$"
    worker = re.match(pattern, trace_name)
    assert worker is not None and worker[1] == "rank-0" and worker[2]
    assert details_name == f"details/{trace_name}"
    light, details = (read_document(tmp_path / name) for name in (trace_name, details_name))
    assert [bool(trace.get("record_shapes")) for trace in (light, details)] == [False, True]
    for trace, detailed in ((light, False), (details, True)):
        assert any("Input Dims" in event.get("args", {}) for event in trace["traceEvents"]) is detailed
        assert any(event["name"] == "[memory]" for event in trace["traceEvents"]) is detailed
    found = summarise(tmp_path / trace_name, tmp_path / details_name)
    assert found.steps == 3 and found.memory
    assert not summarise(tmp_path / trace_name).memory
