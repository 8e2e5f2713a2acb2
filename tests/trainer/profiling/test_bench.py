"""Measurements of one rank in this process: loader, steps, both; properties of networks; slots that cannot train."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from contracts.artifacts import Settings
from contracts.config import RunConfig
from contracts.errors import ConfigError
from tests.conftest import small_config
from tests.trainer.launch.machines import make_assignment
from tests.trainer.one_rank import one_rank
from trainer.parallel.process_group import Rank
from trainer.profiling.runner import Command
from trainer.profiling.search import ComputeTime, Failed, JointRate
from trainer.profiling.worker import Worker, has_batch_norm, merge_answers

Make = Callable[..., Worker]


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    with one_rank() as rank:
        yield rank


@pytest.fixture
def make(rank: Rank, small_shards: str, tmp_path: Path) -> Make:
    def worker(**sections: Any) -> Worker:
        values = small_config(**{"profile": {"window_s": 0.1}, "parallel": {"slot_size": "auto"}, **sections})
        config = RunConfig.model_validate({name: value for name, value in values.items() if name != "sharding"})
        assignment = make_assignment(tmp_path, config=config.model_dump(mode="json"), shards=small_shards, ranks=1)
        return Worker(assignment, config, rank)

    return worker


def test_a_sleeping_loader_is_told_from_a_slow_step(make: Make) -> None:
    """Each image takes the loader 20 ms."""
    worker = make(data={"transform": "tests.trainer.profiling.planted:slow_image", "num_workers": "auto"})
    worker.prepare()
    bench, settings = worker.bench, Settings(slot_size=4, slots_per_rank=4, num_workers=0)
    assert all(20 < rate < 50 for rate in bench.load(settings).windows)
    assert max(bench.load(settings.model_copy(update={"num_workers": 2})).windows) > 52
    # Without the loader, which takes 320 ms for as many.
    assert bench.compute(16).last_slot_s < 0.3
    joint = bench.window(settings)
    assert len(joint.windows) == 1 and 10 < joint.windows[0] < 50 and joint.data_time_fraction > 0.5


def test_errors_are_answers_after_which_measuring_goes_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make()
    worker.prepare()
    command = Command(name="compute", settings=Settings(slot_size=4, num_workers=0))
    for error, outcome in [(MemoryError("planted"), "out of memory"), (RuntimeError("planted"), "failed")]:
        with monkeypatch.context() as patch:

            def fail(slot_size: int, error: Exception = error) -> None:
                raise error

            patch.setattr(worker.bench, "try_size", fail)
            answer = worker._execute(command, 0)
        assert isinstance(answer, Failed) and answer.outcome == outcome and "planted" in answer.reason
        assert isinstance(worker._execute(command, 0), ComputeTime)
        worker._tried.clear()


def test_the_slowest_rank_counts_and_the_failure_that_explains_others() -> None:
    fast, slow = JointRate((4.0, 9.0), 0.2, {"tokens": 2.0}), JointRate((5.0, 3.0), 0.4, {"tokens": 4.0})
    merged = merge_answers([fast, slow])
    assert merged == JointRate((4.0, 3.0), merged.data_time_fraction, {"tokens": 3.0})
    assert merged.data_time_fraction == pytest.approx(0.3)
    assert merge_answers([ComputeTime(1.0, 4.0, 7), ComputeTime(2.0, 3.0)]) == ComputeTime(2.0, 4.0, 7)
    crashed, starved = Failed("crashed", "peer is gone"), Failed("out of memory", "why")
    assert merge_answers([fast, crashed, starved]) == starved


def network(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(norm), nn.Flatten()).train()


def test_batch_norm_counts_where_it_trains() -> None:
    assert has_batch_norm(network(nn.BatchNorm2d(4))) and not has_batch_norm(network(nn.GroupNorm(2, 4)))
    assert not has_batch_norm(network(nn.BatchNorm2d(4)).eval())


@pytest.mark.parametrize(("slot_size", "batch", "nodes"), [(3, 16, 1), ("auto", 69, 3)])
def test_a_lone_last_sample_that_batch_norm_cannot_take_is_refused_before_anything_is_measured(
    make: Make, slot_size: int | str, batch: int, nodes: int
) -> None:
    # Four halvings of 8 pixels: BatchNorm sees one value per channel.
    deep = {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
    worker = make(
        model={"architecture": "resnet", "arguments": deep},
        train={"global_batch_size": batch},
        parallel={"slot_size": slot_size},
        data={"image_size": 8},
        resources={"nodes": nodes},
    )
    with pytest.raises(ConfigError, match="leave a slot of one sample, on which resnet cannot"):
        worker.prepare()
