"""`shardline data adopt`: shards of WebDataset and of another writer of TFRecords, on a disk and in a bucket."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import webdataset
import yaml
from typer.testing import CliRunner

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import ConfigError, TryAgain
from pipelines.cli import app
from records.decode import decode_rgb
from records.fields import FieldReader, image_of, path_in
from records.index import SampleIndex, read_samples
from records.tools.adopt import DEFAULT_PATTERNS, adopt
from records.tools.verify import verify
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.records.small_shards import CLASSES, make_sample
from tests.records.test_tfrecord import record

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


class Picture(NamedTuple):
    """An image as others label it."""

    content: bytes
    label: int
    name: str


PICTURES = [Picture(one.content, one.label, one.class_name) for one in map(make_sample, range(60))]


def adopt_command(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["data", "adopt", *map(str, arguments)])


def silent(done: int, total: int) -> None:
    """Show no progress."""


def adopt_folder(uri: str) -> ShardManifest:
    return adopt(uri, patterns=DEFAULT_PATTERNS, class_names=None, progress=silent)


def write_webdataset(folder: Path, pictures: list[Picture], label: Callable[[Picture], dict[str, Any]]) -> Path:
    folder.mkdir()
    for split, chosen in (("train", pictures[::2]), ("val", pictures[1::4]), ("test", pictures[3::4])):
        with webdataset.ShardWriter(str(folder / f"{split}-%06d.tar"), maxcount=12, verbose=0) as writer:
            for number, one in enumerate(chosen):
                writer.write({"__key__": f"dir/{number:04d}", "png": one.content, **label(one)})
    return folder


def write_tfrecord(path: Path, pictures: list[Picture], *, text: bool = False) -> Path:
    """Write records with other names of features than ours."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        b"".join(
            record({"label": [one.name.encode() if text else one.label], "image": [one.content], "weight": [0.5]})
            for one in pictures
        )
    )
    return path.parent


def classes_file(folder: Path, text: str = "blue\ngreen\nred\n") -> Path:
    (folder / "classes.txt").write_text(text)
    return folder / "classes.txt"


def check(uri: str, pictures: list[tuple[bytes, str]], classes: list[str]) -> ShardManifest:
    """Compare what readers of the indices get with what was written."""
    manifest = ShardManifest.load(uri)
    assert manifest.classes == classes and verify(uri, processes=1, progress=silent) == []
    index = SampleIndex(manifest, uri)
    found = []
    for place, stored in enumerate(read_samples(index, uri, range(len(index)))):
        row = index[place]
        fields = FieldReader(manifest).read(stored, int(row["label"]))
        assert fields["image"] == image_of(stored, manifest)
        assert int(row["content"]) == int.from_bytes(blake2b(fields["image"], digest_size=8).digest(), "big")
        assert row["source"] == 0 and path_in(stored, manifest.format) is None
        found.append((fields["image"], classes[fields["label"]]))
    assert sorted(found) == sorted(pictures)
    pixels = [decode_rgb(content).reshape(-1, 3) for content, _ in found[: manifest.splits["train"].samples]]
    assert np.allclose(manifest.mean or [], np.concatenate(pixels).mean(axis=0) / 255)
    for name, split in manifest.splits.items():
        labels = index.labels(split.first, split.samples)
        assert split.samples_by_class == np.bincount(labels, minlength=len(classes)).tolist()
        shards = manifest.shards.numbers_of(name)
        assert split.samples == sum(manifest.shards.samples[number] for number in shards)
    return manifest


@pytest.mark.parametrize("names", ["file", "json"])
def test_tars_of_webdataset(tmp_path: Path, names: str) -> None:
    folder = write_webdataset(
        tmp_path / "wds",
        PICTURES,
        lambda one: {"cls": one.label} if names == "file" else {"json": {"label": one.label, "class": one.name}},
    )
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = adopt_command(folder, *(["--classes", classes_file(tmp_path)] if names == "file" else []))
    assert done.exit_code == 0, done.stderr
    assert "7 of 7 files" in done.stderr and "webdataset, 7 shards" in done.stdout
    manifest = check(storage.normalise(folder), [(one.content, one.name) for one in PICTURES], CLASSES)
    assert manifest.splits["train"].samples == 30
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {"manifest.json", *(Path(name).stem + ".idx.npy" for name in before)}
    again = adopt_command(folder)
    assert again.exit_code == 2 and "has a manifest.json already" in again.stderr


@pytest.mark.parametrize("text", [False, True])
def test_tfrecords_of_another_writer(tmp_path: Path, text: bool) -> None:
    write_tfrecord(tmp_path / "tf" / "part-0.tfrecord", PICTURES[::2], text=text)
    write_tfrecord(tmp_path / "tf" / "part-1.tfrecord", PICTURES[1::2], text=text)
    done = adopt_command(tmp_path / "tf", "--split", "train=*-0*", "--split", "test=*-1*")
    assert done.exit_code == 0, done.stderr
    classes = CLASSES if text else ["0", "1", "2"]
    check(storage.normalise(tmp_path / "tf"), [(one.content, classes[one.label]) for one in PICTURES], classes)


@pytest.mark.parametrize("label", [-1, 2**62])
def test_labels_that_are_no_places_are_taken_by_classes(tmp_path: Path, label: int) -> None:
    pictures = [one._replace(label=label) if one.name == "red" else one for one in PICTURES[:12]]
    folder = write_tfrecord(tmp_path / "tf" / "train-0.tfrecord", pictures)
    refused = adopt_command(folder)
    assert refused.exit_code == 2 and f"the label {label} is no place" in refused.stderr, refused.stderr
    assert "--classes FILE" in refused.stderr and len(list(folder.iterdir())) == 1
    missing = adopt_command(folder, "--classes", classes_file(tmp_path, "a\nb\nc\n"))
    assert missing.exit_code == 2 and "not among the 3 classes" in missing.stderr and str(label) in missing.stderr
    done = adopt_command(folder, "--classes", classes_file(tmp_path, f"{label}\n0\n1\n"))
    assert done.exit_code == 0, done.stderr
    named = [(one.content, str(one.label)) for one in pictures]
    check(storage.normalise(folder), named, [str(label), "0", "1"])


