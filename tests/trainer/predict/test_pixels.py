"""`shardline predict` on files of the source gives what training found on the test split, whatever sharding changed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from contracts import storage
from contracts.artifacts import EvaluationReport, ShardManifest
from contracts.stage import run_stage
from tests.conftest import small_config
from tests.trainer.export.conftest import steps_in_this_process
from tests.trainer.one_rank import one_rank, train
from trainer.export.task import export
from trainer.predict import command

pytestmark = pytest.mark.line

CLASSES = ("bright", "dark")
PER_CLASS = 56


def picture(number: int, height: int = 40, width: int = 56) -> Image.Image:
    """Return a smooth picture of no symmetry; which class it is of is hard to see, so that scores differ."""
    random = np.random.default_rng(number)
    low = 28 if CLASSES[number % 2] == "bright" else 0
    small = random.integers(low, low + 180, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, image_format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, image_format, **options)
    return stream.getvalue()


def transparent(number: int) -> bytes:
    image = picture(number).convert("RGBA")
    pixels = np.array(image)
    pixels[..., 3] = np.linspace(0, 255, 40 * 56).reshape(40, 56)
    # What is invisible is black, as image editors leave it.
    pixels[:12] = 0
    return encode(Image.fromarray(pixels), "PNG")


def turned(number: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 1 + number // 2 % 8
    return encode(picture(number), "JPEG", exif=exif)


def deep(number: int) -> bytes:
    grey = np.asarray(picture(number).convert("L")).astype(np.uint16)
    return encode(Image.fromarray(grey * 257 + np.arange(56, dtype=np.uint16)), "PNG")


def mixed(number: int) -> bytes:
    """Return a file of each kind in turn that sharding changes, or stores as it is."""
    kinds: tuple[Callable[[int], bytes], ...] = (
        lambda number: encode(picture(number), ("JPEG", "PNG", "WEBP")[number % 3]),
        transparent,
        lambda number: encode(picture(number).quantize(8), "PNG", transparency=3),
        turned,
        lambda number: encode(picture(number).convert("CMYK"), "JPEG"),
        deep,
        lambda number: encode(picture(number, 90, 130), ("JPEG", "PNG", "WEBP")[number % 3]),
    )
    return kinds[number // 2 % len(kinds)](number)


def test_files_of_the_source_are_answered_as_in_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The rows of predict against test-predictions.parquet, in its order."""
    from sharding.task import shard

    for number in range(2 * PER_CLASS):
        folder = tmp_path / "source" / CLASSES[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.img").write_bytes(mixed(number))
    convert = ["cmyk", "depth", "orientation"]
    sharding = {"source": str(tmp_path / "source"), "convert": convert, "resize": 32}
    sharding["splits"] = {"train": 0.4, "validation": 0.2, "test": 0.4}
    given = ["--output", str(tmp_path / "shards"), "--config-json", json.dumps({"sharding": sharding})]
    assert run_stage("shard", shard, given) == 0
    shards_uri, training = storage.normalise(tmp_path / "shards"), tmp_path / "train" / "out"
    prepared = ShardManifest.load(shards_uri).prepared
    assert prepared is not None and any(prepared.changed.values())
    config = small_config(export={"precision": "fp32", "runtime": "onnx", "max_batch": 4})
    with one_rank() as rank:
        train(rank, tmp_path / "train", shards_uri, config)
    arguments = ["--root", str(tmp_path / "export"), "--checkpoint", str(training), "--shards", shards_uri]
    exported = {name: config[name] for name in ("data", "model", "export")}
    with steps_in_this_process():
        assert run_stage("export", export, ["--config-json", json.dumps(exported), *arguments]) == 0
    (manifest,) = (tmp_path / "export").glob("*/manifest.json")
    (predictions,) = training.rglob("test-predictions.parquet")
    table = parquet.read_table(predictions).to_pydict()
    (report,) = training.rglob("evaluation.json")
    accuracy = EvaluationReport.load(storage.normalise(report)).metrics["accuracy"]
    paths = [str(tmp_path / "source" / path) for path in table["path"]]
    capfd.readouterr()
    assert command.main([f"--folder={storage.normalise(manifest.parent)}", "-o", "json", "--", *paths]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["labels"][0] for row in rows] == table["answer"]
    scores = np.array([row["scores"][0] for row in rows])
    difference = float(np.abs(scores - table["probability"]).max())
    share = np.mean([row["labels"][0] == label for row, label in zip(rows, table["label"], strict=True)])
    assert difference <= 1e-4 and share == pytest.approx(accuracy)
    assert np.ptp(scores) > 1e-3, "scores of samples differ"
