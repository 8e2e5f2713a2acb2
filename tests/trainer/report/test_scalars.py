"""Scalars of a training that went on from checkpoints: by TensorBoard's own reader, and as lines of JSON."""

import gc
import resource
import signal
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from contracts import storage
from contracts.attempts import Copier
from contracts.scalars import PART_BYTES
from inspection.training import read_curves
from rehearsal.gcs import BucketServer
from trainer.report.board import Board


def test_every_step_is_shown_once_after_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files are read in the order of their names, which end in the writer's count within the process: in a process that
    # has made nine before, a tenth of the same second would come first. Attempts are processes of their own.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    for attempt, (first_step, last_step) in enumerate(((0, 70), (40, 90), (60, 120)), start=1):
        scalars = Board(tmp_path, tmp_path / "scalars", attempt=attempt, first_step=first_step)
        for step in range(first_step + 10, last_step + 1, 10):
            scalars.add(step, {"train/loss": first_step + step / 1000})
        scalars.flush()
        # A rank that is killed closes nothing.
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    shown = {scalar.step: round(scalar.value, 3) for scalar in accumulator.Scalars("train/loss")}
    assert [scalar.step for scalar in accumulator.Scalars("train/loss")] == list(range(10, 121, 10))
    assert shown[40] == 0.04, "what led to the checkpoint is kept"
    assert shown[50] == 40.05, "what was repeated is shown as it was the last time"
    assert shown[70] == 60.07
    ((curve,), _) = read_curves(storage.normalise(tmp_path / "scalars"))
    assert dict(zip(curve.steps, curve.values, strict=True)) == shown


def test_of_a_long_training_the_last_part_alone_is_copied_again(tmp_path: Path, bucket_server: BucketServer) -> None:
    keeper, bucket = Copier(), "gs://bucket-1/train/scalars"
    board = Board(tmp_path / "board", tmp_path / "scalars", attempt=3, first_step=0)
    values = {f"name-{number}/{'x' * 200}": 1 / 3 for number in range(40)}

    def versions() -> dict[str, int | None]:
        return {info.name: info.generation for info in storage.list_objects(bucket)}

    keeper.add(tmp_path / "scalars", bucket)
    for step in range(1, 251):
        board.add(step, values)
        if step == 150:
            assert keeper.copy()
            before = versions()
    assert keeper.close()
    gc.collect()
    after = versions()
    first, second, last = (f"scalars-000003-{part:05d}.jsonl" for part in range(3))
    assert (list(before), list(after)) == ([first, second], [first, second, last])
    assert after[first] == before[first] and after[second] != before[second]
    sealed = [info.size for info in storage.list_objects(bucket)][:-1]
    assert all(PART_BYTES <= size < PART_BYTES + 20_000 for size in sealed)
    assert sum(curve.rows for curve in read_curves(bucket)[0]) == 40 * 250


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
    said = capsys.readouterr().err
    assert said.count("TensorBoard's files cannot be written") == said.count("scalars of this attempt cannot be") == 1
    assert read_curves(storage.normalise(tmp_path / "scalars"))[1] == []