def test_images_that_are_none_are_left_out(tmp_path: Path) -> None:
    # A PNG: only decoding shows that it is cut.
    cut = Picture(PICTURES[1].content[:-20], 0, "blue")
    folder = write_webdataset(tmp_path / "wds", [cut, *PICTURES], lambda one: {"cls": one.label})
    assert adopt_command(folder).exit_code == 0
    manifest = ShardManifest.load(storage.normalise(folder))
    assert [one.path for one in manifest.rejected] == ["train-000000.tar/dir/0000"]
    assert len(SampleIndex(manifest, storage.normalise(folder))) == len(PICTURES)


def test_folders_that_cannot_be_adopted(tmp_path: Path) -> None:
    folder = write_webdataset(tmp_path / "wds", PICTURES[:8], lambda one: {"cls": one.label})

    def refused(*arguments: object, at: Path = folder) -> str:
        done = adopt_command(at, *arguments)
        assert done.exit_code == 2 and "allowed: " in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert not (at / "manifest.json").exists()
        return str(done.stderr)

    assert "val-000000.tar belongs to no split" in refused("--split", "train=train*", "--split", "test=te*")
    assert "NAME=PATTERN" in refused("--split", "training=*")
    assert "no shard is for training" in refused("--split", "test=*")
    assert "not among the 1 classes" in refused("--classes", classes_file(tmp_path, "blue\n"))
    assert "cannot be read" in refused("--classes", tmp_path / "none.txt")
    assert "holds no shards" in refused(at=tmp_path)
    unlabelled = write_webdataset(tmp_path / "nolabel", PICTURES[:8], lambda one: {"txt": "hello"})
    assert "no label among" in refused(at=unlabelled)
    mixed = write_tfrecord(tmp_path / "mixed" / "train-0.tfrecord", PICTURES[:2])
    write_tfrecord(mixed / "train-1.tfrecord", PICTURES[:2], text=True)
    assert "labels of mixed types" in refused(at=mixed)
    (mixed / "test.tar").write_bytes(b"")
    assert "holds tars and TFRecords" in refused(at=mixed)


def upload(folder: Path) -> str:
    uri = "gs://bucket-1/a folder/shards"
    for path in folder.iterdir():
        storage.replace(storage.join(uri, path.name), path.read_bytes())
    return uri


def test_a_bucket_gets_what_a_folder_gets(bucket_server: BucketServer, tmp_path: Path) -> None:
    local = write_webdataset(tmp_path / "wds", PICTURES, lambda one: {"cls": one.label})
    uri = upload(local)
    before = {info.name: info.generation for info in storage.list_objects(uri)}
    bucket_server.access_log.clear()
    manifest = adopt_folder(uri)
    # Each shard once from front to back.
    assert len(bucket_server.access_log.entries(operation="objects.media")) == 7
    assert manifest == adopt_folder(storage.normalise(local)) == ShardManifest.load(uri)
    after = {info.name: info.generation for info in storage.list_objects(uri)}
    assert before.items() <= after.items() and len(after) == 2 * len(before) + 1
    check(uri, [(one.content, str(one.label)) for one in PICTURES], ["0", "1", "2"])


def test_an_index_of_other_content_is_not_replaced(bucket_server: BucketServer, tmp_path: Path) -> None:
    folder = write_webdataset(tmp_path / "wds", PICTURES, lambda one: {"cls": one.label})
    (folder / "val-000000.idx.npy").write_bytes(b"another program's")
    for uri in (upload(folder), storage.normalise(folder)):
        with pytest.raises(ConfigError, match=r"val-000000\.idx\.npy with other content"):
            adopt_folder(uri)
        assert not storage.exists(storage.join(uri, "manifest.json"))
        storage.delete(storage.join(uri, "val-000000.idx.npy"))
        # The indices of an attempt that ended before its manifest are taken.
        adopt_folder(uri)


@pytest.mark.slow
def test_adopted_shards_train(tmp_path: Path) -> None:
    folder = write_webdataset(tmp_path / "wds", PICTURES, lambda one: {"json": {"label": one.label, "class": one.name}})
    adopt_folder(storage.normalise(folder))
    values = small_config(train={"epochs": 1}, resources={"ranks": 1})
    (tmp_path / "train.yaml").write_text(yaml.safe_dump({name: values[name] for name in values if name != "sharding"}))
    command = [sys.executable, "-m", "pipelines.cli", "train", "train.yaml", "--shards", str(folder), "--to", "trained"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "trained" / "manifest.json").read_text())["classes"] == CLASSES


def test_a_shard_that_is_replaced_meanwhile(bucket_server: BucketServer, tmp_path: Path) -> None:
    folder = write_webdataset(tmp_path / "wds", PICTURES, lambda one: {"cls": one.label})
    uri = upload(folder)

    def replace(done: int, total: int) -> None:
        if done == 0:
            upload(folder)

    with pytest.raises(TryAgain, match="replaced while it was read"):
        adopt(uri, patterns=DEFAULT_PATTERNS, class_names=None, progress=replace)
    assert not [info.name for info in storage.list_objects(uri) if not info.name.endswith(".tar")]
