"""`shardline data describe|verify|index` as commands, on shards of ours and of others."""

import json
import os
import struct
import subprocess
import sys

import google_crc32c
import numpy as np
import pytest
import webdataset
import yaml
from PIL import Image
from typer.testing import CliRunner

from contracts import storage
from contracts.artifacts import ShardManifest
from pipelines.cli import app
from records.decode import decode_rgb
from records.index import read_payload
from records.index_file import IndexFile
from records.samples import open_samples


def data(*arguments):
    """Run a command of `shardline data` in this process."""
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def shardline(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def copy_of(uri, folder):
    folder.mkdir()
    for path in storage.local_path(uri).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


# --- show -------------------------------------------------------------------------------------------------------------


def test_show_counts_and_draws(small_shards, tmp_path):
    done = data("describe", storage.local_path(small_shards), "--grid", tmp_path / "grid.png")
    assert done.exit_code == 0, done.stderr
    manifest = ShardManifest.load(small_shards)
    assert "3 classes" in done.stdout and f"train: {manifest.splits['train'].samples} samples" in done.stdout
    assert "width 16 to 16 px" in done.stdout and "0 rejected, 0 ignored" in done.stdout
    with Image.open(tmp_path / "grid.png") as image:
        # The classes in turn: blue, green, red side by side.
        shades = [image.resize((8, 1), box=(0, 20, 1024, 124)).getpixel((column, 0)) for column in range(3)]
    assert [int(np.argmax(shade)) for shade in shades] == [2, 1, 0]


def test_show_without_a_manifest(tmp_path):
    done = data("describe", tmp_path)
    assert done.exit_code == 2 and "holds no manifest.json" in done.stderr


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_names_shard_and_sample_of_a_flipped_byte(small_shards, tmp_path):
    folder = copy_of(small_shards, tmp_path / "copy")
    good = data("verify", folder, "--processes", 1)
    assert (good.exit_code, good.stdout) == (0, "every checksum is right\n")
    assert "files" in good.stderr
    manifest = ShardManifest.load(storage.normalise(folder))
    samples = open_samples(manifest, storage.normalise(folder))
    record = samples[sum(split.samples for split in manifest.splits.values()) - 3]
    shard = folder / manifest.shards[record["shard"]].name
    content = bytearray(shard.read_bytes())
    content[int(record["offset"]) + 600] ^= 1
    shard.write_bytes(content)
    bad = data("verify", folder, "--processes", 1)
    assert bad.exit_code == 1
    assert f"{shard.name} has crc32c" in bad.stderr
    assert f"sample {bytes(record['key'].tobytes()).hex()}" in bad.stderr and ".png)" in bad.stderr
    assert bad.stderr.count("sample ") == 1


def test_verify_of_other_damage(small_shards, tmp_path):
    folder = copy_of(small_shards, tmp_path / "copy")
    manifest = ShardManifest.load(storage.normalise(folder))
    header, gone, part = (manifest.shards[0].name, manifest.shards[1].name, manifest.index_parts[1].name)
    content = bytearray((folder / header).read_bytes())
    # In the two empty blocks that end a tar.
    content[-3] ^= 1
    (folder / header).write_bytes(content)
    (folder / gone).unlink()
    (folder / part).write_bytes(b"junk")
    bad = data("verify", folder, "--processes", 1)
    assert bad.exit_code == 1
    assert "s around them" in bad.stderr and f"{gone} is missing" in bad.stderr
    assert f"{part} has 4 bytes" in bad.stderr


# --- index ------------------------------------------------------------------------------------------------------------


def pictures_of(pictures):
    """Return (bytes, label, class name) of 60 pictures."""
    paths = sorted(pictures.glob("*/0[01]*.png"))
    return [(path.read_bytes(), ["blue", "green", "red"].index(path.parent.name), path.parent.name) for path in paths]


def write_webdataset(folder, samples, label):
    folder.mkdir()
    for split, chosen in (("train", samples[::2]), ("val", samples[1::4]), ("test", samples[3::4])):
        with webdataset.ShardWriter(str(folder / f"{split}-%06d.tar"), maxcount=12, verbose=0) as writer:
            for number, sample in enumerate(chosen):
                writer.write({"__key__": f"dir/{number:04d}", "png": sample[0], **label(sample)})
    return folder


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def write_tfrecord(path, samples, *, packed, text):
    """Write records with other names and another order of features than ours."""
    with path.open("wb") as stream:
        for content, label, name in samples:
            number = field(1, varint(label)) if packed else varint(1 << 3) + varint(label)
            features = {
                "label": field(3, number),
                "image": field(1, field(1, content)),
                "weight": field(2, field(1, struct.pack("<f", 0.5))),
                "empty": field(1, b""),
            }
            if text:
                features["label"] = field(1, field(1, name.encode()))
            entries = b"".join(field(1, field(1, key.encode()) + field(2, value)) for key, value in features.items())
            data = field(1, entries)
            length = struct.pack("<Q", len(data))
            stream.write(length + mask(length) + data + mask(data))


def mask(content):
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def check_index(folder, samples, classes):
    manifest = ShardManifest.load(storage.normalise(folder))
    assert manifest.classes == classes
    index = IndexFile(folder / "index.bin")[:]
    found = [(read_payload(folder / manifest.shards[one["shard"]].name, one), classes[one["label"]]) for one in index]
    assert sorted(found) == sorted((content, name) for content, _, name in samples)
    pixels = [decode_rgb(content).reshape(-1, 3) for content, _ in found[: manifest.splits["train"].samples]]
    assert np.allclose(manifest.mean, np.concatenate(pixels).mean(axis=0) / 255)
    for name, entry in manifest.splits.items():
        shards = {manifest.shards[one["shard"]].split for one in index[entry.first : entry.first + entry.samples]}
        assert shards <= {name}
    return manifest


def train(folder, tmp_path):
    (tmp_path / "train.yaml").write_text(
        yaml.safe_dump({**{k: v for k, v in small_values().items() if k != "sharding"}, "resources": {"ranks": 1}})
    )
    done = shardline("train", "train.yaml", "--shards", folder, "--to", "trained", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / "trained" / "manifest.json").read_text())


