"""What training leaves for TensorBoard besides scalars, by TensorBoard's own readers; also after kills."""

import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport
from tests.conftest import small_config
from tests.trainer.one_rank import Crash, logs, make_training, one_rank, train
from tests.trainer.tasks.for_tests import MEAN, STD, image_task
from trainer.finish import finish
from trainer.log import Reporting
from trainer.report.board import RESULT_NAME, Board
from trainer.step import Stepper
from trainer.tasks.image import ImageTask

BOARD = Path("out") / "tensorboard"
# 72 training samples, 5 steps an epoch.
SAVING = {"checkpoint": {"every_steps": 2}}


def read(folder: Path) -> Any:
    """Return TensorBoard's own store of the run in a folder, as its web server fills it."""
    found = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"images": 0, "scalars": 0})
    found.AddRunsFromDirectory(str(folder))
    found.Reload()
    assert set(found.Runs()) == {".", "result"}
    return found


def picture(found: Any, run: str, tag: str) -> tuple[int, Image.Image]:
    """Return step and picture; there is exactly one."""
    (row,) = found.Tensors(run, tag)
    width, height, content = tensor_util.make_ndarray(row.tensor_proto)
    image = Image.open(io.BytesIO(content))
    assert image.size == (int(width), int(height))
    return row.step, image


def check_all(folder: Path, result: CheckpointManifest) -> None:
    """Everything is there once."""
    found = read(folder)
    assert result.evaluation is not None
    report = EvaluationReport.load(result.evaluation.uri(storage.normalise(folder.parent)))
    step, _ = picture(found, ".", "images/first_slot")
    assert step == 1
    content = found.PluginRunToTagToContent("hparams")["result"]["_hparams_/session_start_info"]
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["architecture"].string_value == "resnet"
    assert (values["slot_size"].number_value, values["ranks"].number_value) == (4, 1)
    shown = EventAccumulator(str(folder / "result")).Reload()
    last = {tag: [(row.step, row.value) for row in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}
    assert last["test/accuracy"] == [(result.step, np.float32(report.metrics["accuracy"]))]
    assert last["best/validation_accuracy"] == [(result.step, np.float32(result.metrics["validation_accuracy"]))]


def test_images_and_result_are_there_once_after_kills_and_a_repeated_end(
    small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = storage.publish

    def killed(uri: str, content: bytes) -> None:
        if uri.endswith("out/manifest.json"):
            raise Crash
        publish(uri, content)

    with one_rank() as rank:
        with pytest.raises(Crash):
            train(rank, tmp_path, small_shards, small_config(**SAVING), crash_at=3)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(storage, "publish", killed)
            train(rank, tmp_path, small_shards, small_config(**SAVING), "b")
        first = (tmp_path / BOARD / RESULT_NAME).read_bytes()
        result = train(rank, tmp_path, small_shards, small_config(**SAVING), "c")
    assert (tmp_path / BOARD / RESULT_NAME).read_bytes() != first
    check_all(tmp_path / BOARD, result)
    accumulator = EventAccumulator(str(tmp_path / BOARD)).Reload()
    rows = {tag: [(row.step, row.value) for row in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
    assert rows["train/epoch"] == [(5, 1.0), (10, 2.0)]
    assert all(value > 0 for _, value in rows["train/samples_per_s"])
    # A process with torch in it, and no more than a machine has.
    resident, peaks = ([value for _, value in rows[f"memory/resident{kind}_bytes"]] for kind in ("", "_peak"))
    assert all(1e8 < now <= peak < 1e13 for now, peak in zip(resident, peaks, strict=True))
    assert not any("gpu" in tag for tag in rows)


def test_what_cannot_be_drawn_or_written_ends_no_training_and_looking_changes_nothing(
    small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: ImageTask, batch: Any) -> None:
        raise OSError("no picture")

    with one_rank() as rank:
        seen = train(rank, tmp_path / "seen", small_shards, small_config())
        monkeypatch.setattr(ImageTask, "first_samples", broken)
        training = make_training(rank, tmp_path, small_shards, small_config())
        training.run()
        (tmp_path / BOARD / RESULT_NAME).mkdir(parents=True)
        finish(training)
        monkeypatch.setattr(Reporting, "_keep_first_slot", lambda self, batch: None)
        unseen = train(rank, tmp_path / "unseen", small_shards, small_config())
    assert CheckpointManifest.load(storage.normalise(tmp_path / "out")).finished
    assert "warning: the first samples are not in TensorBoard's files: OSError: " in logs(tmp_path)
    assert "the result is not in TensorBoard's files" in logs(tmp_path)
    assert seen.parameters_sha256 == unseen.parameters_sha256


def test_the_rate_is_of_the_whole_step(small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Stepper.update

    def slowly(stepper: Stepper, step: int, rate: float) -> torch.Tensor:
        time.sleep(0.05)
        return update(stepper, step, rate)

    # After the step's last slot came: what follows until the next one is asked for is a part of the step.
    monkeypatch.setattr(Stepper, "update", slowly)
    with one_rank() as rank:
        train(rank, tmp_path, small_shards, small_config())
    found = EventAccumulator(str(tmp_path / BOARD)).Reload()
    rates = [row.value for row in found.Scalars("train/samples_per_s")]
    assert rates and max(rates) <= 16 / 0.05


def test_the_first_slot_is_shown_as_the_network_gets_it(tmp_path: Path) -> None:
    pixels = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8)
    found = image_task(2).first_samples({"images": (pixels.float() / 255 - MEAN) / STD})
    assert torch.equal(found, pixels)
    board = Board(tmp_path, tmp_path / "scalars", attempt=1, first_step=0)
    board.show_first_slot(found)
    board.show_first_slot("red; 2 of 8: a b")
    board.close()
    found_events = EventAccumulator(str(tmp_path)).Reload()
    (image,) = found_events.Images("images/first_slot")
    grid = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    assert grid.size == pixels.numel() and np.array_equal(grid[:8, :8], pixels[0].permute(1, 2, 0).numpy())
    (text,) = found_events.Tensors("first_slot/text_summary")
    assert b"    red; 2 of 8: a b" in text.tensor_proto.string_val[0]
