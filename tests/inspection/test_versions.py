"""`shardline data describe`, `verify` and `export-index` on shards of both index versions."""

from __future__ import annotations

import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import wids
from PIL import Image

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import ConfigError, DataError
from data_tools.neighbours import export_index
from data_tools.show import describe, draw_grid
from data_tools.verify import verify
from inspection.run.data import describe_data
from inspection.run.door import Door
from inspection.run.find import RunPlace
from inspection.run.pictures import contact_sheet
from inspection.run.reading import Reading
from records.samples import open_samples
from tests.two_versions import plan, write_versions

FORMATS = ("webdataset", "tfrecord")


def count_nothing(done: int, total: int) -> None:
    pass


def load(folder: Path) -> tuple[str, ShardManifest]:
    uri = storage.normalise(folder)
    return uri, ShardManifest.load(uri)


@pytest.mark.parametrize("shard_format", FORMATS)
def test_show_draws_the_same_pictures(tmp_path: Path, shard_format: str) -> None:
    grids = []
    said = []
    for folder in write_versions(tmp_path, shard_format=shard_format, table=True):
        uri, manifest = load(folder)
        said.append(list(describe(manifest)))
        assert draw_grid(uri, manifest, folder / "grid.png") == 50
        with Image.open(folder / "grid.png") as image:
            grids.append(np.asarray(image))
        door = Door(storage.normalise(tmp_path))
        reading = Reading(RunPlace(door.line, "1"), door)
        shown = reading.contract(ShardManifest, storage.join(uri, "manifest.json"))
        assert len(contact_sheet(door, uri, shown)) == 50
        assert describe_data(uri, shown).shards == describe_data(uri, manifest).shards
        assert describe_data(uri, shown).shards[0].shards == 5
    assert np.array_equal(*grids) and said[0] == said[1]
    assert "train: 50 samples in 5 shards, 0.0 MB of source files" in said[0]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("shard_format", FORMATS)
def test_verify_names_shard_and_sample(tmp_path: Path, shard_format: str, processes: int) -> None:
    _, folder = write_versions(tmp_path, shard_format=shard_format, table=processes == 1)
    uri, manifest = load(folder)
    assert verify(uri, processes=processes, progress=count_nothing) == []
    samples = open_samples(manifest, uri)
    record = samples[11]
    entry = manifest.shards[int(record["shard"])]
    content = bytearray((folder / entry.name).read_bytes())
    path = [sample.path for shard in plan() for sample in shard.samples][11]
    # Before the path (a class name, or what fills a header), and around samples.
    content[content.index(path.encode(), int(record["offset"])) - 26] ^= 1
    (folder / entry.name).write_bytes(content)
    other = folder / manifest.shards[6].name
    other.write_bytes(
        other.read_bytes()[:-1] + b"\xfe" if shard_format == "webdataset" else b"\xfe" + other.read_bytes()[1:]
    )
    lines = verify(uri, processes=processes, progress=count_nothing)
    key = bytes(record["key"].tobytes()).hex()
    assert lines[0].startswith(f"{entry.name} has crc32c") and f"sample {key} at offset" in lines[1]
    assert lines[1].endswith(f"({path})") and lines[2].startswith(f"{other.name} has crc32c")
    assert lines[3] == f"{other.name}: no sample is hit, but what is around them" and len(lines) == 4
    # A damaged part is named, and its shards' samples are not looked for by it.
    (folder / manifest.index_parts[0].name).write_bytes(b"junk")
    damaged = verify(uri, processes=processes, progress=count_nothing)
    assert f"{manifest.index_parts[0].name} has 4 bytes, its manifest says" in damaged[-1]
    assert f"sample {key}" not in "".join(damaged)


def test_dali_index_of_tars(tmp_path: Path) -> None:
    """Byte by byte what DALI's own tool writes: its regular expressions split at blanks."""
    uri, manifest = load(write_versions(tmp_path)[1])
    names = export_index(uri)
    assert {name for name in names if name.endswith(".idx")} == {f"{one.name[:-4]}.idx" for one in manifest.shards}
    for entry in manifest.shards:
        text = storage.read_bytes(storage.join(uri, entry.name.replace(".tar", ".idx"))).decode("ascii")
        header, *lines = text.removesuffix("\n").split("\n")
        assert header == f"v1.2 {entry.samples}" and len(lines) == entry.samples
        with tarfile.open(storage.local_path(entry.uri(uri))) as archive:
            members = [(one.name.partition(".")[2], one.offset_data, one.size, one.name) for one in archive]
        listed = [line.split()[at : at + 4] for line in lines for at in range(0, len(line.split()), 4)]
        assert [(ext, int(offset), int(size), name) for ext, offset, size, name in listed] == members


def test_dali_index_of_tfrecords(tmp_path: Path) -> None:
    uri, manifest = load(write_versions(tmp_path, shard_format="tfrecord")[1])
    # From the index alone: the shards need not be there.
    contents = {entry.name: storage.read_bytes(entry.uri(uri)) for entry in manifest.shards}
    for entry in manifest.shards:
        storage.delete(entry.uri(uri))
    assert export_index(uri) == [entry.name.replace(".tfrecord", ".idx") for entry in manifest.shards]
    for name, content in contents.items():
        lines = storage.read_bytes(storage.join(uri, name.replace(".tfrecord", ".idx"))).decode().splitlines()
        at = 0
        for line in lines:
            offset, size = map(int, line.split(" "))
            assert (offset, size) == (at, struct.unpack_from("<Q", content, at)[0] + 16)
            at += size
        assert at == len(content)


def test_wids_reads_each_split_by_number(tmp_path: Path) -> None:
    folder = write_versions(tmp_path)[1]
    names = export_index(storage.normalise(folder), dali=False)
    assert names == ["wids-train.json", "wids-validation.json", "wids-test.json"]
    assert not list(folder.glob("*.idx"))
    expected = sorted(sample.content for shard in plan() for sample in shard.samples)
    found = []
    for name in names:
        dataset = wids.ShardListDataset(
            str(folder / name), cache_dir=str(tmp_path / f"cache-{name}"), transformations=[]
        )
        for number in range(len(dataset)):
            sample = dataset[number]
            found.append((sample[".jpg"] if ".jpg" in sample else sample[".png"]).read())
        dataset.close()
    assert sorted(found) == expected


def test_exported_files_are_created_and_never_replaced(tmp_path: Path) -> None:
    v1, v2 = write_versions(tmp_path)
    uri = storage.normalise(v2)
    assert export_index(uri) == export_index(uri)
    (v2 / "train-00001.idx").write_bytes(b"mine")
    with pytest.raises(ConfigError, match=r"train-00001\.idx of other content"):
        export_index(uri)
    assert (v2 / "train-00001.idx").read_bytes() == b"mine"
    with pytest.raises(ConfigError, match="index of version 1"):
        export_index(storage.normalise(v1))


def harm_header(path: Path) -> None:
    path.write_bytes(bytes(600) + path.read_bytes()[600:])


@pytest.mark.parametrize(("harm", "message"), [(harm_header, "no tar header at 0"), (Path.unlink, "is not there")])
def test_damaged_shards_are_named(tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    folder = write_versions(tmp_path)[1]
    harm(folder / "train-00002.tar")
    with pytest.raises(DataError, match=rf"train-00002\.tar.*{message}"):
        export_index(storage.normalise(folder))
    assert json.loads((folder / "manifest.json").read_text())["format_version"] == 2
