"""What the live log says of epochs, validation and time: the words alone, and those of a training that was killed."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.artifacts import Headline
from contracts.config import RunConfig
from contracts.events import EVENTS_NAME, EventReader
from tests.conftest import small_config
from tests.trainer.one_rank import Crash, one_rank, train
from trainer.evaluate import Evaluation
from trainer.parallel.process_group import Rank
from trainer.report import progress as status_module
from trainer.report.progress import TrainingStatus
from trainer.supervise.limits import Budget

LINE = re.compile(
    r"epoch (\d) of 3: validation accuracy (0\.\d{4}|1\.0000), loss \d+\.\d{4}; best (0\.\d{4}|1\.0000) at epoch (\d)"
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(status_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def make(**sections: dict[str, Any]) -> TrainingStatus:
    config = RunConfig.model_validate(small_config(train={"epochs": 10}, **sections))
    budget = Budget(config.resources, 0.0, time.monotonic())
    return TrainingStatus(config, steps_per_epoch=5, total_steps=50, checkpoint=None, budget=budget)


def evaluation(accuracy: float, loss: float) -> Evaluation:
    headline = Headline(metric="accuracy", direction="max")
    metrics = {"accuracy": accuracy, "f1": loss}
    return Evaluation(10, loss, metrics, headline, {"accuracy": "max", "f1": "max"})


def test_time_is_told_once_there_is_a_rate_and_counts_all_that_steps_took(clock: SimpleNamespace) -> None:
    status = make()
    assert status.left(1) == ""
    clock.now += 60  # compiling
    status.step_taken()
    assert status.left(1) == ""
    clock.now += 2
    status.step_taken()
    assert status.left(2) == "96 s left"
    clock.now += 4  # an evaluation
    assert status.left(2) == "4 min 48 s left"
    assert status.left(50) == ""
    # A budget ends sooner.
    status = make(resources={"max_hours": 0.01, "price_usd_per_h": 1.0, "max_cost_usd": 100.0})
    for _ in range(2):
        clock.now += 1000
        status.step_taken()
    assert status.left(2) in ("35 s left", "36 s left")


@pytest.mark.parametrize(
    ("metric", "best"),
    [
        ("", "accuracy 0.5000, loss 0.4000; best 0.7500 at epoch 1"),
        ("validation_loss", "accuracy 0.5000, loss 0.4000; best loss 0.4000 at epoch 2"),
        ("validation_f1", "accuracy 0.5000, f1 0.4000, loss 0.4000; best f1 0.5000 at epoch 1"),
    ],
)
def test_the_best_is_by_its_metric_and_of_equal_ones_the_first(metric: str, best: str) -> None:
    status = make(checkpoint={"best_metric": metric})
    assert status.validation() == ""
    status.evaluated(5, evaluation(0.75, 0.5))
    status.evaluated(10, evaluation(0.5, 0.4))
    status.evaluated(15, evaluation(0.5, 0.5))
    status.evaluated(20, evaluation(0.5, 0.4))
    assert status.validation() == f"validation {best}"
    assert [status.epoch(step) for step in (1, 5, 6, 50)] == [f"epoch {n} of 10" for n in (1, 1, 2, 10)]


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    with one_rank() as rank:
        yield rank


def told(folder: Path, attempt: str, kind: str) -> list[str]:
    reader = EventReader(folder / "attempts" / attempt / EVENTS_NAME)
    return [event["message"] for event in reader.poll() if event["event"] == kind]


def test_each_epoch_says_its_validation_also_after_a_kill(
    rank: Rank, small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = small_config(train={"epochs": 3}, checkpoint={"every_steps": 3})
    train(rank, tmp_path / "whole", small_shards, config)
    said = told(tmp_path / "whole", "a", "log")
    samples = "70 training, 24 validation and 26 test samples"
    assert f"6,107 parameters; {samples}; 15 steps of 16 samples, 5 an epoch" in said
    whole = [line for line in said if line.startswith("epoch ")]
    assert [line.partition(":")[0] for line in whole] == [f"epoch {n} of 3" for n in (1, 2, 3)]
    assert all(LINE.match(line) for line in whole)
    assert " left" in whole[0] and " left" not in whole[2]
    # In a container nothing draws events.
    printed = capfd.readouterr().err.splitlines()
    assert [f"train: {line}" for line in whole] == [line for line in printed if line.startswith("train: epoch ")]

    with pytest.raises(Crash):
        train(rank, tmp_path / "killed", small_shards, config, crash_at=12)
    train(rank, tmp_path / "killed", small_shards, config, attempt="b")
    # The first word of the second attempt knows the last validation and the best one of the first.
    first = told(tmp_path / "killed", "b", "progress")[0]
    second_epoch = whole[1].partition(": ")[2].rpartition("; ")[0]
    assert first.startswith("epoch 3 of 3, ") and "loss " in first and second_epoch in first
    last = [line for line in told(tmp_path / "killed", "b", "log") if line.startswith("epoch ")]
    assert last == whole[2:]
