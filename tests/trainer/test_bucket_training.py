"""Training, profiling and export from shards in a bucket: the parameters of the same order read from disk."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest, ExportManifest, ProfileReport
from contracts.stage import run_stage
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.trainer.data.conftest import upload
from trainer.export.task import export
from trainer.profiling.task import execute as profile
from trainer.task import execute as train

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

BLOCKS = {"order": "blocks", "range_bytes": 16384, "block_bytes": 20000, "canonical_streams": 2}


@pytest.fixture
def shards(small_shards: str, bucket_server: BucketServer) -> Iterator[str]:
    """The small shards, in a bucket."""
    yield upload(storage.local_path(small_shards))
    gc.collect()


def run_train(folder: Path, shards_uri: str, config: dict[str, Any]) -> int:
    text = json.dumps({name: section for name, section in config.items() if name != "sharding"})
    return run_stage("train", train, ["--output", str(folder), "--shards", shards_uri, "--config-json", text])


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_parameters_are_those_of_training_from_disk(
    shards: str, small_shards: str, bucket_server: BucketServer, tmp_path: Path, num_workers: int
) -> None:
    results = []
    for name, uri in (("local", small_shards), ("bucket", shards)):
        config = small_config(data={**BLOCKS, "num_workers": num_workers})
        bucket_server.access_log.clear()
        assert run_train(tmp_path / name, uri, config) == 0
        results.append(CheckpointManifest.load(storage.normalise(tmp_path / name)))
    assert results[0].parameters_sha256 == results[1].parameters_sha256
    assert results[0].metrics == results[1].metrics


def test_a_bound_below_a_block_ends_with_2(shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = small_config(data={**BLOCKS, "memory_bytes": 2048})
    assert run_train(tmp_path / "out", shards, config) == 2
    assert "data.memory_bytes = 2048 does not hold" in capfd.readouterr().err


def test_a_cache_that_is_not_ours_ends_with_2(shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.tex").write_text("years")
    config = small_config(data={**BLOCKS, "cache_dir": str(tmp_path / "cache"), "cache_bytes": 1 << 20})
    assert run_train(tmp_path / "out", shards, config) == 2
    assert "is no cache of shards" in capfd.readouterr().err


def test_a_bad_sample_in_the_bucket_ends_training_with_its_name(
    shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in storage.list_names(shards):
        if name.startswith("train") and name.endswith(".tar"):
            content = bytearray(storage.read_bytes(storage.join(shards, name)))
            content[content.index(b"IDAT") + 10] ^= 1
            storage.replace(storage.join(shards, name), bytes(content))
    assert run_train(tmp_path / "out", shards, small_config(data=BLOCKS)) == 2
    assert "has crc32c" in capfd.readouterr().err


def test_a_profile_of_shards_in_a_bucket(shards: str, tmp_path: Path) -> None:
    config = small_config(
        data={**BLOCKS, "num_workers": "auto"},
        profile={"num_workers": [0, 1], "window_s": 0.05, "slot_sizes": [4]},
        parallel={"slot_size": "auto"},
    )
    text = json.dumps({name: section for name, section in config.items() if name != "sharding"})
    arguments = ["--output", str(tmp_path / "out"), "--shards", shards, "--config-json", text]
    assert run_stage("profile", profile, arguments) == 0
    report = ProfileReport.load(storage.normalise(tmp_path / "out"))
    assert {point.num_workers for point in report.points} == {0, 1}


@pytest.mark.slow
def test_an_export_is_proved_on_shards_in_a_bucket(shards: str, tmp_path: Path) -> None:
    config = small_config(data=BLOCKS, train={"epochs": 1})
    assert run_train(tmp_path / "trained", shards, config) == 0
    arguments = ["--checkpoint", str(tmp_path / "trained"), "--shards", shards, "--output", str(tmp_path / "exported")]
    text = json.dumps({name: section for name, section in config.items() if name in ("data", "model")})
    assert run_stage("export", export, [*arguments, "--config-json", text]) == 0
    trained = CheckpointManifest.load(storage.normalise(tmp_path / "trained"))
    exported = ExportManifest.load(storage.normalise(tmp_path / "exported"))
    assert exported.made_from["checkpoint"]
    assert trained.metrics["test_samples"] > 0
