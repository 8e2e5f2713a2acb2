"""A damaged sample in the middle of an epoch: an error that names it, or the next of its class."""

import os
from pathlib import Path

import google_crc32c
import pytest
import torch

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from contracts.config import DataSection
from contracts.errors import DataError
from records.fields import image_of
from records.index import DamagedSample, SampleIndex, key_of, pack_index, read_index
from tests.conftest import small_config
from tests.trainer.data.conftest import dataset, evaluation_batches, request
from tests.trainer.one_rank import logs, train
from tests.trainer.tasks.for_tests import image_task
from tests.trainer.test_task import events
from trainer.parallel.process_group import Rank


def find(folder: Path, place: int) -> tuple[Path, int, int, str]:
    """Return the shard of a sample, where the whole sample begins and ends in it, and the sample's key."""
    uri = storage.normalise(folder)
    manifest = ShardManifest.load(uri)
    row = SampleIndex(manifest, uri)[place]
    start = int(row["offset"])
    shard = folder / manifest.shards[manifest.shards.locate(place)[0]].name
    return shard, start, start + int(row["size"]), key_of(row)


def image_in(folder: Path, place: int) -> int:
    """Return where the middle of the image of a sample is in its shard."""
    shard, start, end, _ = find(folder, place)
    content = shard.read_bytes()
    image = image_of(content[start:end], ShardManifest.load(storage.normalise(folder)))
    return content.index(image, start, end) + len(image) // 2


def damage(folder: Path, place: int) -> None:
    """Flip a bit in the image of a training sample."""
    shard, middle = find(folder, place)[0], image_in(folder, place)
    content = bytearray(shard.read_bytes())
    content[middle] ^= 1
    shard.write_bytes(content)


def change_row(folder: Path, place: int, **fields: int) -> None:
    """Write other values into a row of the index, with the checksum of that in the manifest."""
    uri = storage.normalise(folder)
    manifest = ShardManifest.load(uri)
    shard, row = manifest.shards.locate(place)
    rows = read_index(uri, manifest.shards[shard]).copy()
    for name, value in fields.items():
        rows[row][name] = value
    content = pack_index(rows)
    (folder / manifest.shards[shard].index.name).write_bytes(content)
    crcs = list(manifest.shards.index_crc32c)
    crcs[shard] = storage.crc32c(content)
    shards = manifest.shards.model_copy(update={"index_crc32c": crcs})
    (folder / MANIFEST_NAME).write_bytes(manifest.model_copy(update={"shards": shards}).to_json())


def spoil(folder: Path, place: int) -> None:
    """Fill half of an image with zeros, with the checksum of that in the index: as if sharded unseen."""
    (shard, start, end, _), middle = find(folder, place), image_in(folder, place)
    content = bytearray(shard.read_bytes())
    image = image_of(bytes(content[start:end]), ShardManifest.load(storage.normalise(folder)))
    size = len(image) - len(image) // 2
    content[middle : middle + size] = bytes(size)
    shard.write_bytes(content)
    change_row(folder, place, crc32c=google_crc32c.value(bytes(content[start:end])))


def test_the_next_of_the_class_steps_in_and_wraps(own_shards: Path) -> None:
    uri = storage.normalise(own_shards)
    reader = dataset(uri).reader
    labels = [reader.sample(place)["label"] for place in range(len(reader))]
    first, second, *_, last = [place for place, label in enumerate(labels) if label == 1]
    damage(own_shards, last)
    damage(own_shards, first)
    batch = dataset(uri, replace_bad=True).read(request(first, last, second))
    assert [(one.sample, one.by) for one in batch.replaced] == [(first, second), (last, second)]
    assert "crc32c" in batch.replaced[0].reason and batch.replaced[1].reason.count("crc32c") == 2
    assert batch.batch["label"].tolist() == [1, 1, 1]
    images = batch.batch["images"]
    assert torch.equal(images[0], images[2]) and torch.equal(images[1], images[2])


def test_a_bad_sample_of_another_split_ends_evaluation_whatever_is_set(own_shards: Path) -> None:
    """Nobody is told to set what is set already, and would not help."""
    uri = storage.normalise(own_shards)
    spoil(own_shards, ShardManifest.load(uri).splits["test"].first)
    manifest = ShardManifest.load(uri)
    task = image_task(manifest, DataSection(image_size=16, on_bad_sample="replace"))
    with pytest.raises(DamagedSample, match="cannot be decoded") as caught:
        list(evaluation_batches(uri, manifest, "test", task, 4))
    assert "others are never replaced" in caught.value.todo
    spoil(own_shards, 5)
    with pytest.raises(DamagedSample, match="cannot be decoded") as caught:
        dataset(uri).read(request(5))
    assert "set data.on_bad_sample=replace" in caught.value.todo
    (found,) = dataset(uri, replace_bad=True).read(request(5)).replaced
    assert "cannot be decoded" in found.reason


@pytest.mark.parametrize(
    ("damaged", "words"),
    [("flip", "has crc32c"), ("truncate", "bytes too early"), ("delete", "cannot be read"), ("row", "has that offset")],
)
def test_a_bad_shard_is_named_with_its_sample(own_shards: Path, damaged: str, words: str) -> None:
    path, start, _, key = find(own_shards, 5)
    if damaged == "flip":
        damage(own_shards, 5)
    elif damaged == "truncate":
        os.truncate(path, start + 10)
    elif damaged == "delete":
        path.unlink()
    else:
        change_row(own_shards, 5, offset=2**63)
    # What is no single sample's fault is never replaced.
    replace_bad = damaged in ("delete", "row")
    with pytest.raises(DataError, match=rf"shard {path.name}, sample {key}.*{words}"):
        dataset(storage.normalise(own_shards), replace_bad=replace_bad).read(request(5))


@pytest.mark.parametrize("harm", ["label", "gone"])
def test_a_damaged_index_is_refused_by_name(own_shards: Path, harm: str) -> None:
    """Samples have checksums in the index; labels have that of the index alone."""
    path = own_shards / ShardManifest.load(storage.normalise(own_shards)).shards[0].index.name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    if harm == "gone":
        path.unlink()
    with pytest.raises(DataError, match=rf"the index {path.name} (has another crc32c|cannot be read)"):
        dataset(storage.normalise(own_shards)).read(request(0))


def test_training_with_replace_says_what_it_replaced(rank: Rank, own_shards: Path, tmp_path: Path) -> None:
    damage(own_shards, 5)
    config = small_config(train={"epochs": 1}, data={"on_bad_sample": "replace"})
    train(rank, tmp_path, storage.normalise(own_shards), config)
    assert "sample 5 is replaced by" in logs(tmp_path)
    progress = [event["message"] for event in events(tmp_path, "a") if event["event"] == "progress"]
    assert "bad samples replaced: 1" in " ".join(progress)
