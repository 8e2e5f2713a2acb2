"""`shardline data describe|verify|adopt` on shards in a bucket: the real client against the bucket server."""

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import ConfigError, TryAgain
from data_tools.adopt import adopt
from data_tools.foreign import DEFAULT_PATTERNS
from data_tools.show import draw_grid
from data_tools.verify import verify
from records.index import INDEX_NAME
from records.samples import open_samples
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from tests.inspection.test_data import copy_of, data, pictures_of, write_tfrecord, write_webdataset

# Google's client drops the connection of a streamed answer that is an error, and leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

ROOT = "gs://bucket-1/a folder/shards"


def upload(folder: Path, uri: str = ROOT) -> str:
    for path in folder.iterdir():
        if path.is_file():
            storage.replace(storage.join(uri, path.name), path.read_bytes())
    return uri


@pytest.fixture
def shards(small_shards: str, bucket_server: BucketServer) -> Iterator[str]:
    """The small shards, in a bucket."""
    yield upload(storage.local_path(small_shards))
    gc.collect()


@pytest.fixture
def bucket(bucket_server: BucketServer) -> Iterator[BucketServer]:
    """The server with an empty bucket."""
    yield bucket_server
    gc.collect()


def silent(done: int, total: int) -> None:
    """Show no progress."""


def flip(uri: str, at: int) -> None:
    content = bytearray(storage.read_bytes(uri))
    content[at] ^= 1
    storage.replace(uri, bytes(content))


# --- show -------------------------------------------------------------------------------------------------------------


def test_show_counts_and_draws_by_ranged_reads(
    shards: str, small_shards: str, bucket_server: BucketServer, tmp_path: Path
) -> None:
    bucket_server.access_log.clear()
    done = data("describe", shards, "--grid", tmp_path / "grid.png")
    assert done.exit_code == 0, done.stderr
    manifest = ShardManifest.load(shards)
    assert "3 classes" in done.stdout and f"train: {manifest.splits['train'].samples} samples" in done.stdout
    requests = bucket_server.access_log.entries(operation="objects.media", object="*.tar")
    assert len(requests) == 64
    assert max(request.bytes_out for request in requests) < min(entry.bytes for entry in manifest.shards)
    draw_grid(small_shards, manifest, tmp_path / "local.png")
    assert (tmp_path / "grid.png").read_bytes() == (tmp_path / "local.png").read_bytes()


def test_pieces_of_the_index_choose_the_same_pictures(
    small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = ShardManifest.load(small_shards)
    draw_grid(small_shards, manifest, tmp_path / "whole.png")
    for piece in (7, 64):
        monkeypatch.setattr("records.in_turn._PIECE_RECORDS", piece)
        draw_grid(small_shards, manifest, tmp_path / "pieces.png")
        assert (tmp_path / "pieces.png").read_bytes() == (tmp_path / "whole.png").read_bytes()
    with Image.open(tmp_path / "pieces.png") as image:
        shades = [image.resize((8, 1), box=(0, 20, 1024, 124)).getpixel((column, 0)) for column in range(3)]
    assert [int(np.argmax(shade)) for shade in shades if isinstance(shade, tuple)] == [2, 1, 0]


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_names_shard_and_sample_of_a_flipped_byte(shards: str) -> None:
    good = data("verify", shards, "--processes", 2)
    assert (good.exit_code, good.stdout) == (0, "every checksum is right\n"), good.stderr
    assert "files" in good.stderr
    manifest = ShardManifest.load(shards)
    record = open_samples(manifest, shards)[manifest.splits["train"].first + 5]
    name = manifest.shards[int(record["shard"])].name
    flip(storage.join(shards, name), int(record["offset"]) + 600)
    for extra in ([], ["--stored"]):
        bad = data("verify", shards, "--processes", 2, *extra)
        assert bad.exit_code == 1
        assert f"{name} has crc32c" in bad.stderr
        assert f"sample {bytes(record['key'].tobytes()).hex()}" in bad.stderr and ".png)" in bad.stderr
        assert bad.stderr.count("sample ") == 1


def test_verify_reads_and_forgives_a_byte_that_changed_on_its_way(shards: str, bucket_server: BucketServer) -> None:
    manifest = ShardManifest.load(shards)
    name = manifest.shards[0].name
    bucket_server.faults.set(Rule(operation="objects.media", object=f"*/{name}", corrupt_at=700, limit=1))
    assert verify(shards, processes=1, progress=silent) == []
    bucket_server.faults.set(Rule(operation="objects.media", object=f"*/{name}", corrupt_at=700))
    assert verify(shards, processes=1, progress=silent)[0].startswith(f"{name} has crc32c")
    bucket_server.access_log.clear()
    assert verify(shards, processes=1, progress=silent, stored=True) == []
    read = bucket_server.access_log.entries(operation="objects.media")
    assert {request.object.rpartition("/")[2] for request in read} == {"manifest.json"}


def test_verify_of_other_damage(shards: str, bucket_server: BucketServer) -> None:
    manifest = ShardManifest.load(shards)
    header, gone, part = (manifest.shards[0].name, manifest.shards[1].name, manifest.index_parts[1].name)
    # In the two empty blocks that end a tar.
    flip(storage.join(shards, header), manifest.shards[0].bytes - 3)
    storage.delete(storage.join(shards, gone))
    storage.replace(storage.join(shards, part), b"junk")
    seen = []
    found = "\n".join(verify(shards, processes=1, progress=lambda done, total: seen.append((done, total))))
    assert "s around them" in found and f"{gone} is missing" in found and f"{part} has 4 bytes" in found
    assert seen[-1] == (len(manifest.owned_files()), len(manifest.owned_files()))
    bucket_server.faults.set(Rule(operation="objects.get", object=f"*/{header}", status=403))
    done = data("verify", shards, "--processes", 1)
    assert done.exit_code == 2 and "no permission" in done.stderr


# --- adopt ------------------------------------------------------------------------------------------------------------


def test_foreign_shards_in_a_bucket_get_the_index_of_a_folder(
    bucket: BucketServer, pictures: Path, tmp_path: Path
) -> None:
    samples = pictures_of(pictures)
    local = write_webdataset(
        tmp_path / "wds", samples, lambda one: {"json": {"label": one[1], "class": one[2]}, "txt": "hello"}
    )
    uri = upload(local)
    before = {info.name: info.generation for info in storage.list_objects(uri)}
    done = data("adopt", uri)
    assert done.exit_code == 0, done.stderr
    assert "7 of 7 files" in done.stderr and "webdataset, 7 shards" in done.stdout
    mine = adopt(
        storage.normalise(local), patterns=DEFAULT_PATTERNS, class_names=None, verify="header", progress=silent
    )
    assert ShardManifest.load(uri) == mine
    after = {info.name: info.generation for info in storage.list_objects(uri)}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"manifest.json", INDEX_NAME}
    assert verify(uri, processes=1, progress=silent) == []
    again = data("adopt", uri)
    assert again.exit_code == 2 and "has a manifest.json already" in again.stderr


