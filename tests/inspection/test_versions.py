"""`shardline data describe` and `verify` on shards of both index versions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from contracts import storage
from contracts.artifacts import ShardManifest
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


@pytest.mark.parametrize(("shard_format", "processes"), [("webdataset", 1), ("tfrecord", 2)])
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
