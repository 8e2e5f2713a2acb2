"""What `shardline clean` finds, keeps and deletes: real documents in a folder and in a bucket."""

import gc
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts import storage
from contracts.artifacts import CheckpointManifest, Contract, ShardManifest
from contracts.errors import ConfigError, DataError
from contracts.output import Lock
from contracts.registration import Registration, leave_registration
from contracts.result import leave_result
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
    write(folder, "shard", shards, shards=[first, *shards.shards[1:]])
    trained = CheckpointManifest.load(planted.uris["train"])
    write(folder, "train", trained, fingerprint=ONE, shards_fingerprint=ONE, parameters_sha256="a" * 64)
    run = folder / "runs" / OLD
    run.mkdir()
    (run / "run-start.json").write_text(json.dumps({"id": OLD, "started_at": "2026-11-01T00:00:00Z"}))
    record = json.loads((planted.folder / "run.json").read_bytes())
    record |= {"id": OLD, "started_at": "2026-11-01T00:00:00Z", "stages": []}
    (run / "run.json").write_text(json.dumps(record))
    for stage in ("shard", "train"):
        leave_result(storage.normalise(folder), OLD, stage, storage.normalise(folder / stage / ONE), reused=False)
    return folder


@pytest.fixture
def bucket_line(bucket_server: BucketServer, line: Path) -> Iterator[str]:
    """The same in a bucket, which the runs know by the folder's name: a line that was moved."""
    for path in sorted(line.rglob("*")):
        if path.is_file():
            storage.publish(f"gs://bucket-1/line/{path.relative_to(line).as_posix()}", path.read_bytes())
    yield "gs://bucket-1/line"
    gc.collect()


def names(uri: str | Path, **options: object) -> list[str]:
    return [leftover.name for leftover in find_leftovers(storage.normalise(uri), **options)]  # type: ignore[arg-type]


def find_newest(line: Path) -> Path:
    """Return the folder of the newer run's shards."""
    return next(p for p in (line / "shard").iterdir() if len(p.name) == 16 and p.name not in (ZERO, ONE, TWO))


def all_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_all_runs_need_is_kept(line: Path) -> None:
    assert names(line) == []
    (line / "shard" / TWO).mkdir()
    shutil.copy(line / "shard" / ONE / "manifest.json", line / "shard" / TWO)
    assert names(line) == [f"shard/{TWO}"]


def test_what_only_an_older_run_needs_goes_with_it(line: Path) -> None:
    before = all_files(line)
    found = find_leftovers(storage.normalise(line), keep_last=1)
    assert [leftover.name for leftover in found] == [f"shard/{ONE}", f"train/{ONE}"]
    assert all(
        leftover.num_bytes == sum(p.stat().st_size for p in (line / leftover.name).iterdir()) for leftover in found
    )
    assert names(line, keep_last=1, keep=[OLD]) == [] == names(line, keep_last=2)
    assert delete(storage.normalise(line), found, keep=[], keep_last=1) == []
    assert set(before) - set(all_files(line)) == {f"shard/{ONE}/manifest.json", f"train/{ONE}/manifest.json"}


def test_only_the_older_run_is_kept_by_name(line: Path) -> None:
    """The newest training stays all the same: it is what `model.weights: previous` means, and its shards with it."""
    newest = find_newest(line)
    profile = "0123456789abcdef"
    assert names(line, keep=[OLD]) == [f"profile/{profile}", f"export/{'e' * 16}"]
    trained = CheckpointManifest.load(storage.normalise(line / "train" / ONE))
    write(line, "train", trained, finished_at="2099-01-01T00:00:00Z")
    assert f"shard/{newest.name}" in names(line, keep=[OLD])
    assert f"shard/{ZERO}" in names(line, keep=[OLD])
    # An export that was uploaded outlives its run, with what it was made of.
    leave_result(storage.normalise(line), NEW, "export", storage.normalise(line / "export" / ("e" * 16)), reused=False)
    leave_registration(storage.normalise(line), NEW, Registration(verdict="upload", unproven=[]))
    assert names(line, keep=[OLD]) == [f"profile/{profile}"]


def test_copies_of_own_code_go_with_the_runs_and_outputs_that_name_them(line: Path) -> None:
    kept, made, unneeded = "a" * 64, "b" * 64, "c" * 64
    for sha256 in (kept, made, unneeded):
        folder = line / "code" / sha256
        (folder / "files").mkdir(parents=True)
        (folder / "files" / "net.py").write_text("12345")
        (folder / "manifest.json").write_text("{}")
    record = line / "runs" / OLD / "run.json"
    values = json.loads(record.read_text())
    record.write_text(json.dumps({**values, "config": {**values["config"], "code": {"sha256": kept}}}))
    trained = next(path for path in (line / "train").iterdir() if len(path.name) == 16 and path.name != ONE)
    document = json.loads((trained / "manifest.json").read_text())
    document["made_from"]["code"] = made
    (trained / "manifest.json").write_text(json.dumps(document))
    assert names(line) == [f"code/{unneeded}"]
    assert f"code/{kept}" in names(line, keep_last=1) and f"code/{made}" not in names(line, keep_last=1)
    # A stage that runs by itself may have begun with it.
    lock = Lock(storage.normalise(line / "train" / ONE))
    try:
        assert names(line) == []
    finally:
        lock.release()
    assert delete(storage.normalise(line), find_leftovers(storage.normalise(line)), keep=[], keep_last=None) == []
    assert sorted(path.name for path in (line / "code").iterdir()) == [kept, made]