def test_foreign_tfrecords_in_a_bucket(bucket: BucketServer, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "tf").mkdir()
    samples = pictures_of(pictures)
    write_tfrecord(tmp_path / "tf" / "train.tfrecord", samples, packed=True, text=True)
    uri = upload(tmp_path / "tf")
    manifest = adopt(uri, patterns=DEFAULT_PATTERNS, class_names=None, verify="decode", progress=silent)
    assert manifest.classes == ["blue", "green", "red"] and manifest.splits["train"].samples == len(samples)
    assert draw_grid(uri, manifest, tmp_path / "grid.png") == len(samples)


def test_an_index_of_other_content_is_not_replaced(small_shards: str, bucket: BucketServer, tmp_path: Path) -> None:
    folder = copy_of(small_shards, tmp_path / "copy")
    for path in [*folder.glob("*.json"), *folder.glob("index-*.bin")]:
        path.unlink()
    (folder / INDEX_NAME).write_bytes(b"another program's")
    for uri in (upload(folder), storage.normalise(folder)):
        with pytest.raises(ConfigError, match=r"index\.bin of other content"):
            adopt(uri, patterns=DEFAULT_PATTERNS, class_names=None, verify="header", progress=silent)
        assert not storage.exists(storage.join(uri, "manifest.json"))
        storage.delete(storage.join(uri, INDEX_NAME))
        adopt(uri, patterns=DEFAULT_PATTERNS, class_names=None, verify="header", progress=silent)
        # An attempt that ended between index and manifest left the same index: it is taken.
        storage.delete(storage.join(uri, "manifest.json"))
        adopt(uri, patterns=DEFAULT_PATTERNS, class_names=None, verify="header", progress=silent)
    assert not list(folder.glob(f"{storage.TEMPORARY_PREFIX}*"))


def test_a_shard_that_is_replaced_meanwhile(bucket: BucketServer, pictures: Path, tmp_path: Path) -> None:
    folder = write_webdataset(tmp_path / "wds", pictures_of(pictures), lambda one: {"cls": one[1]})
    uri = upload(folder)

    def replace(done: int, total: int) -> None:
        if done == 1:
            for path in folder.iterdir():
                storage.replace(storage.join(uri, path.name), path.read_bytes())

    with pytest.raises(TryAgain, match="replaced while it was read"):
        adopt(uri, patterns=DEFAULT_PATTERNS, class_names=None, verify="header", progress=replace)
    assert not storage.exists(storage.join(uri, INDEX_NAME))
