"""`shardline predict`: which export is meant, that its files are checked, and what it prints."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest
from contracts.artifacts.signature import Signature
from contracts.errors import UserError
from pipelines.predict import find_export, run_predict
from rehearsal.gcs import BucketServer
from tests.trainer.export import colours
from trainer.export import engine
from trainer.export.runtime import Builder
from trainer.predict import command

ID, NEWER, FAILED = "20261121-120000-0001", "20261121-130000-0001", "20261121-140000-0001"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "export"
    colours.write_export(folder)
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of plain images by what they show."""
    folder = tmp_path_factory.mktemp("images")
    for name, colour in colours.COLOURS.items():
        Image.new("RGB", (30, 20), tuple(round(255 * part) for part in colour)).save(folder / f"{name}.jpg", quality=95)
    return {name: str(folder / f"{name}.jpg") for name in colours.COLOURS}


def answer(capfd: pytest.CaptureFixture[str], folder: Path | str, *arguments: str) -> tuple[int, list[Any], str]:
    """Run what the command runs, in this process: exit code, rows, stderr."""
    code = command.main([f"--folder={folder}", "-o", "json", *arguments])
    captured = capfd.readouterr()
    assert "Traceback" not in captured.err
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_an_export_answers_as_its_shipped_program_does(
    exported: Path, images: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_predict(str(exported), [*images.values()], top=2, output="csv", lines=None) == 0
    found = capfd.readouterr()
    rows = list(csv.reader(found.out.splitlines()))
    assert [(row[0], row[1].split("; ")[0]) for row in rows[1:]] == [(path, name) for name, path in images.items()]
    assert found.err.startswith("predict: model.fp32.onnx by onnxruntime 1.")
    assert len(found.err.splitlines()) == 1
    program = [sys.executable, "-I", str(exported / "predict.py"), *images.values(), "--top", "2", "-o", "csv"]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == found.out


def change_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit_manifest(folder: Path, changes: dict[str, Any], *, seal: bool = True) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    if seal:
        path.write_bytes(ExportManifest.load(storage.normalise(folder)).sealed().to_json())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: change_byte(folder / "model.fp32.onnx"), "model.fp32.onnx has crc32c"),
        (lambda folder: edit_manifest(folder, {"precision": "fp16"}, seal=False), "the manifest was changed"),
    ],
)
def test_a_damaged_export_is_refused(
    copy: Path,
    images: dict[str, str],
    capfd: pytest.CaptureFixture[str],
    damage: Callable[[Path], Any],
    message: str,
) -> None:
    damage(copy)
    code, out, err = answer(capfd, copy, images["red"])
    assert (code, out) == (2, [])
    assert message in err
    assert "to do:" in err


