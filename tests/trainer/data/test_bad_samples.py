"""A damaged sample in the middle of an epoch: an error that names it, or the next of its class."""

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import torch

from contracts import storage
from contracts.artifacts import CheckpointManifest, ShardManifest
from contracts.config import STAGE_SECTIONS, DataSection
from contracts.errors import DataError
from records.index import RECORD, DamagedSample, key_of, open_index, write_index
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.trainer.data.conftest import dataset, request, upload
from tests.trainer.test_task import events, last_checkpoint, logs
from trainer.data.evaluation import evaluation_batches
from trainer.data.loader import make_loader, read_slots
from trainer.data.order.resolve import FullOrder
from trainer.data.reader import ShardReader
from trainer.data.transforms import make_transforms
from trainer.drill.trace import ENVIRONMENT


def damage(folder: Path, place: int) -> None:
    """Flip a bit in the image of a training sample."""
    manifest = ShardManifest.load(storage.normalise(folder))
    record = open_index(folder / manifest.index.name)[place]
    shard = folder / manifest.shards[int(record["shard"])].name
    content = bytearray(shard.read_bytes())
    content[int(record["offset"]) + int(record["size"]) // 2] ^= 1
    shard.write_bytes(content)


def change_record(folder: Path, place: int, **fields: int) -> None:
    """Write other values into a record of the index, whose length stays."""
    path = folder / ShardManifest.load(storage.normalise(folder)).index.name
    records = np.array(open_index(path))
    for name, value in fields.items():
        records[place][name] = value
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - records.nbytes] + records.astype(RECORD).tobytes())


def spoil(folder: Path, place: int) -> None:
    """Cut a record of the index to half of its file, with the checksum of that half: as if sharded unseen."""
    manifest = ShardManifest.load(storage.normalise(folder))
    record = open_index(folder / manifest.index.name)[place]
    shard = (folder / manifest.shards[int(record["shard"])].name).read_bytes()
    start, size = int(record["offset"]), int(record["size"]) // 2
    change_record(folder, place, size=size, crc32c=google_crc32c.value(shard[start : start + size]))


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
    spoil(own_shards, 5)
    uri = storage.normalise(own_shards)
    with pytest.raises(DataError, match="cannot be decoded"):
        dataset(uri).read(request(5))
    (found,) = dataset(uri, replace_bad=True).read(request(5)).replaced
    assert "cannot be decoded" in found.reason


@pytest.mark.parametrize(("split", "num_workers"), [("validation", 0), ("test", 1)])
def test_a_bad_sample_of_another_split_ends_evaluation_whatever_is_set(
    own_shards: Path, split: str, num_workers: int
) -> None:
    """Nobody is told to set what is set already, and would not help."""
    uri = storage.normalise(own_shards)
    manifest = ShardManifest.load(uri)
    spoil(own_shards, manifest.splits[split].first)
    _, transform = make_transforms(DataSection(image_size=16, on_bad_sample="replace"), manifest)
    with pytest.raises(DamagedSample, match="cannot be decoded") as caught:
        list(evaluation_batches(uri, manifest, split, transform, 4, num_workers=num_workers))
    assert "others are never replaced" in caught.value.todo
    spoil(own_shards, 5)
    with pytest.raises(DamagedSample) as caught:
        dataset(uri).read(request(5))
    assert "set data.on_bad_sample=replace" in caught.value.todo


def test_no_other_sample_is_looked_for_where_a_bad_one_is_an_error(
    own_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a rare class the search reads the whole index."""
    damage(own_shards, 5)
    data = dataset(storage.normalise(own_shards))
    monkeypatch.setattr(ShardReader, "next_of_class", lambda self, place: pytest.fail("it was looked for"))
    with pytest.raises(DamagedSample, match="crc32c"):
        data.read(request(5))


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


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"offset": 2**63}, "no file has that offset"), ({"shard": 9999}, "in shard 9999 of")],
)
def test_an_index_that_points_nowhere_is_a_damaged_one(own_shards: Path, fields: dict[str, int], words: str) -> None:
    change_record(own_shards, 5, **fields)
    with pytest.raises(DataError, match=words):
        dataset(storage.normalise(own_shards), replace_bad=True).read(request(5))


def test_an_index_of_other_length_than_the_manifests_is_refused(own_shards: Path) -> None:
    path = own_shards / ShardManifest.load(storage.normalise(own_shards)).index.name
    write_index(path, np.array(open_index(path))[:-10])
    with pytest.raises(DataError, match="has 110 samples, the manifest 120"):
        dataset(storage.normalise(own_shards))


def train(root: Path, shards: Path, attempt: str, config: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    sections = {name: config[name] for name in STAGE_SECTIONS["train"] if name in config}
    options = ["--root", str(root), "--shards", str(shards), "--attempt", attempt]
    command = [sys.executable, "-m", "trainer.task", *options, "--config-json", json.dumps(sections)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_training_that_ended_at_a_bad_sample_goes_on_with_replace(
    own_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same position, the same folder, the same bits as with replace from the start."""
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "trace"))
    config = small_config(checkpoint={"every_steps": 1}, data={"num_workers": 0})
    samples = ShardManifest.load(storage.normalise(own_shards)).splits["train"].samples
    # In the fourth step, so that there are checkpoints to go on from.
    (bad,) = FullOrder(samples, seed=0).places(0, 3 * config["train"]["global_batch_size"], 1).tolist()
    damage(own_shards, bad)
    failed = train(tmp_path / "a", own_shards, "first", config)
    assert failed.returncode == 2 and "crc32c" in failed.stderr
    saved = last_checkpoint(tmp_path / "a").step
    assert 1 <= saved <= 3
    config["data"]["on_bad_sample"] = "replace"
    done = train(tmp_path / "a", own_shards, "second", config)
    assert done.returncode == 0, done.stderr
    # Beginning again at the start would give the same bits: that it went on is said, and seen in what it trained on.
    assert re.search(rf"continues from .* at step {saved}$", logs(tmp_path / "a", "second"), re.MULTILINE)
    (trace,) = (tmp_path / "trace").glob("*.second.rank0.jsonl")
    assert json.loads(trace.read_text().splitlines()[0])["step"] == saved
    whole = train(tmp_path / "b", own_shards, "only", config)
    one, other = (CheckpointManifest.load(run.stdout.splitlines()[-1]) for run in (done, whole))
    assert one.parameters_sha256 == other.parameters_sha256
    assert one.fingerprint == other.fingerprint
    assert f"sample {bad} is replaced by" in logs(tmp_path / "b", "only")
    progress = [event["message"] for event in events(tmp_path / "b", "only") if event["event"] == "progress"]
    assert "bad samples replaced: 1" in " ".join(progress)
