"""`shardline data verify` on a disk and in a bucket: the real client against the bucket server."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts import storage
from contracts.artifacts import ShardManifest
from pipelines.cli import app
from records.index import SampleIndex, key_of
from records.tools.verify import verify
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from tests.records.small_shards import write_shards

# Google's client drops the connection of a streamed answer that is an error, and leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(params=["disk", "bucket"])
def shards(request: pytest.FixtureRequest, tmp_path: Path, bucket_server: BucketServer) -> Iterator[str]:
    """URI of small shards."""
    write_shards(tmp_path / "shards")
    uri = storage.normalise(tmp_path / "shards")
    if request.param == "bucket":
        uri = "gs://bucket-1/a folder/shards"
        for path in (tmp_path / "shards").iterdir():
            storage.replace(storage.join(uri, path.name), path.read_bytes())
    yield uri
    gc.collect()


def verify_command(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["data", "verify", *map(str, arguments)])


def silent(done: int, total: int) -> None:
    """Show no progress."""


def flip(uri: str, *places: int) -> None:
    content = bytearray(storage.read_bytes(uri))
    for at in places:
        content[at] ^= 1
    storage.replace(uri, bytes(content))


def test_a_flipped_byte_names_shard_and_sample(shards: str) -> None:
    good = verify_command(shards, "--processes", 2 if shards.startswith("file") else 1)
    assert (good.exit_code, good.stdout) == (0, "every checksum is right\n"), good.stderr
    assert "files" in good.stderr
    manifest = ShardManifest.load(shards)
    row = SampleIndex(manifest, shards)[8]
    name = manifest.shards[2].name
    flip(storage.join(shards, name), int(row["offset"]) + 600)
    for extra in ([], ["--stored"]):
        bad = verify_command(shards, "--processes", 1, *extra)
        assert bad.exit_code == 1
        assert f"{name} has crc32c" in bad.stderr
        assert f"sample {key_of(row)}" in bad.stderr and "red/008 x.jpeg)" in bad.stderr
        assert bad.stderr.count("sample ") == 1


def test_other_damage(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = ShardManifest.load(shards)
    end, gone, index, header = manifest.shards[0], manifest.shards[2], manifest.shards[3], manifest.shards[4]
    flip(storage.join(shards, end.name), end.bytes - 3)
    storage.delete(storage.join(shards, gone.name))
    storage.replace(storage.join(shards, index.index.name), b"junk")
    flip(storage.join(shards, index.name), 700)
    rows = SampleIndex(manifest, shards).rows(4)
    flip(storage.join(shards, header.name), *(int(row["offset"]) for row in rows))
    monkeypatch.setattr("records.tools.verify._MAX_NAMED_SAMPLES", 4)
    seen: list[tuple[int, int]] = []
    found = verify(shards, processes=1, progress=lambda done, total: seen.append((done, total)))
    assert [line.partition(" has crc")[0].partition(", sample")[0] for line in found] == [
        *(end.name, f"{end.name}: the damage is outside of the samples", f"{gone.name} is missing", index.name),
        f"{index.index.name} has 4 bytes, its manifest says {index.index.bytes}",
        *(header.name, *[header.name] * 4, f"{header.name}: 2 more samples"),
    ]
    assert seen[-1] == (10, 10)


@pytest.mark.parametrize("shards", ["bucket"], indirect=True)
def test_a_byte_that_changed_on_its_way_is_no_damage(shards: str, bucket_server: BucketServer) -> None:
    name = ShardManifest.load(shards).shards[0].name
    bucket_server.faults.set(Rule(operation="objects.media", object=f"*/{name}", corrupt_at=700, limit=1))
    assert verify(shards, processes=1, progress=silent) == []
    bucket_server.faults.set(Rule(operation="objects.media", object=f"*/{name}", corrupt_at=700))
    assert verify(shards, processes=1, progress=silent)[0].startswith(f"{name} has crc32c")
    bucket_server.access_log.clear()
    assert verify(shards, processes=1, progress=silent, stored=True) == []
    read = bucket_server.access_log.entries(operation="objects.media")
    assert {request.object.rpartition("/")[2] for request in read} == {"manifest.json"}
    bucket_server.faults.set(Rule(operation="objects.get", object=f"*/{name}", status=403))
    done = verify_command(shards, "--processes", 1)
    assert done.exit_code == 2 and "no permission" in done.stderr