def test_nothing_of_the_folder_is_executed(
    copy: Path, images: dict[str, str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / "predict.py").write_text("raise SystemExit(9)")
    (copy / "numpy.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(copy)
    # Files that are not used are not looked at: the program is for others.
    assert answer(capfd, copy, images["red"])[0] == 0
    assert run_predict(str(copy), [images["red"]], top=None, output="table", lines=None) == 0


def test_a_bucket_holds_models_and_images(
    exported: Path, images: dict[str, str], bucket_server: BucketServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in exported.iterdir():
        storage.publish(f"gs://bucket-1/runs/x/export/{path.name}", path.read_bytes())
    storage.publish("gs://bucket-1/images/red.jpg", Path(images["red"]).read_bytes())
    folder = "gs://bucket-1/runs/x/export"
    code, rows, err = answer(capfd, folder, "gs://bucket-1/images/", "gs://bucket-1/none.jpg")
    assert (code, rows[0]["file"], rows[0]["labels"]) == (2, "gs://bucket-1/images/red.jpg", ["red"])
    assert len(rows) == 1 and "error: gs://bucket-1/none.jpg: " in err
    storage.replace(f"{folder}/labels.json", b"[]")
    assert "labels.json has bytes 2" in answer(capfd, folder, images["red"])[2]


def write_attempt(line: Path, name: str, *events: dict[str, Any], tail: str = "") -> None:
    folder = line / "export" / "attempts" / name
    folder.mkdir(parents=True)
    lines = [json.dumps({"time": 1.0, **event}) + "\n" for event in ({"event": "start"}, *events)]
    (folder / "events.jsonl").write_text("".join(lines) + tail)


@pytest.fixture
def line(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line with two finished exports, made by three attempts, the newest of which failed."""
    monkeypatch.chdir(tmp_path)
    line = tmp_path / "runs" / "photos"
    for name in ("a" * 16, "b" * 16):
        shutil.copytree(exported, line / "export" / name)
    first, second = (storage.normalise(line / "export" / (letter * 16)) for letter in "ab")
    write_attempt(line, ID, {"event": "reused", "uri": first})
    write_attempt(line, NEWER, {"event": "finish", "uri": second}, tail='{"event": "fi')
    write_attempt(line, FAILED, {"event": "error"})
    for run in (ID, FAILED):
        (line / "runs" / run).mkdir(parents=True)
        (line / "runs" / run / "run-start.json").touch()
    return line


def test_a_model_is_an_export_or_a_run(line: Path) -> None:
    for name, letter in (
        (str(line), "b"),
        (line.as_uri(), "b"),
        (str(line / "runs" / ID), "a"),
        (ID, "a"),
        (str(line / "export" / ("a" * 16)), "a"),
    ):
        assert find_export(name) == storage.normalise(line / "export" / (letter * 16))
    # A run whose id has a dot, before a newer one whose record is damaged.
    write_attempt(line, f"2027.a.{ID}", {"event": "finish", "uri": storage.normalise(line / "export" / ("a" * 16))})
    write_attempt(line, f"2028.{ID}", {"event": "finish", "uri": "file:///gone"})
    (line / "runs" / "2028").mkdir()
    (line / "runs" / "2028" / "run.json").write_text("{")
    assert find_export(str(line)) == storage.normalise(line / "export" / ("a" * 16))
    for name in (f"2027.a.{ID}", f"2028.{ID}"):
        shutil.rmtree(line / "export" / "attempts" / name)
    moved = line.rename(line.with_name("moved"))
    assert find_export("runs/moved") == storage.normalise(moved / "export" / ("b" * 16))


def test_an_own_task_gets_the_configuration_of_its_run(line: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []
    monkeypatch.setattr(
        "pipelines.predict.subprocess.run",
        lambda command, **_: commands.append(command) or subprocess.CompletedProcess(command, 0),
    )
    # A damaged event is passed over.
    events = line / "export" / "attempts" / ID / "events.jsonl"
    events.write_bytes(b'\xff{\n[]\n{"event": "finish"}\n' + events.read_bytes())
    (line / "runs" / ID / "run-start.json").write_text(json.dumps({"config": {"task": {"name": "own:Task"}}}))
    run_predict(ID, ["a.png"], top=2, output="csv", lines=None)
    edit_manifest(line / "export" / ("a" * 16), {"task": "own:Task"})
    run_predict(ID, ["-a.png"], top=None, output="json", lines="-")
    assert commands[0][3:] == [f"--folder={find_export(ID)}", "--output=csv", "--top=2", "--", "a.png"]
    assert commands[1][5:7] == ["--lines=-", commands[1][6]] and commands[1][7:] == ["--", "-a.png"]
    assert json.loads(commands[1][6].removeprefix("--config-json="))["task"]["name"] == "own:Task"


def test_what_is_no_model_ends_with_2(line: Path) -> None:
    for given, expected in (
        ("nowhere", "nowhere has no manifest.json, so it is not a finished export, and it is not a run"),
        (FAILED, "2 exports; name one of them"),
        ("s3://bucket/model", "s3://"),
    ):
        with pytest.raises(UserError) as caught:
            find_export(given)
        assert caught.value.exit_code == 2 and expected in str(caught.value) and caught.value.todo


ENGINE = "model.fp32.sm89.engine"


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (None, "no GPU, the engine is for sm89 (l4"),
        ("sm89", f"{ENGINE} was built by tensorrt_rtx 1.0, installed is tensorrt_rtx 1."),
    ],
)
def test_where_no_engine_runs_the_graph_answers(
    copy: Path, images: dict[str, str], monkeypatch: Any, capfd: Any, gpu: str | None, reason: str
) -> None:
    colours.write_engine(copy, b"an engine", builder="tensorrt_rtx 1.0")
    for module in (command, engine):
        monkeypatch.setattr(module, "gpu_target", lambda: gpu)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    code, rows, err = answer(capfd, copy, images["red"])
    assert (code, rows[0]["labels"]) == (0, ["red"])
    assert "model.fp32.onnx by onnxruntime" in err and reason in err


def test_the_engine_answers_where_its_gpu_is(
    copy: Path, images: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    colours.write_engine(copy, b"an engine", max_batch=1)
    monkeypatch.setattr(command, "gpu_target", lambda: "sm89")
    monkeypatch.setattr(engine, "device_name", lambda: "NVIDIA L4 (sm89)")
    opened = []

    def open_engine(path: Path, builder: Builder, signature: Signature) -> engine.Runner:
        opened.append((path.read_bytes(), builder.identity, signature.outputs["logits"].shape))
        return lambda batch: {"logits": np.arange(6, dtype=np.float32)[None]}

    # There is no GPU here: the double of the engine prefers the last class.
    monkeypatch.setattr(engine, "open_engine", open_engine)
    code, rows, err = answer(capfd, copy, images["red"], images["blue"])
    assert (code, [row["labels"] for row in rows]) == (0, [["white"], ["white"]])
    assert opened == [(b"an engine", "tensorrt_rtx 1.7.1, sm89", ["batch", 6])]
    assert f"predict: {ENGINE} by tensorrt_rtx 1.7.1 on NVIDIA L4 (sm89)" in err
    change_byte(copy / ENGINE)
    code, _, err = answer(capfd, copy, images["red"])
    assert (code, f"{ENGINE} has crc32c" in err) == (2, True)
