"""Sharding from and into a bucket: the real client against the bucket server, faults included."""

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import ShardManifest, find_damage
from contracts.config import ShardingSection
from contracts.stage import run_stage
from contracts.stores import gcs
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from sharding import reading
from sharding.listing import list_source
from sharding.task import shard
from tests.conftest import SMALL, write_pictures
from tests.sharding.reading import without_key

# Google's client drops the connection of a streamed answer that is an error, and leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three classes of 24 pictures each; read only."""
    return write_pictures(tmp_path_factory.mktemp("pictures") / "raw", per_class=24)


@pytest.fixture(scope="module")
def local_contents(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The shards of the folder, by name without the key of their job."""
    local = storage.normalise(tmp_path_factory.mktemp("local") / "shards")
    assert run(local, str(pictures)) == 0
    return contents(local, ShardManifest.load(local))


@pytest.fixture
def server(bucket_server: BucketServer, pictures: Path) -> Iterator[BucketServer]:
    """A bucket `photos` with the pictures below raw/."""
    bucket_server.objects.create_bucket("photos", {})
    for path in sorted(pictures.rglob("*.png")):
        bucket_server.objects.write("photos", f"raw/{path.relative_to(pictures).as_posix()}", [path.read_bytes()])
    bucket_server.objects.write("photos", "raw/red/.DS_Store", [b"junk"])
    yield bucket_server
    gc.collect()


def run(output: str, source: str, **section: Any) -> int:
    sections = {"sharding": {**SMALL["sharding"], "source": source, **section}}
    return run_stage("shard", shard, ["--output", output, "--config-json", json.dumps(sections)])


def contents(uri: str, manifest: ShardManifest) -> dict[str, bytes]:
    # A part of the index says what samples were made of: the time of a file, or the generation of an object.
    return {without_key(entry.name): storage.read_bytes(entry.uri(uri)) for entry in manifest.shards}


def test_a_bucket_gives_the_bytes_of_a_folder(server: BucketServer, pictures: Path, tmp_path: Path) -> None:
    local = storage.normalise(tmp_path / "local")
    assert run(local, str(pictures)) == 0
    assert run("gs://photos/shards", "gs://photos/raw") == 0
    mine, theirs = ShardManifest.load(local), ShardManifest.load("gs://photos/shards")
    assert contents(local, mine) == contents("gs://photos/shards", theirs)
    assert theirs.splits == mine.splits
    assert theirs.mean == mine.mean
    assert theirs.ignored == ["red/.DS_Store"]
    left = {name for name in storage.list_names("gs://photos/shards") if not name.startswith(".")}
    assert left == {entry.name for entry in theirs.owned_files()} | {"manifest.json"}


def test_worker_processes_read_and_write_a_bucket(server: BucketServer, local_contents: dict[str, bytes]) -> None:
    sharding = {**SMALL["sharding"], "source": "gs://photos/raw"}
    config = json.dumps({"sharding": sharding, "resources": {"beam_workers": 2}})
    command = [sys.executable, "-m", "sharding.task", "--config-json", config]
    done = subprocess.run(
        [*command, "--output", "gs://photos/two"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert local_contents == contents("gs://photos/two", ShardManifest.load("gs://photos/two"))


def test_a_second_run_writes_nothing_and_a_new_object_is_seen(server: BucketServer) -> None:
    assert run("gs://photos/shards", "gs://photos/raw") == 0
    before = ShardManifest.load("gs://photos/shards")
    server.access_log.clear()
    assert run("gs://photos/shards", "gs://photos/raw") == 0
    assert server.access_log.entries(method="GET", object="raw/*") == []
    image = storage.read_bytes("gs://photos/raw/red/000.png")
    storage.publish("gs://photos/raw/red/new.png", image)
    assert run("gs://photos/again", "gs://photos/raw") == 0
    after = ShardManifest.load("gs://photos/again")
    assert sum(split.samples for split in after.splits.values()) == 1 + sum(
        split.samples for split in before.splits.values()
    )
    # The copy is found by reading its candidates out of the shards in the bucket.
    assert after.duplicates is not None
    assert {copy.path for copy in after.duplicates.listed[0].copies} == {"red/000.png", "red/new.png"}


def test_increments_live_in_a_bucket(server: BucketServer, tmp_path: Path) -> None:
    def grow(root: str) -> ShardManifest:
        sections = {"sharding": {**SMALL["sharding"], "source": "gs://photos/raw", "incremental": True}}
        assert run_stage("shard", shard, ["--root", root, "--config-json", json.dumps(sections)]) == 0
        names = [name.rstrip("/") for name in storage.list_names(root)]
        manifests = [
            ShardManifest.load(storage.join(root, name))
            for name in names
            if storage.exists(storage.join(root, name, "manifest.json"))
        ]
        return max(manifests, key=lambda manifest: manifest.parent is not None)

    roots = ("gs://photos/chain", storage.normalise(tmp_path / "chain"))
    for root in roots:
        grow(root)
    storage.delete("gs://photos/raw/red/001.png")
    storage.publish("gs://photos/raw/red/new.png", storage.read_bytes("gs://photos/raw/red/000.png"))
    theirs, mine = (grow(root) for root in roots)
    assert theirs.parent is not None and any(entry.folder for entry in theirs.shards)
    assert theirs.to_json() == mine.to_json()
    assert find_damage(storage.join(roots[0], theirs.fingerprint), theirs.owned_files()) is None


def test_a_manifest_may_name_objects(server: BucketServer, pictures: Path, tmp_path: Path) -> None:
    paths = sorted(path.relative_to(pictures).as_posix() for path in pictures.rglob("*.png"))
    rows = "".join(f"gs://photos/raw/{path},{path.split('/')[0]}\n" for path in paths)
    (tmp_path / "list.csv").write_text("uri,label\n" + rows)
    output = storage.normalise(tmp_path / "out")
    assert run(output, str(tmp_path / "list.csv")) == 0
    manifest = ShardManifest.load(output)
    assert sum(split.samples for split in manifest.splits.values()) == len(paths)


def test_errors_on_the_way_are_survived(server: BucketServer, local_contents: dict[str, bytes]) -> None:
    server.faults.set(
        Rule(method="GET", object="raw/*", nth=(3, 40), status=503),
        Rule(method="GET", object="raw/*", nth=(7,), reset=True),
        Rule(method="GET", object="raw/*", nth=(11,), truncate_at=20, quietly=True),
    )
    assert run("gs://photos/shards", "gs://photos/raw") == 0
    assert all(server.faults.hits()), "every fault was met"
    server.faults.set()
    assert local_contents == contents("gs://photos/shards", ShardManifest.load("gs://photos/shards"))


def test_faults_on_a_twentieth_of_all_requests(server: BucketServer, pictures: Path, tmp_path: Path) -> None:
    """Errors, cut connections, lost answers and damaged bytes, on whatever is asked."""
    local = storage.normalise(tmp_path / "local")
    assert run(local, str(pictures), target_shard_bytes=4096) == 0
    kinds: list[dict[str, Any]] = [
        {"status": 503},
        {"status": 429, "retry_after_s": 0},
        {"status": 503, "after": True},
        {"reset": True},
        # Content alone has a checksum of its own: an answer of metadata that is cut short is taken for no answer.
        {"truncate_at": 20, "quietly": True, "operation": "objects.media"},
    ]
    # One after another, 5 % of the requests meet one: 1 % each. These seeds hit every kind early.
    server.faults.set(*(Rule(probability=0.01, seed=seed, **kind) for seed, kind in enumerate(kinds, start=6)))
    server.access_log.clear()
    assert run("gs://photos/shards", "gs://photos/raw", target_shard_bytes=4096) == 0
    asked = server.access_log.entries()
    hits = server.faults.hits()
    server.faults.set()
    assert all(hits) and sum(hits) > 0.03 * len(asked), (hits, len(asked))
    assert contents(local, ShardManifest.load(local)) == contents(
        "gs://photos/shards", ShardManifest.load("gs://photos/shards")
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gs://nowhere/raw", "nowhere"),
        ("gs://photos/missing", "does not exist"),
        ("gs://photos/raw/red", "no class folder"),
    ],
)
def test_what_cannot_be_sharded_is_said(
    server: BucketServer, source: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("gs://photos/shards", source) == 2
    assert message in capsys.readouterr().err
    assert not storage.exists("gs://photos/shards/manifest.json")


def test_an_object_that_is_replaced_after_the_listing(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], in_process: None
) -> None:
    read_many = storage.read_many

    def meddle(wanted: Any, **options: Any) -> Any:
        storage.replace("gs://photos/raw/red/003.png", storage.read_bytes("gs://photos/raw/red/004.png"))
        return read_many(wanted, **options)

    monkeypatch.setattr(storage, "read_many", meddle)
    assert run("gs://photos/shards", "gs://photos/raw") == 75
    assert "red/003.png vanished or was replaced" in capsys.readouterr().err
    assert not storage.exists("gs://photos/shards/manifest.json")


@pytest.mark.parametrize(
    ("rule", "code", "message"),
    [
        # The source's listing, the writing of shards, the reading of the listing by workers, and everything after some.
        (Rule(operation="objects.list", status=403), 2, "no permission"),
        (Rule(operation="objects.media", object="raw/*", status=403), 2, "no permission"),
        (Rule(operation="uploads", object="shards/t*", status=403), 2, "no permission"),
        (Rule(operation="objects.list", status=503), 75, "does not answer"),
        (Rule(operation="uploads", object="shards/t*", status=503), 75, "does not answer"),
        (Rule(operation="uploads", object="shards/manifest.json", status=503), 75, "does not answer"),
        (Rule(operation="objects.media", object="shards/.work/*", status=503), 75, "does not answer"),
        (Rule(object="shards/*", nth=tuple(range(40, 9999)), status=503), 75, "does not answer"),
    ],
)
def test_a_bucket_that_refuses_and_one_in_a_storm(
    server: BucketServer,
    monkeypatch: pytest.MonkeyPatch,
    in_process: None,
    capsys: pytest.CaptureFixture[str],
    rule: Rule,
    code: int,
    message: str,
) -> None:
    # Worker processes would wait for the usual minute: how their errors come back is in test_runners.py.
    monkeypatch.setattr(gcs, "RETRY_DEADLINE_S", 0.5)
    server.faults.set(rule)
    config = {
        "sharding": {**SMALL["sharding"], "source": "gs://photos/raw"},
        "resources": {"beam_workers": 1},
    }
    arguments = ["--output", "gs://photos/shards", "--config-json", json.dumps(config)]
    assert run_stage("shard", shard, arguments) == code
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said
    server.faults.set()
    assert not storage.exists("gs://photos/shards/manifest.json")
    assert run_stage("shard", shard, arguments) == 0
    manifest = ShardManifest.load("gs://photos/shards")
    names = {entry.name for entry in manifest.owned_files()}
    assert names | {"manifest.json", ".stage"} == set(storage.list_names("gs://photos/shards"))


def test_a_film_among_the_objects_is_known_by_its_first_bytes(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch, in_process: None
) -> None:
    monkeypatch.setattr(reading, "LARGE_BYTES", 1 << 16)
    storage.publish("gs://photos/raw/red/film.mp4", b"\0\0\0\x18ftypmp42" + bytes(1 << 20))
    assert run("gs://photos/shards", "gs://photos/raw", max_rejected_fraction=0.02) == 0
    (rejected,) = ShardManifest.load("gs://photos/shards").rejected
    assert rejected.path == "red/film.mp4" and "known format" in rejected.reason
    read = server.access_log.entries(operation="objects.media", object="raw/red/film.mp4")
    assert sum(entry.bytes_out for entry in read) == reading.HEAD_BYTES


def test_a_manifest_lists_the_folders_that_it_names_and_no_more(server: BucketServer, tmp_path: Path) -> None:
    for number in range(4):
        for name in ("red", "blue"):
            content = storage.read_bytes(f"gs://photos/raw/{name}/{number:03d}.png")
            storage.publish(f"gs://photos/flat-{name}-{number}.png", content)
    rows = "".join(f"gs://photos/flat-{name}-{n}.png,{name},train\n" for n in range(4) for name in ("red", "blue"))
    (tmp_path / "list.csv").write_text("uri,label,split\n" + rows)
    server.access_log.clear()
    listing = list_source(ShardingSection(source=str(tmp_path / "list.csv")), tmp_path)
    assert listing.num_files == 8
    assert all(one.content_hash.startswith(b"md5:") for one in listing.references())
    (listed,) = server.access_log.entries(operation="objects.list")
    # The 72 objects below raw/ are not in it.
    assert listed.bytes_out < 8 * 400


def test_the_command_shards_from_a_bucket(server: BucketServer, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"sharding": {**SMALL["sharding"], "source": "gs://photos/raw"}}))
    command = [sys.executable, "-m", "pipelines.cli", "shard", str(config)]
    root = f"run.root={tmp_path / 'runs'}"
    for flags in ([root], ["--to", "gs://photos/by-hand"]):
        done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "shards" in done.stdout + done.stderr
        assert ShardManifest.load(storage.normalise(done.stdout.splitlines()[-1])).format == "webdataset"
    command += [root, "sharding.source=gs://missing/x"]
    wrong = subprocess.run(command, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "gs://missing" in wrong.stderr, wrong.stderr
