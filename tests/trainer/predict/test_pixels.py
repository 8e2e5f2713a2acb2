"""`shardline predict` on files of the source gives what training found on the test split, whatever sharding changed."""

from __future__ import annotations

import csv
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
from trainer.data.reader import ShardReader
from trainer.export.task import export
from trainer.predict import command

pytestmark = pytest.mark.line

CLASSES = ("bright", "dark")
PER_CLASS = 30
TEXTS: dict[str, Any] = {
    "task": {"name": "text_classification", "arguments": {"max_length": 16}},
    "model": {
        "architecture": "bert",
        "arguments": {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 32,
        },
    },
}


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


CASES: dict[str, tuple[Callable[[int], bytes], dict[str, Any]]] = {
    "opaque": (lambda number: encode(picture(number), ("JPEG", "PNG", "WEBP")[number % 3]), {}),
    "transparent": (transparent, {}),
    "palette with transparency": (lambda number: encode(picture(number).quantize(8), "PNG", transparency=3), {}),
    "EXIF 1 to 8": (turned, {"convert": {"orientation": True}}),
    "CMYK": (lambda number: encode(picture(number).convert("CMYK"), "JPEG"), {"convert": {"cmyk": True}}),
    "16 bit": (deep, {"convert": {"depth": True}}),
    "resized": (lambda number: encode(picture(number, 90, 130), ("JPEG", "PNG", "WEBP")[number % 3]), {"resize": 24}),
}


def run_line(place: Path, config: dict[str, Any]) -> tuple[str, Path, Path]:
    """Shard, train and export; return the URI of the shards, the folder of the training and that of the export."""
    from sharding.task import shard

    given = ["--output", str(place / "shards"), "--config-json", json.dumps({"sharding": config.pop("sharding")})]
    assert run_stage("shard", shard, given) == 0
    shards_uri = storage.normalise(place / "shards")
    with one_rank() as rank:
        train(rank, place / "train", shards_uri, config)
    arguments = ["--root", str(place / "export"), "--checkpoint", str(place / "train" / "out"), "--shards", shards_uri]
    config["export"] = {"precision": "fp32", "runtime": "onnx", "max_batch": 4}
    exported = {name: config[name] for name in ("task", "data", "model", "export") if name in config}
    with steps_in_this_process():
        assert run_stage("export", export, ["--config-json", json.dumps(exported), *arguments]) == 0
    (folder,) = (path.parent for path in (place / "export").glob("*/manifest.json"))
    return shards_uri, place / "train" / "out", folder


def compare(name: str, folder: Path, training: Path, samples: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Hold the rows of predict against test-predictions.parquet, whose samples these are, in its order."""
    (predictions,) = training.rglob("test-predictions.parquet")
    table = parquet.read_table(predictions).to_pydict()
    (report,) = training.rglob("evaluation.json")
    accuracy = EvaluationReport.load(storage.normalise(report)).metrics["accuracy"]
    capfd.readouterr()
    assert command.main([f"--folder={storage.normalise(folder)}", "-o", "json", "--", *samples]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["labels"][0] for row in rows] == table["answer"]
    scores = np.array([row["scores"][0] for row in rows])
    difference = float(np.abs(scores - table["probability"]).max())
    share = np.mean([row["labels"][0] == label for row, label in zip(rows, table["label"], strict=True)])
    assert difference <= 1e-4 and share == pytest.approx(accuracy)
    assert np.ptp(scores) > 1e-3, "scores of samples differ"
    with capfd.disabled():
        print(f"\n| {name} | {len(rows)} | {accuracy:.4f} | {share:.4f} | {difference:.1e} |")


@pytest.mark.parametrize("name", CASES)
def test_files_of_the_source_are_answered_as_in_training(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    draw, sharding = CASES[name]
    for number in range(2 * PER_CLASS):
        folder = tmp_path / "source" / CLASSES[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.img").write_bytes(draw(number))
    splits = {"train": 0.4, "validation": 0.2, "test": 0.4}
    config = small_config(sharding={"source": str(tmp_path / "source"), "splits": splits, **sharding})
    shards_uri, training, exported = run_line(tmp_path, config)
    prepared = ShardManifest.load(shards_uri).prepared
    assert prepared is not None and any(prepared.changed.values()) == (name != "opaque")
    (predictions,) = training.rglob("test-predictions.parquet")
    paths = parquet.read_table(predictions).to_pydict()["path"]
    compare(name, exported, training, [str(tmp_path / "source" / path) for path in paths], capfd)


def test_texts_are_answered_as_in_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    words = {"bright": ["sun", "sun", "sun", "moon", "the"], "dark": ["moon", "moon", "moon", "sun", "the"]}
    # Some are longer than what the model takes, some have the words of special tokens.
    texts = [
        (" ".join(random.choice([*words[CLASSES[number % 2]], "[SEP]"], 1 + number % 30)), CLASSES[number % 2])
        for number in range(80)
    ]
    with (tmp_path / "texts.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *texts])
    fields = {"text": {"column": "text", "kind": "text"}, "label": {"column": "label", "kind": "class"}}
    sharding = {"source": str(tmp_path / "texts.csv"), "fields": fields, "tokenizer": {"vocabulary": 300}}
    sharding["splits"] = {"train": 0.4, "validation": 0.2, "test": 0.4}
    config = small_config(sharding=sharding, train={"epochs": 30, "learning_rate": 0.003}) | TEXTS
    shards_uri, training, exported = run_line(tmp_path, config)
    reader = ShardReader(shards_uri, ShardManifest.load(shards_uri), "test")
    compare("texts", exported, training, [reader.sample(place)["text"] for place in range(len(reader))], capfd)
