"""What the log and TensorBoard say of a training: by TensorBoard's own readers, also after kills."""

import re
import resource
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from contracts import storage
from contracts.artifacts import CheckpointManifest, Headline
from contracts.config import RunConfig
from contracts.events import EVENTS_NAME, EventReader
from contracts.scalars import SCALARS_FOLDER
from inspection.training import read_curves
from tests.conftest import small_config
from tests.trainer.one_rank import Crash, logs, make_training, train
from trainer.evaluate import Evaluation
from trainer.finish import finish
from trainer.parallel.process_group import Rank
from trainer.report import progress as status_module
from trainer.report.board import RESULT_NAME, Board
from trainer.report.gauges import GpuGauges
from trainer.report.progress import TrainingStatus
from trainer.supervise.limits import Budget
from trainer.tasks.image import ImageTask

BOARD = Path("out") / "tensorboard"
LINE = re.compile(
    r"epoch (\d) of 3: validation accuracy (0\.\d{4}|1\.0000), loss \d+\.\d{4}; best (0\.\d{4}|1\.0000) at epoch (\d)"
)


# --- the words --------------------------------------------------------------------------------------------------------


def make(**sections: dict[str, Any]) -> TrainingStatus:
    config = RunConfig.model_validate(small_config(train={"epochs": 10}, **sections))
    budget = Budget(config.resources, 0.0, time.monotonic())
    return TrainingStatus(config, steps_per_epoch=5, total_steps=50, checkpoint=None, budget=budget)


def evaluation(accuracy: float, loss: float) -> Evaluation:
    headline = Headline(metric="accuracy", direction="max")
    return Evaluation(10, loss, {"accuracy": accuracy}, headline, {"accuracy": "max"})