def test_a_run_that_may_be_going_on_is_kept(line: Path) -> None:
    (line / "runs" / OLD / "run.json").unlink()
    assert names(line, keep_last=1) == []


def test_unfinished_work_is_found_by_its_option_unless_a_process_has_it(line: Path) -> None:
    (line / "shard" / TWO).mkdir()
    (line / "shard" / TWO / "train-00000-0a1b2c3d.tar").write_bytes(b"12345")
    needed = find_newest(line)
    (needed / ".work").mkdir()
    (needed / ".work" / "references-00000").write_bytes(b"123")
    assert names(line) == []
    found = find_leftovers(storage.normalise(line), unfinished=True)
    assert {leftover.name: leftover.num_bytes for leftover in found} == {
        f"shard/{TWO}": 5,
        f"shard/{needed.name}/.work": 3,
    }
    lock = Lock(storage.normalise(line / "shard" / TWO))
    try:
        assert names(line, unfinished=True) == [f"shard/{needed.name}/.work"]
        # Taken while the question was open.
        left = delete(storage.normalise(line), found, keep=[], keep_last=None)
        assert [leftover.name for leftover in left] == [f"shard/{TWO}"]
    finally:
        lock.release()
    assert not (needed / ".work").exists() and (needed / "manifest.json").exists()
    assert (line / "shard" / TWO / "train-00000-0a1b2c3d.tar").exists()


def test_shards_of_other_versions_beside_a_manifest_are_unfinished_work(line: Path) -> None:
    needed = find_newest(line)
    listed = {entry.name for entry in ShardManifest.load(storage.normalise(needed)).owned_files()}
    for name in listed:
        (needed / name).touch()
    for name in ("train-0a1b2c3d-00000.tar", "index-0a1b2c3d-00000.bin", "notes-of-mine.tar"):
        (needed / name).write_bytes(b"1234")
    assert names(line) == []
    found = find_leftovers(storage.normalise(line), unfinished=True)
    shown = f"shard/{needed.name} (2 files that its manifest does not list)"
    assert [(leftover.name, leftover.num_bytes) for leftover in found] == [(shown, 8)]
    # Made one of the output's meanwhile.
    manifest = ShardManifest.load(storage.normalise(needed))
    taken = manifest.shards[0].model_copy(update={"name": "train-0a1b2c3d-00000.tar"})
    (needed / "manifest.json").write_bytes(manifest.model_copy(update={"shards": [taken]}).to_json())
    assert delete(storage.normalise(line), found, keep=[], keep_last=None) == []
    left = {path.name for path in needed.iterdir()}
    assert left == {*listed, "manifest.json", "train-0a1b2c3d-00000.tar", "notes-of-mine.tar"} | (left & {".stage"})


def test_what_became_needed_or_finished_meanwhile_stays(line: Path) -> None:
    uri = storage.normalise(line)
    found = find_leftovers(uri, keep_last=1)
    started = line / "runs" / "20261123-070000-0001"
    started.mkdir()
    (started / "run-start.json").write_text(json.dumps({"id": started.name, "started_at": "2026-11-23T00:00:00Z"}))
    leave_result(uri, started.name, "train", storage.normalise(line / "train" / ONE), reused=True)
    assert delete(uri, found, keep=[], keep_last=1) == found, "the training needs its shards"
    (line / "shard" / TWO).mkdir()
    (line / "shard" / TWO / "x").write_bytes(b"x")
    found = find_leftovers(uri, unfinished=True)
    (line / "shard" / TWO / "manifest.json").write_text("{}")
    assert delete(uri, found, keep=[], keep_last=None) == found


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
    assert names(line, keep_last=2, unfinished=True) == []


def test_what_is_needed_and_cannot_be_read_stops_it(line: Path) -> None:
    (line / "shard" / ONE / "manifest.json").write_text("{")
    with pytest.raises(DataError):
        names(line)
    # An output that was deleted by hand is none that could be needed.
    shutil.rmtree(line / "shard" / ONE)
    assert names(line) == []


