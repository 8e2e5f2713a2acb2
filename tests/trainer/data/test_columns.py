"""Slots of rows: the same batches to the bit whichever way they are read, and what is wrong is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import ConfigError, UserError
from rehearsal.gcs import BucketServer
from tests.trainer.data.conftest import upload
from tests.trainer.tasks.tabular.tables import make_rows, table_task, write_shards, write_table
from trainer.data import columns
from trainer.data.evaluation import evaluation_batches
from trainer.data.loader import SlotDataset
from trainer.data.order.cursor import SlotRequest
from trainer.data.reader import ShardReader

TASKS = ("tabular_classification", "tabular_regression")


@pytest.fixture(scope="module", params=TASKS)
def task_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def shards(task_name: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    # Some shards, so that a slot is of several.
    return write_shards(tmp_path_factory.mktemp("rows") / "raw", task_name, count=300, min_shards=3)


def dataset(task: Any, uri: str, **options: Any) -> SlotDataset:
    manifest = ShardManifest.load(uri)
    return SlotDataset(ShardReader(uri, manifest, "train", fields=tuple(task.fields)), task, 0, **options)


def request_of(samples: list[int], slot: int = 0) -> SlotRequest:
    return SlotRequest(0, 0, slot, tuple(samples), len(samples), counts=True, last_of_step=True)


def bits(batch: dict[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    return {name: (one.dtype, tuple(one.shape), one.numpy().tobytes()) for name, one in batch.items()}


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "columns_collator", lambda task: None)


def slot_by_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST_HELD_BYTES", 0)


def count_calls(monkeypatch: pytest.MonkeyPatch, task: Any) -> list[int]:
    """Return a list that gets a number for each sample that is prepared alone."""
    calls: list[int] = []
    prepare = task.prepare
    monkeypatch.setattr(task, "prepare", lambda sample, mode: calls.append(1) or prepare(sample, mode))
    return calls


@pytest.mark.parametrize("way", [one_by_one, slot_by_slot, None])
def test_slots_are_the_same_bits_whichever_way_they_are_read(
    task_name: str, shards: str, monkeypatch: pytest.MonkeyPatch, way: Callable[[pytest.MonkeyPatch], None] | None
) -> None:
    task = table_task(task_name, ShardManifest.load(shards))
    monkeypatch.setattr(columns, "_ROWS", 64)
    samples = len(dataset(task, shards).reader)
    requests = [request_of([7, 3, 3, samples - 1, 0]), request_of(list(range(20, 60))), request_of([5])]
    expected = [
        task.collate([task.prepare(dataset(task, shards).reader.sample(at), None) for at in one.samples], None)
        for one in requests
    ]
    calls = count_calls(monkeypatch, task)
    if way is not None:
        way(monkeypatch)
    found = dataset(task, shards)
    for one, batch in zip(requests, expected, strict=True):
        assert bits(found.read(one).batch) == bits(batch)
    assert len(calls) == (46 if way is one_by_one else 0)


def test_evaluation_takes_columns(task_name: str, shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = ShardManifest.load(shards)
    task = table_task(task_name, manifest)
    calls = count_calls(monkeypatch, task)
    found = [bits(batch) for batch, _ in evaluation_batches(shards, manifest, "test", task, 16)]
    assert calls == []
    one_by_one(monkeypatch)
    assert found == [bits(batch) for batch, _ in evaluation_batches(shards, manifest, "test", task, 16)]
    assert len(calls) == manifest.splits["test"].samples


def test_rows_of_a_bucket_come_as_columns(
    task_name: str, shards: str, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = table_task(task_name, ShardManifest.load(shards))
    remote = upload(storage.local_path(shards))
    calls = count_calls(monkeypatch, task)
    wanted = request_of([9, 2, 80])
    read = dataset(task, remote)
    assert bits(read.read(wanted).batch) == bits(dataset(task, shards).read(wanted).batch) and calls == []
    # What was read once is not read again; what comes beside it is.
    taken: list[list[int]] = []
    columns_of = read.reader.columns
    monkeypatch.setattr(read.reader, "columns", lambda places: taken.append(list(places)) or columns_of(places))
    for samples, missing in (([2, 9, 2], []), ([80, 33, 4, 33], [[4, 33]]), ([33, 9, 4], [])):
        again = read.read(request_of(samples))
        assert bits(again.batch) == bits(dataset(task, shards).read(request_of(samples)).batch)
        assert taken == missing
        taken.clear()


def damage(uri: str, folder: Path, sample: int) -> str:
    """Return a copy of shards in which a byte of a sample of the training split is another."""
    manifest = ShardManifest.load(uri)
    for path in storage.local_path(uri).iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    record = ShardReader(uri, manifest, "train").index[manifest.splits["train"].first + sample]
    shard = folder / manifest.shards[int(record["shard"])].name
    content = bytearray(shard.read_bytes())
    content[int(record["offset"]) + int(record["size"]) // 2] ^= 1
    shard.write_bytes(content)
    return storage.normalise(folder)


def test_a_damaged_row_is_named_and_replaced_as_ever(task_name: str, shards: str, tmp_path: Path) -> None:
    task = table_task(task_name, ShardManifest.load(shards))
    broken = damage(shards, tmp_path, 4)
    assert dataset(task, broken).read(request_of([1, 2])).replaced == ()
    found = dataset(task, broken)[request_of([1, 4])]
    assert isinstance(found, UserError) and "crc32c" in found.given and "sample" in found.given
    if task_name == "tabular_classification":
        (replaced,) = dataset(task, broken, replace_bad=True).read(request_of([1, 4])).replaced
        assert replaced.sample == 4


def test_a_damaged_row_of_a_bucket_leaves_what_is_held(
    task_name: str, shards: str, tmp_path: Path, bucket_server: BucketServer
) -> None:
    task = table_task(task_name, ShardManifest.load(shards))
    read = dataset(task, upload(storage.local_path(damage(shards, tmp_path, 4))))
    expected = read.read(request_of([1, 2]))
    assert isinstance(read[request_of([1, 4])], UserError)
    assert read._held is not None and read._held.take([2, 1], request_of([2, 1])) is not None
    assert bits(read.read(request_of([1, 2])).batch) == bits(expected.batch)


def test_a_target_that_is_missing_in_validation_is_named(tmp_path: Path) -> None:
    rows = [[*row, "test" if number % 3 == 0 else "train"] for number, row in enumerate(make_rows(60))]
    for row in rows:
        if row[-1] == "test" and row[4] > 5000:
            row[4] = None
    source = write_table(tmp_path / "split.csv", rows, more=["split"])
    label = {"column": "price", "kind": "number", "missing": "keep"}
    uri = write_shards(tmp_path / "shards", "tabular_regression", source=str(source), label=label)
    manifest = ShardManifest.load(uri)
    task = table_task("tabular_regression", manifest)
    with pytest.raises(ConfigError, match=r"'label' \(column 'price'\) is missing: shard .*, sample [0-9a-f]{32}"):
        list(evaluation_batches(uri, manifest, "test", task, 16))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda columns: {"numbers": torch.zeros(1)}, r"returned numbers as a tensor \[1\] for 2 samples"),
        (lambda columns: {"numbers": 1}, "returned numbers as int for 2 samples"),
        (lambda columns: [1], "returned a list"),
        (lambda columns: columns["none"], "failed on 2 samples: KeyError"),
    ],
)
def test_a_task_that_makes_no_batch_of_columns_is_refused(
    task_name: str, shards: str, monkeypatch: pytest.MonkeyPatch, make: Any, said: str
) -> None:
    task = table_task(task_name, ShardManifest.load(shards))
    monkeypatch.setattr(task, "collate_columns", make)
    reader = dataset(task, shards).reader
    with pytest.raises(ConfigError, match=f"the task's collate_columns {said}"):
        columns.collate_columns(task, reader, [0, 1])


def test_rows_without_a_place_are_refused(task_name: str, shards: str) -> None:
    task = table_task(task_name, ShardManifest.load(shards))
    reader = dataset(task, shards).reader
    assert reader.columns([0, len(reader)]) is None and reader.columns([-1]) is None and reader.columns([]) is None


def test_a_split_is_made_into_arrays_a_few_bytes_at_a_time(
    task_name: str, shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows may be long: what is read at a time, and what is thrown away for being too much, is counted in bytes."""
    whole = bits(read_batch(task_name, shards))
    read: list[int] = []
    take = ShardReader.columns

    def columns_of(self: ShardReader, places: Any) -> Any:
        read.append(int(self.sizes(places).sum()))
        return take(self, places)

    monkeypatch.setattr(ShardReader, "columns", columns_of)
    monkeypatch.setattr(columns, "PART_BYTES", 4096)
    assert bits(read_batch(task_name, shards)) == whole
    assert len(read) > 5 and max(read) <= 4096
    monkeypatch.setattr(columns, "MOST_HELD_BYTES", 0)
    read.clear()
    assert bits(read_batch(task_name, shards)) == whole and len(read) == 2, "one part, and the slot"


def read_batch(task_name: str, shards: str) -> dict[str, torch.Tensor]:
    task = table_task(task_name, ShardManifest.load(shards))
    found: dict[str, torch.Tensor] = dataset(task, shards).read(request_of([3, 1, 0, 7])).batch
    return found