def test_the_time_left_says_whether_it_counts_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(status_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    status = make()
    clock.now += 60  # compiling
    status.step_taken()
    assert status.time_remaining(1) == ""
    clock.now += 2
    status.step_taken()
    assert status.time_remaining(2) == "at least 96 s left"
    clock.now += 4  # an evaluation
    status.evaluated(2, None)
    assert status.time_remaining(2) == "4 min 48 s left"
    assert status.time_remaining(50) == ""
    # A budget ends sooner.
    status = make(resources={"max_hours": 0.01, "price_usd_per_h": 1.0, "max_cost_usd": 100.0})
    for _ in range(2):
        clock.now += 1000
        status.step_taken()
    assert status.time_remaining(2) in ("at least 35 s left", "at least 36 s left")


def test_the_best_is_by_its_metric_and_of_equal_ones_the_first() -> None:
    status = make(checkpoint={"best_metric": "validation_loss"})
    assert status.validation() == ""
    for step, accuracy, loss in ((5, 0.75, 0.5), (10, 0.5, 0.4), (15, 0.5, 0.5), (20, 0.5, 0.4)):
        status.evaluated(step, evaluation(accuracy, loss))
    assert status.validation() == "validation accuracy 0.5000, loss 0.4000; best loss 0.4000 at epoch 2"


# --- a training -------------------------------------------------------------------------------------------------------


def messages(folder: Path, attempt: str, kind: str) -> list[str]:
    reader = EventReader(folder / "attempts" / attempt / EVENTS_NAME)
    return [event["message"] for event in reader.poll() if event["event"] == kind]


def test_each_epoch_and_the_result_are_told_once_also_after_kills(
    rank: Rank, small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(train={"epochs": 3}, checkpoint={"every_steps": 3})
    train(rank, tmp_path / "whole", small_shards, config)
    lines = messages(tmp_path / "whole", "a", "log")
    samples = "70 training, 24 validation and 26 test samples"
    assert f"6,107 parameters; {samples}; 15 steps of 16 samples, 5 an epoch" in lines
    whole = [line for line in lines if line.startswith("epoch ")]
    assert [line.partition(":")[0] for line in whole] == [f"epoch {n} of 3" for n in (1, 2, 3)]
    assert all(LINE.match(line) for line in whole)
    assert " left" in whole[0] and " left" not in whole[2]
    # In a container nothing draws events.
    printed = capfd.readouterr().err.splitlines()
    assert [f"train: {line}" for line in whole] == [line for line in printed if line.startswith("train: epoch ")]

    publish = storage.publish

    def killed(uri: str, content: bytes) -> None:
        if uri.endswith("out/manifest.json"):
            raise Crash
        publish(uri, content)

    folder = tmp_path / "killed"
    with pytest.raises(Crash):
        train(rank, folder, small_shards, config, crash_at=12)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(storage, "publish", killed)
        train(rank, folder, small_shards, config, attempt="b")
    result = train(rank, folder, small_shards, config, attempt="c")
    # The epoch is told by the line of its validation alone, which knows the best one of the attempt before.
    assert messages(folder, "b", "progress")[0].startswith("loss ")
    assert [line for line in messages(folder, "b", "log") if line.startswith("epoch ")] == whole[2:]
    ended = EventAccumulator(str(folder / BOARD / "result")).Reload()
    for tag, name in (("test/accuracy", "test_accuracy"), ("best/validation_accuracy", "validation_accuracy")):
        assert [(row.step, row.value) for row in ended.Scalars(tag)] == [
            (result.step, np.float32(result.metrics[name]))
        ]
    scalars = EventAccumulator(str(folder / BOARD)).Reload()
    assert [row.step for row in scalars.Images("images/first_slot")] == [1]
    assert [(row.step, row.value) for row in scalars.Scalars("train/epoch")] == [(5, 1.0), (10, 2.0), (15, 3.0)]
    curves = {curve.name: curve for curve in read_curves(storage.normalise(folder / "out" / SCALARS_FOLDER))[0]}
    assert (curves["train/epoch"].steps, curves["train/epoch"].values) == ([5, 10, 15], [1.0, 2.0, 3.0])
    assert all(row.value > 0 for row in scalars.Scalars("train/samples_per_s"))
    assert all(row.value > 1e8 for row in scalars.Scalars("memory/resident_bytes")), "of a process with torch in it"


def test_what_cannot_be_drawn_or_written_ends_no_training(
    rank: Rank, small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: ImageTask, batch: Any) -> None:
        raise OSError("no picture")

    monkeypatch.setattr(ImageTask, "first_samples", broken)
    # Whether samples are shown changes no parameter.
    hidden = small_config(inspect={"samples": "hide"})
    unseen = train(rank, tmp_path / "unseen", small_shards, hidden)
    training = make_training(rank, tmp_path, small_shards, small_config())
    training.run()
    (tmp_path / BOARD / RESULT_NAME).mkdir(parents=True)
    finish(training)
    seen = CheckpointManifest.load(storage.normalise(tmp_path / "out"))
    assert seen.finished and seen.parameters_sha256 == unseen.parameters_sha256
    assert "warning: the first samples are not in TensorBoard's files: OSError: " in logs(tmp_path)
    assert "the result is not in TensorBoard's files" in logs(tmp_path)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_ends_what_is_shown_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scalars = Board(tmp_path, tmp_path / "scalars", attempt=1, first_step=0)
    scalars.add(1, {"train/loss": 1.0})
    scalars.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (next(tmp_path.glob("*tfevents*")).stat().st_size, hard))
        for step in range(2, 50):
            scalars.add(step, {"train/loss": 1.0})
            time.sleep(0.002)
        scalars.flush()
        scalars.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    err = capsys.readouterr().err
    assert err.count("TensorBoard's files cannot be written") == err.count("scalars of this attempt cannot be") == 1


@pytest.mark.gpu
def test_a_gpu_says_how_busy_full_and_warm_it_is() -> None:
    held = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    values = GpuGauges(torch.device("cuda", 0), print).values()
    assert 0 <= values["gpu/utilization_percent"] <= 100
    assert values["gpu/memory_used_bytes"] >= held.nbytes
    assert 5 < values["gpu/temperature_celsius"] < 120
