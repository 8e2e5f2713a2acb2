"""What TensorBoard shows of a training that went on from a checkpoint, by TensorBoard's own reader."""

import resource
import signal
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from trainer.report.scalars import Scalars


def test_every_step_is_shown_once_after_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files are read in the order of their names, which end in the writer's count within the process: in a process that
    # has made nine before, a tenth of the same second would come first. Attempts are processes of their own.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    for first_step, last_step in ((0, 70), (40, 90), (60, 120)):
        scalars = Scalars(tmp_path, first_step=first_step)
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_ends_what_is_shown_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scalars = Scalars(tmp_path, first_step=0)
    scalars.add(1, {"train/loss": 1.0})
    scalars.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (next(tmp_path.iterdir()).stat().st_size, hard))
        for step in range(2, 50):
            scalars.add(step, {"train/loss": 1.0})
            time.sleep(0.002)
        scalars.flush()
        scalars.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert capsys.readouterr().err.count("cannot be written") == 1
