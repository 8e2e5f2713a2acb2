"""What `shardline clean` finds, keeps and deletes: real documents in a folder and in a bucket."""

import gc
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts import storage
from contracts.artifacts import CheckpointManifest, Contract, ShardManifest, Shards
from contracts.errors import DataError, TryAgain
from contracts.output import Lock
from pipelines import clean
from pipelines.clean import delete, find_leftovers
from pipelines.cli import app
from rehearsal.gcs import BucketServer
from tests.inspection.lines import plant

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NEW, OLD = "20261122-070000-0001", "20261121-070000-0001"
ZERO, ONE, TWO = "0" * 16, "1" * 16, "2" * 16


def write(line: Path, stage: str, document: Contract, **update: object) -> str:
    """Write an output of one manifest; return its URI."""
    document = document.model_copy(update=update)
    folder = line / stage / document.fingerprint
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_bytes(document.to_json())
    return storage.normalise(folder)


@pytest.fixture
def line(tmp_path: Path, small_shards: str) -> Path:
    """A line of two runs: the newer one's shards are an increment on ZERO, the older one's are ONE."""
    folder = tmp_path / "line"
    planted = plant(folder, small_shards, run_id=NEW)
    shards = ShardManifest.load(planted.uris["shard"])
    write(folder, "shard", shards, fingerprint=ZERO)
    write(folder, "shard", shards, fingerprint=ONE)
    first = shards.shards[0].model_copy(update={"folder": ZERO})
    write(folder, "shard", shards, shards=Shards.of([first, *list(shards.shards)[1:]]))
    trained = CheckpointManifest.load(planted.uris["train"])
    write(folder, "train", trained, fingerprint=ONE, shards_fingerprint=ONE, parameters_sha256="a" * 64)
    run = folder / "runs" / OLD
    run.mkdir()
    (run / "run-start.json").write_text(json.dumps({"id": OLD, "started_at": "2026-11-01T00:00:00Z"}))
    record = json.loads((planted.folder / "run.json").read_bytes())
    old = {stage: storage.normalise(folder / stage / ONE) for stage in ("shard", "train")}
    stages = [{**stage, "uri": old[stage["name"]]} for stage in record["stages"] if stage["name"] in old]
    record |= {"id": OLD, "started_at": "2026-11-01T00:00:00Z", "stages": stages}
    (run / "run.json").write_text(json.dumps(record))
    for stage in old:
        tell(folder, OLD, stage)
        os.utime(folder / stage / ONE / "manifest.json", (0, 0))
    return folder


def tell(line: Path, run: str, stage: str) -> None:
    """Write the events of an attempt that has found the output ONE."""
    attempt = line / stage / "attempts" / run
    attempt.mkdir(parents=True)
    event = {"event": "reused", "time": 0.0, "uri": storage.normalise(line / stage / ONE)}
    (attempt / "events.jsonl").write_text(json.dumps(event) + "\n")


@pytest.fixture
def bucket_line(bucket_server: BucketServer, line: Path) -> Iterator[str]:
    """The same in a bucket, which the runs know by the folder's name: a line that was moved."""
    for path in sorted(line.rglob("*")):
        if path.is_file():
            storage.publish(f"gs://bucket-1/line/{path.relative_to(line).as_posix()}", path.read_bytes())
    yield "gs://bucket-1/line"
    gc.collect()


def names(uri: str | Path, keep_last: int = 1) -> list[str]:
    return [leftover.name for leftover in find_leftovers(storage.normalise(uri), keep_last)]


def age(*folders: Path) -> None:
    """Make what is in folders older than any run."""
    for folder in folders:
        for path in folder.rglob("*"):
            os.utime(path, (0, 0))


def all_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_all_runs_need_is_kept(line: Path) -> None:
    assert names(line, 2) == []
    (line / "shard" / TWO).mkdir()
    shutil.copy(line / "shard" / ONE / "manifest.json", line / "shard" / TWO)
    assert names(line, 2) == [], "written to since the kept runs began"
    age(line / "shard" / TWO)
    assert names(line, 2) == [f"shard/{TWO}"]


def test_what_only_an_older_run_needs_goes_with_it(line: Path) -> None:
    before = all_files(line)
    found = find_leftovers(storage.normalise(line), 1)
    assert [leftover.name for leftover in found] == [f"shard/{ONE}", f"train/{ONE}"]
    assert all(
        leftover.num_bytes == sum(p.stat().st_size for p in (line / leftover.name).iterdir()) for leftover in found
    )
    assert delete(storage.normalise(line), found, 1) == []
    assert set(before) - set(all_files(line)) == {f"shard/{ONE}/manifest.json", f"train/{ONE}/manifest.json"}


def test_the_newest_training_stays_with_its_shards(line: Path) -> None:
    trained = CheckpointManifest.load(storage.normalise(line / "train" / ONE))
    write(line, "train", trained, finished_at="2099-01-01T00:00:00Z")
    age(line / "train" / ONE)
    assert names(line) == []


