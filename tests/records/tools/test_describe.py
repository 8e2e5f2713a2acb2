"""`shardline data describe`: counts, pictures, and the samples of a split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from contracts.artifacts import FieldEntry
from pipelines.cli import app
from records.sample import Sample, Value
from tests.records.small_shards import FORMATS, make_sample, write_shards


def describe(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["data", "describe", *map(str, arguments)])


def test_counts_and_pictures(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", warnings=["a warning"], mean=[0.5] * 3, std=[0.25] * 3)
    done = describe(tmp_path / "shards", "--grid", tmp_path / "grid.png")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("webdataset, 5 shards, ") and lines[0].endswith(" MB, 3 classes")
    assert "train: 13 samples in 3 shards, 0.0 MB of source files" in lines
    assert "class: train / validation / test" in lines and "  blue: 5 / 1 / 2" in lines
    assert "mean 0.5000 0.5000 0.5000, deviation 0.2500 0.2500 0.2500" in lines and "warning: a warning" in lines
    assert "verified: decode; 0 rejected, 0 ignored by name" in lines
    assert "13 pictures" in done.stderr
    with Image.open(tmp_path / "grid.png") as image:
        # The classes in turn: blue, green, red side by side.
        shades: list[Any] = [image.resize((8, 1), box=(0, 20, 1024, 124)).getpixel((column, 0)) for column in range(3)]
    assert [int(np.argmax(shade)) for shade in shades] == [2, 1, 0]
    as_json = json.loads(describe(tmp_path / "shards", "-o", "json").stdout)
    assert as_json["classes"] == ["blue", "green", "red"] and "shards" not in as_json


@pytest.mark.parametrize("shard_format", FORMATS)
def test_samples_of_a_split(tmp_path: Path, shard_format: str) -> None:
    write_shards(tmp_path, shard_format)
    samples = [make_sample(number) for number in range(18, 24)]
    done = describe(tmp_path, "--split", "test")
    assert done.stdout.splitlines() == [f"{sample.path}\t{sample.class_name}" for sample in samples]
    assert json.loads(describe(tmp_path, "--split", "test", "-o", "json").stdout) == [
        {"path": sample.path, "label": sample.class_name, "split": "test"} for sample in samples
    ]
    assert describe(tmp_path, "--split", "tests").exit_code == 2


@pytest.mark.parametrize("shard_format", FORMATS)
def test_samples_with_several_classes_or_none(tmp_path: Path, shard_format: str) -> None:
    several = [make_sample(n)._replace(label=-1, labels=(0, 2)[:n], class_names=("blue", "red")[:n]) for n in range(3)]
    write_shards(tmp_path / "several", shard_format, [("train", several)], multi_label=True)
    lines = describe(tmp_path / "several", "--split", "train").stdout.splitlines()
    assert [line.partition("\t")[2] for line in lines] == ["", "blue", "blue, red"]
    found = json.loads(describe(tmp_path / "several", "--split", "train", "-o", "json").stdout)
    assert [one["labels"] for one in found] == [[], ["blue"], ["blue", "red"]]
    text = (Value("text", "text", "hello"),)
    row = Sample(b"k" * 16, b"", "", -1, "", "row:12ab", 0, 0, "", values=text)
    fields = {"text": FieldEntry(kind="text")}
    write_shards(tmp_path / "rows", shard_format, [("train", [row])], classes=[], fields=fields)
    assert describe(tmp_path / "rows", "--split", "train").stdout == "row:12ab\t\n"
    grid = describe(tmp_path / "rows", "--grid", tmp_path / "grid.png")
    assert grid.exit_code == 2 and "holds no images: its fields are text (text)" in grid.stderr
