"""The line by its commands with images and shards in a bucket only: nothing of them is ever a file of the line."""

from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest, ExportManifest, ProfileReport, ShardManifest
from rehearsal.gcs import BucketServer
from tests.test_line import shardline, write_config

SOURCE, SHARDS = "gs://bucket-1/raw images", "gs://bucket-1/made/shards"


def made(name: str, *arguments: object) -> str:
    """Run a stage by its command; return what it printed last, the place of its output."""
    done = shardline(name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_images_in_a_bucket_become_an_engine(pictures: Path, bucket_server: BucketServer, tmp_path: Path) -> None:
    for path in pictures.rglob("*.png"):
        storage.replace(storage.join(SOURCE, path.parent.name, path.name), path.read_bytes())
    cache = tmp_path / "cache"
    config = write_config(
        tmp_path,
        pictures,
        sharding={"source": SOURCE},
        data={"num_workers": 1, "cache_dir": str(cache), "cache_bytes": 1 << 24},
        profile={"num_workers": [1]},
    )
    assert made("shard", config, "--to", SHARDS) == SHARDS
    shards = ShardManifest.load(SHARDS)
    assert sum(split.samples for split in shards.splits.values()) == 120

    profile = made("profile", config, "--shards", SHARDS)
    trained = made("train", config, "--shards", SHARDS, "--profile", profile)
    exported = made("export", config, "--shards", SHARDS, "--checkpoint", trained)
    for place in (profile, trained, exported):
        assert Path(place).is_relative_to(tmp_path / "runs/small")
    assert ProfileReport.load(storage.normalise(profile)).shards_fingerprint == shards.fingerprint
    result = CheckpointManifest.load(storage.normalise(trained))
    assert result.shards_fingerprint == shards.fingerprint
    assert result.order is not None and result.order.kind == "blocks"
    manifest = ExportManifest.load(storage.normalise(exported))
    assert manifest.headline_values["torch"] == result.metrics["test_accuracy"]
    assert {gate.name for gate in manifest.gates if gate.status == "passed"} >= {"parity", "metric", "program"}

    # The line's folder holds no shard and no index; the bytes that were read lie in the cache alone.
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.suffix in (".tar", ".npy", ".tfrecord")]
    assert list(cache.glob("*-*.tar"))
    bucket_server.access_log.clear()
    again = made("train", config, "--shards", SHARDS, "--profile", profile)
    assert again == trained
    assert not bucket_server.access_log.entries(operation="objects.media", object="*.tar")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_line_from_images_in_a_bucket(pictures: Path, bucket_server: BucketServer, tmp_path: Path) -> None:
    for path in pictures.rglob("*.png"):
        storage.replace(storage.join(SOURCE, path.parent.name, path.name), path.read_bytes())
    config = write_config(tmp_path, pictures, sharding={"source": SOURCE}, train={"epochs": 1})
    assert made("run", config) == str(tmp_path / "runs/small")
    assert made("run", config) == str(tmp_path / "runs/small")
