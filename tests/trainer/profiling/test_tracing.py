"""The profiler exists while steps are traced, and neither before nor after."""

import gc
from pathlib import Path

import pytest
import torch

from contracts.artifacts import Settings
from contracts.config import RunConfig
from tests.conftest import small_config
from tests.trainer.one_rank import one_rank
from trainer.profiling.bench import Steps
from trainer.profiling.probe import RankProbe
from trainer.profiling.service import Service


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
        service = Service(assignment, config, rank)
        service.hello()
        service.run(Settings(slot_size=4, slots_per_rank=4, num_workers=0), windows=1)
        assert set(seen) == {(0, False)}
        seen.clear()
        counted = service.trace(Settings(slot_size=4, slots_per_rank=4, num_workers=0), steps=3, folder=str(tmp_path))
        # One step for which it only gets ready, and three that it records.
        assert [enabled for number, enabled in seen if number] == [False, True, True, True]
        assert seen[:-4] == [(0, False)] * (len(seen) - 4)
        assert len(seen) > 4
        gc.collect()
        assert profilers() == 0 and not torch.autograd._profiler_enabled()
    assert counted.traced_step_s and (tmp_path / "rank-0.json.gz").exists()
