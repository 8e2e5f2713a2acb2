"""What training leaves for TensorBoard besides scalars, by TensorBoard's own readers; also after kills."""

import io
import json
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
from contracts.artifacts.classification import ClassificationDetails
from contracts.stage import run_stage
from sharding.task import shard
from tests.conftest import small_config
from tests.trainer.one_rank import Crash, logs, make_training, newest, one_rank, train
from trainer.finish import finish
from trainer.report.board import RESULT_NAME
from trainer.step import Stepper
from trainer.tasks.images.first_slot import FirstSlot

BOARD = Path("out") / "tensorboard"
# 72 training samples, 5 steps an epoch.
SAVING = {"checkpoint": {"every_steps": 2}}


def read(folder: Path) -> Any:
    """Return TensorBoard's own store of the run in a folder, as its web server fills it."""
    found = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"images": 0, "pr_curves": 0, "scalars": 0})
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
    details = ClassificationDetails.of(report)
    assert details is not None
    step, _ = picture(found, ".", "images/first_slot")
    assert step == 1
    step, grid = picture(found, "result", "test/worst_images")
    assert step == result.step
    # 16 images of 16 pixels.
    assert grid.width * grid.height == 16**3
    curves = found.PluginRunToTagToContent("pr_curves")["result"]
    assert set(curves) == {f"precision_recall/{name}" for name in ("all_classes", "0-blue", "1-green", "2-red")}
    for number, tag in enumerate(("precision_recall/0-blue", "precision_recall/1-green")):
        (row,) = found.Tensors("result", tag)
        data = tensor_util.make_ndarray(row.tensor_proto)
        assert data.shape == (6, 127)
        assert data[:4, 0].tolist() == [
            details.classes[number].samples,
            report.samples - details.classes[number].samples,
            0,
            0,
        ]
    (row,) = found.Tensors("result", "precision_recall/all_classes")
    assert tensor_util.make_ndarray(row.tensor_proto)[:4].sum(axis=0).tolist() == [3.0 * report.samples] * 127
    content = found.PluginRunToTagToContent("hparams")["result"]["_hparams_/session_start_info"]
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["architecture"].string_value == "resnet"
    assert (values["slot_size"].number_value, values["ranks"].number_value) == (4, 1)
    shown = EventAccumulator(str(folder / "result")).Reload()
    last = {tag: [(row.step, row.value) for row in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}
    assert last["test/accuracy"] == [(result.step, np.float32(report.metrics["accuracy"]))]
    assert last["best/validation_accuracy"] == [(result.step, np.float32(result.metrics["validation_accuracy"]))]
    samples, taken, right = (sum(counts) for counts in zip(*report.details["validation"], strict=True))
    assert samples == taken and right / samples == result.metrics["validation_accuracy"]


def test_a_training_shows_its_images_curves_and_result(small_shards: str, tmp_path: Path) -> None:
    with one_rank() as rank:
        result = train(rank, tmp_path, small_shards, small_config())
    check_all(tmp_path / BOARD, result)
    accumulator = EventAccumulator(str(tmp_path / BOARD))
    accumulator.Reload()
    rows = {tag: [(row.step, row.value) for row in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
    assert rows["train/epoch"] == [(5, 1.0), (10, 2.0)]
    assert all(value > 0 for _, value in rows["train/samples_per_s"])
    # A process with torch in it, and no more than a machine has.
    assert all(1e8 < value < 1e13 for _, value in rows["memory/resident_bytes"])
    assert all(
        peak[1] >= now[1]
        for peak, now in zip(rows["memory/resident_peak_bytes"], rows["memory/resident_bytes"], strict=True)
    )
    assert not any("gpu" in tag for tag in rows)


def test_after_a_kill_everything_is_there_once(small_shards: str, tmp_path: Path) -> None:
    with one_rank() as rank:
        with pytest.raises(Crash):
            train(rank, tmp_path, small_shards, small_config(**SAVING), crash_at=3)
        result = train(rank, tmp_path, small_shards, small_config(**SAVING), "b")
    check_all(tmp_path / BOARD, result)


def test_an_end_that_is_repeated_replaces_what_it_wrote(
    small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = storage.publish

    def killed(uri: str, content: bytes) -> None:
        if uri.endswith("out/manifest.json"):
            raise Crash
        publish(uri, content)

    with one_rank() as rank:
        monkeypatch.setattr(storage, "publish", killed)
        with pytest.raises(Crash):
            train(rank, tmp_path, small_shards, small_config())
        first = (tmp_path / BOARD / RESULT_NAME).read_bytes()
        monkeypatch.setattr(storage, "publish", publish)
        result = train(rank, tmp_path, small_shards, small_config(), "b")
    assert (tmp_path / BOARD / RESULT_NAME).read_bytes() != first
    check_all(tmp_path / BOARD, result)


def test_without_a_test_split_there_are_still_hyperparameters(pictures: Path, tmp_path: Path) -> None:
    config = small_config(sharding={"source": str(pictures), "splits": {"train": 0.8, "validation": 0.2, "test": 0.0}})
    text = json.dumps({"sharding": config["sharding"]})
    assert run_stage("shard", shard, ["--output", str(tmp_path / "shards"), "--config-json", text]) == 0
    with one_rank() as rank:
        train(rank, tmp_path, storage.normalise(tmp_path / "shards"), config)
    found = read(tmp_path / BOARD)
    assert {run: set(tags) for run, tags in found.PluginRunToTagToContent("images").items()} == {
        ".": {"images/first_slot"}
    }
    assert found.PluginRunToTagToContent("hparams")["result"]
    assert "pr_curves" not in found.ActivePlugins()


def test_a_folder_that_cannot_be_written_ends_no_training(small_shards: str, tmp_path: Path) -> None:
    with one_rank() as rank:
        training = make_training(rank, tmp_path, small_shards, small_config())
        training.run()
        (tmp_path / BOARD / RESULT_NAME).mkdir(parents=True)
        finish(training)
    assert CheckpointManifest.load(storage.normalise(tmp_path / "out")).finished
    assert "the result is not in TensorBoard's files" in logs(tmp_path)


def test_a_first_slot_that_cannot_be_drawn_ends_no_training(
    small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: FirstSlot) -> None:
        raise OSError("no picture")

    monkeypatch.setattr(FirstSlot, "take", broken)
    with one_rank() as rank:
        training = make_training(rank, tmp_path, small_shards, small_config())
        training.run()
    assert newest(tmp_path).best_step > 0
    assert "warning: the first samples are not in TensorBoard's files: OSError: " in logs(tmp_path)


def test_looking_changes_nothing(small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_rank() as rank:
        seen = train(rank, tmp_path / "seen", small_shards, small_config())
        monkeypatch.setattr(FirstSlot, "keep", lambda self, given: None)
        unseen = train(rank, tmp_path / "unseen", small_shards, small_config())
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


def test_the_first_slot_is_shown_as_the_network_gets_it() -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    pixels = torch.randint(0, 256, (20, 8, 8, 3), dtype=torch.uint8)
    images = ((pixels.permute(0, 3, 1, 2).float() / 255) - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(
        std
    ).view(1, 3, 1, 1)
    slot = FirstSlot(mean, std)
    assert slot.take() is None
    slot.keep({"images": images})
    taken = slot.take()
    assert taken is not None and taken.name == "first_slot.png"
    (value,) = taken.summary.value
    assert value.image.encoded_image_string == taken.content
    assert slot.take() is None
    grid = np.asarray(Image.open(io.BytesIO(value.image.encoded_image_string)))
    assert grid.size == pixels[:16].numel()
    assert np.array_equal(grid[:8, :8], pixels[0].numpy())
