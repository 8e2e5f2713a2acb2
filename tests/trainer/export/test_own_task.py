"""A user's own task through the export: a class for each pixel, from shards of images and masks to an engine."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from PIL import Image

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    CheckpointManifest,
    ExportManifest,
    ShardManifest,
    ShippedFile,
)
from contracts.config import ModelSection, RunConfig
from contracts.errors import EXIT_OK, EXIT_USER_ERROR, ConfigError
from contracts.stage import run_stage
from records.pixels import Changes
from sharding.images import Checks, check
from sharding.task import shard
from tests.conftest import OWN_CODE
from tests.own_code.segmentation import CLASSES, SIZE, Segmentation
from tests.trainer.export.conftest import steps_in_this_process, write_checkpoint
from tests.trainer.export.graphs import run_outputs
from trainer import judge
from trainer.export.inputs import check_inputs
from trainer.export.task import export
from trainer.predict import command

TEST, TRAIN = 40, 24
CONFIG: dict[str, Any] = {
    "task": {"name": "segmentation:Segmentation", "arguments": {"width": 8}},
    "code": {"path": str(OWN_CODE)},
    "export": {"max_batch": 4, "runtime": "tensorrt_rtx", "target": "l4"},
}


def write_source(folder: Path) -> list[np.ndarray]:
    """Write images, their masks, and a list of them; return the masks of the test split."""
    random, rows, masks = np.random.default_rng(0), [], []
    folder.mkdir()
    for number in range(TEST + TRAIN):
        # Masks follow from the image, so that no two are alike.
        image = random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
        mask = (image.sum(axis=2) % CLASSES).astype(np.uint8)
        for name, pixels in (("image", image), ("mask", mask)):
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "PNG")
            (folder / f"{name}-{number}.png").write_bytes(stream.getvalue())
        split = "test" if number < TEST else "train"
        rows.append([f"image-{number}.png", f"mask-{number}.png", split])
        masks += [mask] if split == "test" else []
    with (folder / "list.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["uri", "mask_uri", "split"], *rows])
    return masks


class Exported:
    """A finished export, and what was said."""

    def __init__(self, place: Path) -> None:
        self.masks = write_source(place / "source")
        fields = {"image": {"column": "uri", "kind": "image"}, "mask": {"column": "mask_uri", "kind": "image"}}
        sharding = {"source": str(place / "source" / "list.csv"), "fields": fields, "resize": SIZE}
        given = ["--config-json", json.dumps({"sharding": sharding}), "--root", str(place / "shard")]
        assert run_stage("shard", shard, given) == 0
        (self.shards,) = (path.parent for path in (place / "shard").glob(f"*/{MANIFEST_NAME}"))
        torch.manual_seed(0)
        model, fields = Segmentation(None).build_model(), ModelSection().model_dump(mode="json")
        shards = ShardManifest.load(storage.normalise(self.shards))
        write_checkpoint(place / "train", model, shards, task=CONFIG["task"], model=fields, data={})
        self.arguments = ["--root", str(place / "export"), "--checkpoint", str(place / "train")]
        self.arguments += ["--shards", str(self.shards)]
        with steps_in_this_process():
            assert run_stage("export", export, ["--config-json", json.dumps(CONFIG), *self.arguments]) == 0
        (self.folder,) = (path.parent for path in (place / "export").glob(f"*/{MANIFEST_NAME}"))
        self.document = ExportManifest.load(storage.normalise(self.folder))


@pytest.fixture(scope="module")
def exported_task(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(tmp_path_factory.mktemp("own"))


def test_its_gates_pass_an_engine_is_built_and_its_metrics_are_those_of_the_graph(exported_task: Exported) -> None:
    document = exported_task.document
    assert (document.task, document.signature) == ("segmentation:Segmentation", Segmentation.signature)
    assert [(gate.precision, gate.name, gate.status) for gate in document.gates] == [
        ("fp32", "parity", "passed"),
        ("fp32", "metric", "passed"),
        ("fp16", "parity", "passed"),
        ("fp16", "metric", "passed"),
    ]
    assert {path.name for path in exported_task.folder.glob("*.py")} == set(), "no program knows what its outputs mean"
    assert document.engine is not None and document.served == document.engine.name
    assert not (exported_task.folder / "triton").exists(), "Triton loads no engine of TensorRT-RTX"
    assert document.headline.model_dump() == {"metric": "pixel_accuracy", "direction": "max"}
    assert set(document.metrics) == {"torch", "fp32", "fp16"}
    source = exported_task.shards.parents[1] / "source"
    images = np.stack([np.asarray(Image.open(source / f"image-{number}.png")) for number in range(TEST)])
    inputs = images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    scores = run_outputs(exported_task.folder / "model.fp32.onnx", image=inputs)["scores"]
    share = (scores.argmax(axis=1) == np.stack(exported_task.masks)).mean()
    assert document.metrics["fp32"]["pixel_accuracy"] == pytest.approx(share, abs=1e-12)
    assert document.metrics["fp32"]["loss"] > 0
    assert document.headline_values["torch"] == pytest.approx(share, abs=1e-3)


def test_its_code_answers_in_predict(
    exported_task: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(OWN_CODE)
    source = exported_task.shards.parents[1] / "source"
    images = [str(source / f"image-{number}.png") for number in range(3)]
    (tmp_path / "none.png").write_text("no image")

    def predict(*arguments: str, config: bool = True) -> tuple[int, list[Any], str]:
        given = ["--config-json", json.dumps(CONFIG)] if config else []
        code = command.main([f"--folder={storage.normalise(exported_task.folder)}", "-o", "json", *given, *arguments])
        captured = capsys.readouterr()
        return code, [json.loads(line) for line in captured.out.splitlines()], captured.err

    code, _, err = predict(*images)
    assert (code, "has no answers" in err, "`answer(outputs)`" in err) == (EXIT_USER_ERROR, True, True)

    def answer(self: Any, outputs: torch.Tensor) -> list[int]:
        return outputs.argmax(dim=1).flatten(1).sum(dim=1).tolist()

    monkeypatch.setattr("segmentation.Segmentation.answer", answer, raising=False)
    code, _, err = predict(*images)
    assert code == EXIT_USER_ERROR
    assert "prepare failed: KeyError: 'mask' (" in err and "segmentation.py, line" in err and "sample.get" in err

    def prepare(self: Any, sample: dict[str, Any], mode: Any) -> dict[str, Any]:
        image = np.asarray(Image.open(io.BytesIO(sample["image"])))
        return {"image": image, "target": {"mask": np.zeros((SIZE, SIZE), np.uint8)}}

    monkeypatch.setattr("segmentation.Segmentation.prepare", prepare)
    code, rows, err = predict(images[0], str(tmp_path / "none.png"), *images[1:])
    assert (code, len(err.splitlines())) == (EXIT_USER_ERROR, 3)
    assert f"error: {tmp_path}/none.png: not an image of a known format" in err
    pixels = np.stack([np.asarray(Image.open(image)) for image in images]).transpose(0, 3, 1, 2)
    graph = exported_task.folder / exported_task.document.graph().name
    scores = run_outputs(graph, image=pixels.astype(np.float32) / np.float32(255))["scores"]
    expected = scores.argmax(axis=1).reshape(3, -1).sum(axis=1)
    assert rows == [{"file": image, "answer": int(sum_)} for image, sum_ in zip(images, expected, strict=True)]
    Image.open(images[0]).resize((SIZE // 2, SIZE // 2)).save(tmp_path / "small.png")
    code, rows, err = predict(images[0], str(tmp_path / "small.png"))
    assert (code, [row["file"] for row in rows]) == (EXIT_USER_ERROR, [images[0]])
    assert f"small.png: image is float32 [1, 3, {SIZE // 2}, {SIZE // 2}], the task's signature says" in err
    # The task gets what sharding would have stored: here smaller and without transparency.
    see_through = Image.open(images[0]).convert("RGBA").resize((2 * SIZE, 2 * SIZE))
    see_through.putalpha(Image.linear_gradient("L").resize(see_through.size))
    see_through.save(tmp_path / "see-through.png")
    checks = Checks(changes=Changes(shorter_side=SIZE))
    stored = check((tmp_path / "see-through.png").read_bytes(), checks).content
    (tmp_path / "stored.png").write_bytes(stored)
    code, rows, _ = predict(str(tmp_path / "see-through.png"), str(tmp_path / "stored.png"))
    assert code == EXIT_OK and rows[0]["answer"] == rows[1]["answer"]
    assert "the configuration of its run is not known" in predict(*images, config=False)[2]

    # Answers are those of test-predictions.parquet: arrays and tensors as lists, places as names of classes.
    places = torch.tensor([[0, 1], [2, 2], [1, 7]])
    answers: Any = None
    monkeypatch.setattr("segmentation.Segmentation.classes", ["sky", "road", "car"], raising=False)
    monkeypatch.setattr("segmentation.Segmentation.answer", lambda self, outputs: answers)
    named = [["sky", "road"], ["car", "car"], ["road", 7]]
    for given in (places, list(places.numpy())):
        answers = given
        assert [row["answer"] for row in predict(*images)[1]] == named
    answers = places[:2]
    code, rows, err = predict(*images)
    assert (code, rows, "answer returned 2 answers for 3 samples" in err) == (EXIT_USER_ERROR, [], True), err


def with_one_answer(folder: Path, place: Path) -> Path:
    """Return a copy of an export whose graph says class 0 of every pixel."""
    found = shutil.copytree(folder, place)
    uri = storage.normalise(found)
    document = ExportManifest.load(uri)
    name = document.graph().name
    graph = onnx.load(found / name)
    (bias,) = [one for one in graph.graph.initializer if list(one.dims) == [CLASSES]]
    values = np.eye(1, CLASSES, dtype=numpy_helper.to_array(bias).dtype)[0] * 100
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    onnx.save(graph, found / name)
    new = ShippedFile.of(uri, name).model_dump(include={"bytes", "crc32c", "sha256"})
    graphs = [one.model_copy(update=new) if one.name == name else one for one in document.graphs]
    changed = document.model_copy(update={"graphs": graphs})
    (found / MANIFEST_NAME).write_bytes(changed.sealed().to_json())
    return found


def test_two_exports_of_it_are_compared_by_its_own_metric(
    exported_task: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(OWN_CODE)
    worse = with_one_answer(exported_task.folder, tmp_path / "worse")
    given = [f"--candidate={worse}", f"--production={exported_task.folder}", f"--shards={exported_task.shards}"]
    assert judge.main(given) == EXIT_USER_ERROR
    assert "--config-json is missing" in capsys.readouterr().err
    # What always says one class is right where it stands.
    share = np.mean([mask == 0 for mask in exported_task.masks])
    expected = exported_task.document.metrics["fp16"]["pixel_accuracy"]
    code = judge.main([*given, "--config-json", json.dumps(CONFIG)])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["metric"], found["samples"], found["direction"]) == ("pixel_accuracy", TEST, "max")
    assert (found["candidate"], found["production"]) == (pytest.approx(share), pytest.approx(expected, abs=1e-3))
    low, high = found["interval"]
    assert low < share - expected < high and (code == 1) == (expected - share > found["limit"])
    # By its loss, of which less is better.
    monkeypatch.setattr("segmentation.Segmentation.headline", "loss")
    assert judge.main([*given, "--config-json", json.dumps(CONFIG)]) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["verdict"], found["metric"], found["direction"]) == ("worse", "loss", "min")
    assert found["production"] == pytest.approx(exported_task.document.metrics["fp16"]["loss"], rel=1e-3)
    assert found["interval"][0] > 1


def test_code_that_changed_since_training_is_refused(exported_task: Exported) -> None:
    shards = ShardManifest.load(storage.normalise(exported_task.shards))
    checkpoint = CheckpointManifest.load(storage.normalise(exported_task.shards.parents[1] / "train"))
    config = RunConfig.model_validate({**CONFIG, "code": {"path": "2" * 64 + ".tar.gz"}})
    check_inputs(config, checkpoint.model_copy(update={"made_from": {"code": "2" * 64}}), shards)
    with pytest.raises(ConfigError, match="own code has changed since the checkpoint was trained"):
        check_inputs(config, checkpoint.model_copy(update={"made_from": {"code": "1" * 64}}), shards)