def small_values():
    return {
        "data": {"image_size": 16, "num_workers": 0},
        "model": {
            "architecture": "resnet",
            "arguments": {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        },
        "train": {"global_batch_size": 10, "epochs": 1},
        "parallel": {"slot_size": 5},
    }


@pytest.mark.slow
def test_shards_of_webdataset_are_indexed_and_train(pictures, tmp_path):
    samples = pictures_of(pictures)
    folder = write_webdataset(tmp_path / "wds", samples, lambda one: {"cls": one[1], "json": {"class": one[2]}})
    done = data("adopt", folder, "--classes", classes_file(tmp_path))
    assert done.exit_code == 0, done.stderr
    manifest = check_index(folder, samples, ["blue", "green", "red"])
    assert manifest.splits["train"].samples == 30 and len(manifest.shards) == 7
    assert train(folder, tmp_path)["classes"] == ["blue", "green", "red"]
    assert data("verify", folder, "--processes", 1).exit_code == 0
    again = data("adopt", folder)
    assert again.exit_code == 2 and "has a manifest.json already" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("text", [False, True])
def test_tfrecords_of_another_writer_are_indexed_and_train(pictures, tmp_path, text):
    samples = pictures_of(pictures)
    (tmp_path / "tf").mkdir()
    write_tfrecord(tmp_path / "tf" / "part-0.tfrecord", samples[::2], packed=True, text=text)
    write_tfrecord(tmp_path / "tf" / "part-1.tfrecord", samples[1::2], packed=False, text=text)
    done = data("adopt", tmp_path / "tf", "--split", "train=*-0*", "--split", "test=*-1*", "--decode")
    assert done.exit_code == 0, done.stderr
    names = ["blue", "green", "red"] if text else ["0", "1", "2"]
    samples = [(content, label, name if text else str(label)) for content, label, name in samples]
    check_index(tmp_path / "tf", samples, names)
    if text:
        assert train(tmp_path / "tf", tmp_path)["classes"] == names


@pytest.mark.parametrize("label", [-1, 10**9, 2**62])
@pytest.mark.parametrize("packed", [False, True])
def test_labels_that_are_no_places_are_taken_by_classes(pictures, tmp_path, label, packed):
    samples = [(content, label if name == "red" else number, name) for content, number, name in pictures_of(pictures)]
    (tmp_path / "tf").mkdir()
    write_tfrecord(tmp_path / "tf" / "train-0.tfrecord", samples, packed=packed, text=False)
    refused = data("adopt", tmp_path / "tf")
    assert refused.exit_code == 2 and f"the label {label} is no place" in refused.stderr, refused.stderr
    assert "--classes FILE" in refused.stderr and not (tmp_path / "tf" / "manifest.json").exists()
    missing = data("adopt", tmp_path / "tf", "--classes", classes_file(tmp_path, "a\nb\nc\n"))
    assert missing.exit_code == 2 and f"label {label} is not among the 3 classes" in missing.stderr
    done = data("adopt", tmp_path / "tf", "--classes", classes_file(tmp_path, f"{label}\n0\n1\n"))
    assert done.exit_code == 0, done.stderr
    check_index(tmp_path / "tf", [(content, one, str(one)) for content, one, _ in samples], [str(label), "0", "1"])


def classes_file(tmp_path, text="blue\ngreen\nred\n"):
    (tmp_path / "classes.txt").write_text(text)
    return tmp_path / "classes.txt"


def test_labels_in_json_name_their_classes(pictures, tmp_path):
    samples = pictures_of(pictures)
    folder = write_webdataset(tmp_path / "wds", samples, lambda one: {"json": {"label": one[1], "class": one[2]}})
    assert data("adopt", folder).exit_code == 0
    check_index(folder, samples, ["blue", "green", "red"])


def test_images_that_are_none_are_left_out(pictures, tmp_path):
    samples = pictures_of(pictures)
    cut = (samples[1][0][:-20], 0, "blue")
    folder = write_webdataset(tmp_path / "wds", [cut, *samples], lambda one: {"cls": one[1]})
    refused = data("adopt", folder)
    assert refused.exit_code == 2 and "--decode" in refused.stderr
    assert not (folder / "manifest.json").exists()
    assert data("adopt", folder, "--decode").exit_code == 0
    manifest = ShardManifest.load(storage.normalise(folder))
    assert [one.path for one in manifest.rejected] == ["train-000000.tar/dir/0000"]
    assert sum(split.samples for split in manifest.splits.values()) == len(samples)


def test_what_cannot_be_indexed(pictures, tmp_path):
    samples = pictures_of(pictures)[::8]
    folder = write_webdataset(tmp_path / "wds", samples, lambda one: {"cls": one[1]})

    def refused(*arguments, at=folder):
        done = data("adopt", at, *arguments)
        assert done.exit_code == 2 and "allowed: " in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert not (at / "manifest.json").exists()
        return done.stderr

    assert "val-000000.tar belongs to no split" in refused("--split", "train=train*", "--split", "test=te*")
    assert "NAME=PATTERN" in refused("--split", "training=*")
    assert "belongs to train and test" in refused("--split", "train=*", "--split", "test=te*")
    assert "no shard is for training" in refused("--split", "test=*")
    assert "not among the 1 classes" in refused("--classes", classes_file(tmp_path, "blue\n"))
    assert "holds no shards" in refused(at=tmp_path)
    empty = write_webdataset(tmp_path / "nolabel", samples, lambda one: {"txt": "hello"})
    assert "no label among" in refused(at=empty)
    (tmp_path / "gz").mkdir()
    (tmp_path / "gz" / "train.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    assert "not compressed" in refused(at=tmp_path / "gz")
    (tmp_path / "tf").mkdir()
    write_tfrecord(tmp_path / "tf" / "train.tfrecord", samples, packed=True, text=False)
    content = bytearray((tmp_path / "tf" / "train.tfrecord").read_bytes())
    content[200] ^= 1
    (tmp_path / "tf" / "train.tfrecord").write_bytes(content)
    assert "record at 0: its content has a wrong checksum" in refused(at=tmp_path / "tf")
    (tmp_path / "tf" / "train.tfrecord").write_bytes(content[:-7])
    assert "record at" in refused(at=tmp_path / "tf")
