"""Samples of both index versions: one address space, the same labels, keys and images."""

from __future__ import annotations

import io
import pickle
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import DataError
from records.description import read_path
from records.index import DamagedSample, key_of, read_payload
from records.index_file import PartFiles
from records.samples import PartedIndex, SampleIndex, image_of, open_samples
from records.tfrecord import encode_example
from records.whole_sample import extract_image, path_in
from tests.two_versions import Shard, make_sample, plan, write_versions

FORMATS = ("webdataset", "tfrecord")


def part_path(folder: Path, manifest: ShardManifest, number: int) -> Path:
    return folder / manifest.index_parts[number].name


def open_both(v1: Path, v2: Path) -> tuple[ShardManifest, SampleIndex, ShardManifest, list[SampleIndex]]:
    """Return the samples of version 1, and those of version 2 by ranges and by open files."""
    first, second = (ShardManifest.load(storage.normalise(folder)) for folder in (v1, v2))
    files = PartedIndex(second, PartFiles(partial(part_path, v2, second)).read)
    return (
        first,
        open_samples(first, storage.normalise(v1)),
        second,
        [open_samples(second, storage.normalise(v2)), files, pickle.loads(pickle.dumps(files))],
    )


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("shard_format", FORMATS)
def test_both_versions_hold_the_same_samples(tmp_path: Path, shard_format: str, table: bool) -> None:
    v1, v2 = write_versions(tmp_path, shard_format=shard_format, table=table)
    first, expected, second, found = open_both(v1, v2)
    assert [len(index) for index in found] == [len(expected)] * 3
    paths = [sample.path for shard in plan() for sample in shard.samples]
    for index in found:
        for place in range(len(expected)):
            old, new = expected[place], index[place]
            assert (old["shard"], old["label"], key_of(old)) == (new["shard"], new["label"], key_of(new))
            shard = v2 / second.shards[int(new["shard"])].name
            stored = read_payload(shard, new)
            assert image_of(stored, second) == image_of(read_payload(v1 / shard.name, old), first)
            assert read_path(shard, new, whole_format=shard_format) == paths[place] == read_path(shard, old)
        everything = index[0 : len(index)]
        assert everything.tobytes() == b"".join(index[place].tobytes() for place in range(len(index)))
        assert index[7:40].tobytes() == everything[7:40].tobytes() and len(index[9:9]) == 0
        assert index.labels(7, 33).tolist() == everything["label"][7:40].tolist()
        assert index.labels(3, 0).tolist() == []
        with pytest.raises(IndexError):
            index[len(index)]


def test_shards_without_samples_take_no_place(tmp_path: Path) -> None:
    shards = [Shard("train", []), *plan(2), Shard("test", [])]
    shards.insert(2, Shard("train", []))
    _, expected, _, found = open_both(*write_versions(tmp_path, shards=shards))
    assert [int(found[0][place]["shard"]) for place in range(len(expected))] == expected[0 : len(expected)][
        "shard"
    ].tolist()


@pytest.mark.parametrize("shard_format", FORMATS)
def test_what_is_no_sample_is_damage(tmp_path: Path, shard_format: str) -> None:
    """Bytes that have the right checksum and yet hold no image: an error that names them, not one of Python's."""
    _, v2 = write_versions(tmp_path, shard_format=shard_format, shards=[Shard("train", [make_sample(1)])])
    manifest = ShardManifest.load(storage.normalise(v2))
    record = open_samples(manifest, storage.normalise(v2))[0]
    sample = read_payload(v2 / manifest.shards[0].name, record)
    assert extract_image(sample, shard_format) == make_sample(1).content
    image_at = sample.index(make_sample(1).content)
    for broken in (
        b"",
        sample[: image_at + 9],
        bytes(len(sample)),
        b"\xff" * 2000,
        sample[1:],
        sample[image_at + 1024 :],
    ):
        with pytest.raises(DamagedSample, match="cannot be taken apart"):
            extract_image(broken, shard_format)
    assert path_in(sample, shard_format) == make_sample(1).path
    for broken in (b"", sample[:image_at], b"\xff" * 2000):
        assert path_in(broken, shard_format) is None


def test_image_may_follow_other_members() -> None:
    """Whatever comes first, the image is found: in a tar by its extension, in an Example by its name."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in (("0a.cls", b"7"), ("0a.json", b'{"path": "a/b.png"}'), ("0a.png", b"image" * 200)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert extract_image(stream.getvalue(), "webdataset") == b"image" * 200
    assert path_in(stream.getvalue(), "webdataset") == "a/b.png"
    before, after = encode_example(make_sample(2))
    entries = (before + make_sample(2).content)[3:]
    turned = after + entries
    length = len(turned)
    example = b"\x0a" + bytes([length & 0x7F | 0x80, length >> 7]) + turned
    assert len(example) == len(before) + len(make_sample(2).content) + len(after)
    assert extract_image(example, "tfrecord") == make_sample(2).content
    assert path_in(example, "tfrecord") == make_sample(2).path


def test_damaged_parts_are_named(tmp_path: Path) -> None:
    _, v2 = write_versions(tmp_path)
    manifest = ShardManifest.load(storage.normalise(v2))
    index = PartedIndex(manifest, PartFiles(partial(part_path, v2, manifest)).read)
    assert index[0]["label"] == 0
    part = v2 / manifest.index_parts[0].name
    content = part.read_bytes()
    part.write_bytes(content[:100])
    with pytest.raises(DataError, match=r"index-00000\.bin was cut short"):
        index[3]
    # It is opened again: a whole one may have come meanwhile.
    part.unlink()
    part.write_bytes(content)
    assert index[3]["label"] == 0
    (v2 / manifest.index_parts[1].name).write_bytes(content)
    with pytest.raises(DataError, match=r"index-00001\.bin has"):
        index[manifest.index_parts[1].first]
    (v2 / manifest.index_parts[2].name).unlink()
    with pytest.raises(DataError, match=r"index-00002\.bin cannot be read"):
        index[manifest.index_parts[2].first]
    gap = manifest.model_copy(update={"index_parts": manifest.index_parts[1:]})
    with pytest.raises(DataError, match="the parts before it end at 0"):
        open_samples(gap, storage.normalise(v2))
    short = manifest.model_copy(update={"index_parts": manifest.index_parts[:-1]})
    with pytest.raises(DataError, match="the manifest 66"):
        open_samples(short, storage.normalise(v2))


def test_few_files_are_open(tmp_path: Path) -> None:
    shards = [Shard("train", [make_sample(number)]) for number in range(80)]
    _, v2 = write_versions(tmp_path, shards=shards)
    manifest = ShardManifest.load(storage.normalise(v2))
    files = PartFiles(partial(part_path, v2, manifest))
    index = PartedIndex(manifest, files.read)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert [int(index[place]["label"]) for place in range(80)] == [number % 3 for number in range(80)]
    assert len(manifest.index_parts) == 40
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 16
    assert np.array_equal(index.labels(0, 80), np.arange(80) % 3)
