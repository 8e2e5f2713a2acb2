"""A damaged sample in the middle of an epoch: an error that names it, or the next of its class."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts import storage
from contracts.artifacts import CheckpointManifest, ShardManifest
from contracts.config import STAGE_SECTIONS
from contracts.errors import DataError
from contracts.events import EVENTS_NAME, EventReader
from records.index import RECORD, DamagedSample, key_of, open_index
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.trainer.data.conftest import dataset, request, upload
from trainer.data.loader import make_loader, read_slots


def damage(folder: Path, place: int) -> None:
    """Flip a bit in the image of a training sample."""
    manifest = ShardManifest.load(storage.normalise(folder))
    record = open_index(folder / manifest.index.name)[place]
    shard = folder / manifest.shards[int(record["shard"])].name
    content = bytearray(shard.read_bytes())
    content[int(record["offset"]) + int(record["size"]) // 2] ^= 1
    shard.write_bytes(content)


def test_the_next_of_the_class_steps_in_and_wraps(own_shards: Path) -> None:
    uri = storage.normalise(own_shards)
    reader = dataset(uri).reader
    labels = [reader.read_bytes(place)[1] for place in range(len(reader))]
    for place, label in enumerate(labels):
        behind = [*range(place + 1, len(labels)), *range(place)]
        assert reader.next_of_class(place) == next(other for other in behind if labels[other] == label)
    last = max(place for place, label in enumerate(labels) if label == 1)
    first, second = [place for place, label in enumerate(labels) if label == 1][:2]
    damage(own_shards, last)
    damage(own_shards, first)
    data = dataset(uri, replace_bad=True)
    batch = data.read(request(first, last, second))
    assert [(one.sample, one.by) for one in batch.replaced] == [(first, second), (last, second)]
    assert "crc32c" in batch.replaced[0].reason and batch.replaced[1].reason.count("crc32c") == 2
    assert batch.labels.tolist() == [1, 1, 1]
    assert torch.equal(batch.images[0], batch.images[2]) and torch.equal(batch.images[1], batch.images[2])
    with pytest.raises(DamagedSample, match="crc32c"):
        dataset(uri).read(request(first))


def test_a_replacement_does_not_depend_on_processes_or_neighbours(own_shards: Path) -> None:
    for place in (3, 4, 11):
        damage(own_shards, place)
    data = dataset(storage.normalise(own_shards), replace_bad=True, crop="random_resized", horizontal_flip=True)
    alone = {sample: data.read(request(sample)) for sample in range(12)}
    assert [sample for sample in alone if alone[sample].replaced] == [3, 4, 11]
    requests = [request(*range(start, start + 3)) for start in (9, 0, 6, 3)]
    for num_workers in (0, 2):
        loader = make_loader(data, requests, num_workers=num_workers, prefetch_factor=2, pin_memory=False)
        for batch in read_slots(loader):
            for row, sample in enumerate(batch.request.samples):
                assert torch.equal(batch.images[row], alone[sample].images[0])


def test_a_file_that_is_no_image_though_its_checksum_is_right(own_shards: Path) -> None:
    manifest = ShardManifest.load(storage.normalise(own_shards))
    index = own_shards / manifest.index.name
    whole = np.array(open_index(index))
    # The record now holds half of the file, with the checksum of that half: what was sharded unseen looks like this.
    import google_crc32c

    record = whole[5]
    record["size"] //= 2
    shard = (own_shards / manifest.shards[int(record["shard"])].name).read_bytes()
    start = int(record["offset"])
    record["crc32c"] = google_crc32c.value(shard[start : start + int(record["size"])])
    content = index.read_bytes()
    index.write_bytes(content[: len(content) - whole.nbytes] + whole.astype(RECORD).tobytes())
    uri = storage.normalise(own_shards)
    with pytest.raises(DataError, match="cannot be decoded"):
        dataset(uri).read(request(5))
    (found,) = dataset(uri, replace_bad=True).read(request(5)).replaced
    assert "cannot be decoded" in found.reason


def test_a_class_without_a_good_sample_is_an_error(own_shards: Path) -> None:
    reader = dataset(storage.normalise(own_shards)).reader
    for place in range(len(reader)):
        if reader.read_bytes(place)[1] == 0:
            damage(own_shards, place)
            first = place
    with pytest.raises(DamagedSample):
        dataset(storage.normalise(own_shards), replace_bad=True).read(request(first))


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_bucket_replaces_as_the_disk_does(own_shards: Path, bucket_server: BucketServer) -> None:
    damage(own_shards, 4)
    bucket = upload(own_shards)
    fields = {"range_bytes": 16384, "canonical_streams": 2}
    for uri in (storage.normalise(own_shards), bucket):
        (found,) = dataset(uri, replace_bad=True, **fields).read(request(3, 4, 5)).replaced
        assert found.sample == 4 and "has crc32c" in found.reason
        with pytest.raises(DamagedSample, match="has crc32c"):
            dataset(uri, **fields).read(request(3, 4, 5))
    gc.collect()


def test_a_shard_that_is_gone_is_not_replaced(own_shards: Path) -> None:
    manifest = ShardManifest.load(storage.normalise(own_shards))
    (own_shards / manifest.shards[0].name).unlink()
    with pytest.raises(DataError, match=r"cannot be read"):
        dataset(storage.normalise(own_shards), replace_bad=True).read(request(0))


@pytest.mark.parametrize("damaged", ["flip", "truncate", "delete"])
def test_a_bad_shard_is_named_with_its_sample(own_shards: Path, damaged: str) -> None:
    uri = storage.normalise(own_shards)
    manifest = ShardManifest.load(uri)
    record = open_index(own_shards / manifest.index.name)[5]
    path = own_shards / manifest.shards[int(record["shard"])].name
    if damaged == "flip":
        damage(own_shards, 5)
    elif damaged == "truncate":
        os.truncate(path, int(record["offset"]) + 10)
    else:
        path.unlink()
    words = {"flip": "has crc32c", "truncate": "bytes too early", "delete": "cannot be read"}[damaged]
    with pytest.raises(DataError, match=rf"shard {path.name}, sample {key_of(record)}.*{words}"):
        dataset(uri).read(request(5))


def train(root: Path, shards: Path, attempt: str, config: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    sections = {name: config[name] for name in STAGE_SECTIONS["train"] if name in config}
    options = ["--root", str(root), "--shards", str(shards), "--attempt", attempt]
    command = [sys.executable, "-m", "trainer.task", *options, "--config-json", json.dumps(sections)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_training_that_ended_at_a_bad_sample_goes_on_with_replace(own_shards: Path, tmp_path: Path) -> None:
    """The same position, the same folder, the same bits as with replace from the start."""
    damage(own_shards, 7)
    config = small_config(checkpoint={"every_steps": 1}, data={"num_workers": 0})
    failed = train(tmp_path / "a", own_shards, "first", config)
    assert failed.returncode == 2 and "crc32c" in failed.stderr
    config["data"]["on_bad_sample"] = "replace"
    done = train(tmp_path / "a", own_shards, "second", config)
    assert done.returncode == 0, done.stderr
    whole = train(tmp_path / "b", own_shards, "only", config)
    one, other = (CheckpointManifest.load(run.stdout.splitlines()[-1]) for run in (done, whole))
    assert one.parameters_sha256 == other.parameters_sha256
    assert one.fingerprint == other.fingerprint
    events = list(EventReader(tmp_path / "b" / "attempts" / "only" / EVENTS_NAME).poll())
    logs = [event["message"] for event in events if event["event"] == "log"]
    assert sum("sample 7 is replaced by" in message for message in logs) >= 1
    progress = " ".join(event["message"] for event in events if event["event"] == "progress")
    assert "bad samples replaced: 1" in progress
