"""Training, profiling and export from shards in a bucket: the parameters of the same order read from disk."""

import gc
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, ExportManifest, ProfileReport, ShardManifest
from contracts.config import DataSection, RunConfig
from contracts.errors import ConfigError, UserError
from contracts.stage import run_stage
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.trainer.data.conftest import upload
from tests.trainer.one_rank import one_rank
from tests.trainer.one_rank import train as train_here
from trainer.data.shard_cache import check_room
from trainer.export.task import export
from trainer.launch.assignment import ASSIGNMENT_NAME
from trainer.profiling.task import execute as profile
from trainer.task import execute as train

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

BLOCKS = {"order": "blocks"}


@pytest.fixture
def shards(
    small_shards: str,
    bucket_server: BucketServer,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """The small shards, in a bucket, with a default cache of the test's own."""
    monkeypatch.setenv("SHARDLINE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield upload(storage.local_path(small_shards))
    gc.collect()


def write_foreign(folder: Path) -> Path:
    folder.mkdir()
    (folder / "thesis.tex").write_text("years")
    return folder


def run_stage_of(name: str, folder: Path, shards_uri: str, config: dict[str, Any]) -> int:
    text = json.dumps({section: value for section, value in config.items() if section != "sharding"})
    execute = {"train": train, "profile": profile}[name]
    return run_stage(name, execute, ["--output", str(folder), "--shards", shards_uri, "--config-json", text])


def run_train(folder: Path, shards_uri: str, config: dict[str, Any]) -> int:
    return run_stage_of("train", folder, shards_uri, config)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
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


@pytest.mark.parametrize("stage", ["train", "profile"])
def test_a_bound_below_a_shard_ends_with_2_before_any_rank_starts(
    shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], stage: str
) -> None:
    config = small_config(data={**BLOCKS, "cache_dir": str(tmp_path / "cache"), "cache_bytes": 2048})
    assert run_stage_of(stage, tmp_path / "out", shards, config) == 2
    said = capfd.readouterr().err
    assert "data.cache_bytes = 2048 does not hold" in said
    # The number in the message is one that would do.
    number = int(re.search(r"set data\.cache_bytes to (\d+) or more", said)[1])  # type: ignore[index]
    manifest = ShardManifest.load(shards)
    check_room(shards, DataSection(**{**config["data"], "cache_bytes": number}), manifest)
    with pytest.raises(ConfigError):
        check_room(shards, DataSection(**{**config["data"], "cache_bytes": number - 1}), manifest)
    assert not list(tmp_path.rglob(ASSIGNMENT_NAME))


@pytest.mark.parametrize("stage", ["train", "profile"])
def test_a_cache_that_is_not_ours_ends_with_2_before_any_rank_starts(
    shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], stage: str
) -> None:
    cache = write_foreign(tmp_path / "cache")
    config = small_config(data={**BLOCKS, "cache_dir": str(cache), "cache_bytes": 1 << 20})
    assert run_stage_of(stage, tmp_path / "out", shards, config) == 2
    assert "is no cache of shards (thesis.tex lies there)" in capfd.readouterr().err
    assert [path.name for path in cache.iterdir()] == ["thesis.tex"]
    assert not list(tmp_path.rglob(ASSIGNMENT_NAME))


@pytest.mark.slow
def test_what_a_checkpoint_has_recorded_is_what_goes_on(small_shards: str, shards: str, tmp_path: Path) -> None:
    """A training that began on a disk, in full order, goes on from a bucket, with a cache of two shards, to its end."""
    began = {"order": "auto", "cache_dir": str(tmp_path / "cache"), "cache_bytes": 70_000}
    config = small_config(data=began, checkpoint={"every_steps": 2})
    assert run_train(tmp_path / "out", small_shards, config) == 0
    whole = CheckpointManifest.load(storage.normalise(tmp_path / "out"))
    (tmp_path / "out" / MANIFEST_NAME).unlink()
    for last in sorted((tmp_path / "out" / "checkpoints").glob("step-*"))[1:]:
        shutil.rmtree(last)
    assert run_train(tmp_path / "out", shards, config) == 0
    done = CheckpointManifest.load(storage.normalise(tmp_path / "out"))
    assert done.order == whole.order and done.order.kind == "full"
    assert done.parameters_sha256 == whole.parameters_sha256


def test_a_cache_is_for_a_bucket_only(small_shards: str, tmp_path: Path) -> None:
    shards, cached = ShardManifest.load(small_shards), {"cache_dir": str(tmp_path / "cache"), "cache_bytes": 1 << 20}
    assert check_room(small_shards, DataSection(), shards) is None
    said = check_room(small_shards, DataSection.model_validate(cached), shards)
    assert said is not None and "has no effect: the shards are local files" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["train", "profile"])
def test_a_cache_for_shards_on_a_disk_is_said_to_have_no_effect(
    small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], stage: str
) -> None:
    cache = write_foreign(tmp_path / "cache")
    changes = {"profile": {"num_workers": [0], "window_s": 0.05, "slot_sizes": [4]}} if stage == "profile" else {}
    config = small_config(data={"cache_dir": str(cache), "cache_bytes": 1 << 20}, train={"epochs": 1}, **changes)
    assert run_stage_of(stage, tmp_path / "out", small_shards, config) == 0
    [line] = [line for line in capfd.readouterr().err.splitlines() if "warning" in line and "cache_dir" in line]
    assert f"data.cache_dir {cache} has no effect: the shards are local files" in line


def test_a_bad_sample_in_the_bucket_ends_training_with_its_name(shards: str, tmp_path: Path) -> None:
    for name in storage.list_names(shards):
        if name.startswith("train") and name.endswith(".tar"):
            content = bytearray(storage.read_bytes(storage.join(shards, name)))
            content[content.index(b"IDAT") + 10] ^= 1
            storage.replace(storage.join(shards, name), bytes(content))
    config = RunConfig.model_validate(small_config(data=BLOCKS)).model_dump(mode="json")
    with one_rank() as rank, pytest.raises(UserError, match=r"train-\w+-\d+\.tar, sample [0-9a-f]{32} .*has crc32c"):
        train_here(rank, tmp_path, shards, config)


@pytest.mark.line
def test_a_profile_of_shards_in_a_bucket(shards: str, tmp_path: Path) -> None:
    config = small_config(
        data={**BLOCKS, "num_workers": "auto", "prefetch_factor": 2},
        profile={
            "num_workers": [0, 1],
            "window_s": 0.05,
            "slot_sizes": [4],
        },
        parallel={"slot_size": "auto"},
        resources={"threads": 1},
    )
    assert run_stage_of("profile", tmp_path / "out", shards, config) == 0
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
