"""The end of training: the best checkpoint that exists and is whole, whatever happened to a better one."""

import gc
import math
import multiprocessing
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport
from contracts.errors import DataError, TryAgain
from contracts.events import EventLog
from contracts.stores import gcs
from rehearsal.gcs import BucketServer, Rule
from tests.conftest import small_config
from tests.trainer.checkpoint.attempts import file_of, newest_valid
from tests.trainer.one_rank import logs, make_training
from trainer.checkpoint.discovery import Superseded, record_attempt
from trainer.data import training_data
from trainer.finish import finish
from trainer.parallel.process_group import Rank
from trainer.supervise.account import Account
from trainer.supervise.stop import StopRequest
from trainer.train import train

# Five epochs of five steps: step 15 is the best by loss, step 10 the second, step 20 the third.
CONFIG: dict[str, Any] = {"train": {"epochs": 5, "learning_rate": 0.05}, "checkpoint": {"keep_last": 9}}
OUTPUT = "gs://bucket-1/line/train"


@pytest.fixture
def closed_client() -> Iterator[None]:
    yield
    gcs.close()


@pytest.mark.usefixtures("closed_client")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_the_save_of_the_best_epoch_fails_and_training_ends_with_the_best_that_exists(
    rank: Rank, small_shards: str, tmp_path: Path, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs, "RETRY_DEADLINE_S", 0.5)
    bucket_server.faults.set(Rule(method="POST", object="*step-00000015*", status=503))
    training = make_training(rank, tmp_path, small_shards, small_config(**CONFIG), output=OUTPUT)
    training.run()
    finish(training)
    assert bucket_server.faults.hits()[0] > 0
    assert "step-00000015.000001 could not be written" in logs(tmp_path)
    result = CheckpointManifest.load(OUTPUT)
    assert (result.finished, result.step, result.best_step) == (True, 10, 10)
    checkpoints = f"{OUTPUT}/checkpoints"
    found = {name: CheckpointManifest.load(f"{checkpoints}/{name}") for name in storage.list_names(checkpoints)
             if name.startswith("step")}  # fmt: skip
    assert {one.step: one.best_step for one in found.values()} == {5: 5, 10: 10, 20: 10, 25: 10}
    best = found["step-00000010.000001"].metrics
    assert {one.best_metrics["validation_loss"] for one in found.values() if one.step >= 10} == {
        best["validation_loss"]
    }