def test_a_folder_without_runs_or_an_unknown_run_is_refused(line: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        names(tmp_path)
    with pytest.raises(ConfigError, match="no-such"):
        names(line, keep=["no-such"])


def test_a_line_in_a_bucket(bucket_line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(bucket_line) == []
    storage.publish(f"{bucket_line}/shard/{TWO}/train-00000-0a1b2c3d.tar", b"12345")
    assert names(bucket_line, unfinished=True) == [], "written to a moment ago: a job may run"
    monkeypatch.setattr(clean, "_IN_USE_S", 0.0)
    record = storage.read_bytes(f"{bucket_line}/runs/{OLD}/run.json")
    storage.delete(f"{bucket_line}/runs/{OLD}/run.json")
    assert names(bucket_line, unfinished=True) == [], "a run without a record may wait for its machines"
    storage.publish(f"{bucket_line}/runs/{OLD}/run.json", record)
    assert names(bucket_line, unfinished=True, keep_last=1) == [f"shard/{ONE}", f"shard/{TWO}", f"train/{ONE}"]
    found = find_leftovers(bucket_line, unfinished=True, keep_last=1)
    assert delete(bucket_line, found, keep=[], keep_last=1) == []
    assert names(bucket_line, unfinished=True, keep_last=1) == []
    assert storage.exists(f"{bucket_line}/shard/{ZERO}/manifest.json")


def test_uploads_that_no_kept_run_names_and_sources_of_builds_go_after_a_day(
    bucket_line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = ("a" * 64, "b" * 64, "c" * 64)
    for sha256 in (first, second):
        storage.publish(f"{bucket_line}/source/{sha256}/red/1.png", b"12345")
        storage.publish(f"{bucket_line}/source/{sha256}.json", b"{}")
    storage.publish(f"{bucket_line}/source/{third}/red/1.png", b"an upload that was killed")
    storage.publish(f"{bucket_line}/images/{first}.tgz", b"123")
    for run, sha256 in ((NEW, second), (OLD, first)):
        record = json.loads(storage.read_bytes(f"{bucket_line}/runs/{run}/run.json"))
        record["config"]["sharding"] = {"source": f"{bucket_line}/source/{sha256}"}
        storage.delete(f"{bucket_line}/runs/{run}/run.json")
        storage.publish(f"{bucket_line}/runs/{run}/run.json", json.dumps(record).encode())

    def mine(**options: object) -> list[str]:
        return [name for name in names(bucket_line, **options) if name.startswith(("source", "images"))]

    assert mine(keep_last=1, unfinished=True) == [], "written to a moment ago"
    monkeypatch.setattr(clean, "_IN_USE_S", 0.0)
    builds = "images (sources of image builds)"
    assert mine() == [builds]
    assert mine(unfinished=True) == [f"source/{third}", builds]
    assert mine(keep_last=1) == [f"source/{first}", builds]
    found = find_leftovers(bucket_line, keep_last=1, unfinished=True)
    assert delete(bucket_line, found, keep=[], keep_last=1) == []
    assert {one.name for one in storage.list_objects(f"{bucket_line}/source")} == {
        f"{second}.json",
        f"{second}/red/1.png",
    }
    assert not list(storage.list_objects(f"{bucket_line}/images"))


def test_the_manifest_goes_first(bucket_server: BucketServer, bucket_line: str) -> None:
    storage.publish(f"{bucket_line}/train/{ONE}/checkpoints/a/model.safetensors", b"x")
    found = find_leftovers(bucket_line, keep_last=1)
    bucket_server.access_log.clear()
    delete(bucket_line, found, keep=[], keep_last=1)
    gone = [entry.object for entry in bucket_server.access_log.entries(method="DELETE")]
    assert [name.rpartition("/")[2] for name in gone if f"train/{ONE}" in name] == [
        "manifest.json",
        "model.safetensors",
    ]


def test_the_command_lists_and_deletes_only_when_told_to(line: Path) -> None:
    before = all_files(line)
    told = CliRunner().invoke(app, ["clean", str(line), "--keep-last", "1", "--dry-run"])
    assert told.exit_code == 0 and f"train/{ONE}" in told.stdout and "2 folders, " in told.stdout
    refused = CliRunner().invoke(app, ["clean", str(line), "--keep-last", "1"])
    assert refused.exit_code == 2 and "no terminal to ask on" in refused.stderr
    assert all_files(line) == before
    done = CliRunner().invoke(app, ["clean", str(line), "--keep-last", "1", "--yes"])
    assert done.exit_code == 0 and len(all_files(line)) == len(before) - 2
    again = CliRunner().invoke(app, ["clean", str(line), "--keep-last", "1"])
    assert again.exit_code == 0 and "0 folders, 0 bytes" in again.stdout


@pytest.mark.parametrize(("answer", "deleted"), [("n", 0), ("", 0), ("y", 2)])
def test_on_a_terminal_it_asks(line: Path, answer: str, deleted: int) -> None:
    before = all_files(line)
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "pipelines.cli", "clean", str(line), "--keep-last", "1"]
        process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        os.write(ours, f"{answer}\n".encode())
        told, _ = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 0 and b"delete them?" in told
    assert len(before) - len(all_files(line)) == deleted