def test_the_newest_run_that_succeeded_is_kept_beside_newer_ones_that_failed(line: Path) -> None:
    path = line / "runs" / NEW / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "failed"}))
    assert names(line) == []


def test_a_dead_run_holds_nothing_and_one_that_goes_on_does(line: Path) -> None:
    (line / "runs" / OLD / "run.json").unlink()
    assert names(line) == [f"shard/{ONE}", f"train/{ONE}"]
    lock = Lock(storage.normalise(line / "runs" / OLD))
    try:
        assert names(line) == []
    finally:
        lock.release()


def test_what_a_process_or_a_run_needs_by_now_stays(line: Path) -> None:
    uri = storage.normalise(line)
    found = find_leftovers(uri, 1)
    locks = [Lock(leftover.uri) for leftover in found]
    try:
        assert delete(uri, found, 1) == found
    finally:
        for lock in locks:
            lock.release()
    started = line / "runs" / "20261123-070000-0001"
    started.mkdir()
    (started / "run-start.json").write_text(json.dumps({"id": started.name, "started_at": "2026-11-23T00:00:00Z"}))
    tell(line, started.name, "train")
    assert delete(uri, found, 1) == found, "the training needs its shards"


def test_an_increment_that_is_being_written_needs_its_parent(line: Path) -> None:
    work = line / "shard" / TWO / ".work"
    work.mkdir(parents=True)
    (work / "plan-0.json").write_text(json.dumps({"append": {"parent": ONE}}))
    assert names(line) == [f"train/{ONE}"]


def test_nothing_but_fingerprint_folders_of_stages_is_touched(line: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "manifest.json").write_text("{}")
    (line / "shard" / "mine").mkdir()
    (line / "shard" / "mine" / "manifest.json").write_text("{}")
    (line / "shard" / ("a" * 16)).symlink_to(elsewhere)
    (line / "other" / TWO).mkdir(parents=True)
    (line / "other" / TWO / "manifest.json").write_text("{}")
    (line / "shard" / ("b" * 16)).write_text("a file")
    age(elsewhere, line)
    assert names(line, 2) == []


def test_what_is_needed_and_cannot_be_read_stops_it(line: Path) -> None:
    (line / "shard" / ONE / "manifest.json").write_text("{")
    with pytest.raises(DataError):
        names(line, 2)
    # An output that was deleted by hand is none that could be needed.
    shutil.rmtree(line / "shard" / ONE)
    assert names(line, 2) == []
    (line / "runs" / OLD / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json"):
        names(line)


def test_a_line_in_a_bucket(bucket_server: BucketServer, bucket_line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.publish(f"{bucket_line}/train/{ONE}/checkpoints/a/model.safetensors", b"x")
    assert names(bucket_line) == [], "written to a moment ago"
    for run, began in ((NEW, "2099-01-02T00:00:00Z"), (OLD, "2099-01-01T00:00:00Z")):
        for document in ("run.json", "run-start.json"):
            uri = f"{bucket_line}/runs/{run}/{document}"
            if storage.exists(uri):
                storage.replace(uri, json.dumps({**json.loads(storage.read_bytes(uri)), "started_at": began}).encode())
    storage.delete(f"{bucket_line}/runs/{OLD}/run.json")
    with pytest.raises(TryAgain, match=f"run {OLD} of .* has no record"):
        names(bucket_line)
    monkeypatch.setattr(clean, "_WORKING_S", -1e12)
    found = find_leftovers(bucket_line, 1)
    assert [leftover.name for leftover in found] == [f"shard/{ONE}", f"train/{ONE}"], "long dead"
    bucket_server.access_log.clear()
    assert delete(bucket_line, found, 1) == []
    gone = [entry.object for entry in bucket_server.access_log.entries(method="DELETE")]
    assert [name.rpartition("/")[2] for name in gone] == ["manifest.json", "manifest.json", "model.safetensors"]
    assert names(bucket_line) == [] and storage.exists(f"{bucket_line}/shard/{ZERO}/manifest.json")


def test_the_command_lists_and_deletes_only_when_told_to(line: Path) -> None:
    before = all_files(line)
    answer = CliRunner().invoke(app, ["clean", str(line), "--keep-last", "1", "--dry-run"])
    assert answer.exit_code == 0 and f"train/{ONE}" in answer.stdout and "2 folders, " in answer.stdout
    refused = CliRunner().invoke(app, ["clean", str(line), "--keep-last", "1"])
    assert refused.exit_code == 2 and "nothing was changed" in refused.stderr and "--yes" in refused.stderr
    assert all_files(line) == before
    done = CliRunner().invoke(app, ["clean", str(line), "--keep-last", "1", "--yes"])
    assert done.exit_code == 0 and len(all_files(line)) == len(before) - 2
    again = CliRunner().invoke(app, ["clean", str(line), "--keep-last", "1"])
    assert again.exit_code == 0 and "0 folders, 0 bytes" in again.stdout