def test_no_loader_process_outlives_training(
    rank: Rank, small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken, garbage collection ends them, which finalizes their queues first and takes 10 s for each process."""
    monkeypatch.setattr(training_data, "EVALUATION_BATCH", 4)
    config = small_config(train={"epochs": 1}, data={"num_workers": 1})
    assignment = make_training(rank, tmp_path, small_shards, config).assignment
    events = EventLog(tmp_path / "attempts" / "a", stage="train", attempt="a")
    account = Account(events, is_first=True)
    supervisor: Any = SimpleNamespace(account=account, stop=StopRequest(), finished=lambda: None)
    gc.disable()
    try:
        train(assignment, rank, events, supervisor)
        for process in multiprocessing.active_children():
            process.join(30)
            assert process.exitcode == -signal.SIGKILL
    finally:
        gc.enable()


def test_a_loss_that_is_no_number_warns_and_is_published_as_null(
    rank: Rank, small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In evaluation alone, e.g. of a task that counts nothing there."""
    training = make_training(rank, tmp_path, small_shards, small_config(train={"epochs": 1}))
    task = type(training.data.task)
    found = task.loss

    def loss(self: Any, outputs: Any, batch: Any, mode: Any) -> Any:
        value, count = found(self, outputs, batch, mode)
        return (value if mode.training else value * math.nan), count

    monkeypatch.setattr(task, "loss", loss)
    training.run()
    finish(training)
    result = CheckpointManifest.load(training.assignment.folder)
    assert result.finished and "validation_accuracy" in result.metrics and "test_accuracy" in result.metrics
    assert not {"validation_loss", "test_loss"} & set(result.metrics)
    assert result.evaluation is not None
    report = EvaluationReport.load(result.evaluation.uri(training.assignment.folder))
    assert report.loss is None and report.metrics
    for split in ("validation", "test"):
        assert f"warning: the loss came to no finite number on the {split} split" in logs(tmp_path)


@pytest.fixture(scope="module")
def trained(rank: Rank, small_shards: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training that has taken its last step; each test spoils more of its checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    training = make_training(rank, folder, small_shards, small_config(**CONFIG))
    training.run()
    return folder, training


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_what_is_not_needed_is_not_read(trained: Any) -> None:
    """A flipped bit of the optimizer's state does not matter to the best weights."""
    folder, training = trained
    spoil(file_of(folder / "out", 15, "optimizer.safetensors"))
    finish(training)
    assert CheckpointManifest.load(storage.normalise(folder / "out")).step == 15


def test_a_training_that_another_run_goes_on_with_or_has_finished_ends_without_a_word_over_its_result(
    trained: Any,
) -> None:
    """Two runs of the same training: the earlier one must not write into what the later one publishes."""
    folder, training = trained
    for name in ("manifest.json", "evaluation.json"):
        (folder / "out" / name).unlink(missing_ok=True)
    checkpoints = training.checkpoints
    number = record_attempt(checkpoints.folder_uri, "later.1", newest_valid(checkpoints))
    record = Path(folder, "out", "checkpoints", f"attempt-{number:06d}.json")
    with pytest.raises(Superseded, match="run later trains the same"):
        finish(training)
    record.unlink()
    manifest = Path(folder, "out", "manifest.json")
    assert not manifest.exists() and not Path(folder, "out", "evaluation.json").exists()
    manifest.write_text("{}")
    with pytest.raises(TryAgain, match="another run has finished this training"):
        finish(training)
    assert manifest.read_text() == "{}" and not Path(folder, "out", "evaluation.json").exists()
    manifest.unlink()


def test_nothing_is_written_over_the_result_of_a_run_that_finished_while_this_one_computed(
    trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, training = trained
    manifest, task = folder / "out" / "manifest.json", training.data.task
    manifest.unlink(missing_ok=True)
    evaluation = file_of(folder / "out", 15, "evaluation.json")
    evaluation.write_text("the other run's")
    report = task.report

    def report_late(outcomes: Any, metrics: Any) -> Any:
        manifest.write_text("{}")
        return report(outcomes, metrics)

    monkeypatch.setattr(task, "report", report_late)
    with pytest.raises(TryAgain, match="another run has finished this training"):
        finish(training)
    assert evaluation.read_text() == "the other run's"
    manifest.unlink()


def test_a_damaged_best_checkpoint_is_passed_over_and_said(trained: Any) -> None:
    folder, training = trained
    (folder / "out" / "manifest.json").unlink(missing_ok=True)
    spoil(file_of(folder / "out", 15, "model.safetensors"))
    # A size that differs is seen, also of a file that would not be read.
    file_of(folder / "out", 10, "optimizer.safetensors").write_bytes(b"")
    finish(training)
    result = CheckpointManifest.load(storage.normalise(folder / "out"))
    assert (result.step, result.metrics["test_samples"]) == (20, 26.0)
    said = logs(folder)
    assert "the best checkpoint is that of step 20, not 15" in said
    assert "step-00000015.000001: model.safetensors has crc32c" in said
    assert "step-00000010.000001: optimizer.safetensors has 0 bytes" in said


def test_without_any_whole_checkpoint_there_is_no_end(trained: Any) -> None:
    folder, training = trained
    (folder / "out" / "manifest.json").unlink(missing_ok=True)
    for path in (folder / "out" / "checkpoints").glob("*/model.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="no checkpoint is whole"):
        finish(training)
