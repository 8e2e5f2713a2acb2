"""Trainings that are killed and go on with other ranks and loader processes: what they trained on, slot by slot."""

import gc
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest, ShardManifest
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.support.trace import ENVIRONMENT, read_trace
from tests.trainer.data.conftest import upload
from tests.trainer.launch.machines import descendants
from tests.trainer.test_task import command, events, last_checkpoint, logs
from trainer.data.cursor import slot_requests
from trainer.data.order import make_order

EPOCHS, BATCH = 12, 16
CHECKPOINTS = "*/checkpoints/step-*/manifest.json"
# Catches a hang, on the slowest machine.
DEADLINE_S = 400
BLOCKS = {"order": "blocks"}
RANDOM = {"crop": "random_resized", "horizontal_flip": True, "augment": {"rand_augment_ops": 1, "mixup_alpha": 0.4}}


def configuration(ranks: int, num_workers: int, data: dict[str, Any], epochs: int = EPOCHS) -> dict[str, Any]:
    return small_config(
        data={"transform": "waiting:wait", **data, "num_workers": num_workers},
        train={"epochs": epochs, "global_batch_size": BATCH},
        checkpoint={"every_steps": 2},
        model={"architecture": "models_for_tests:without_batchnorm", "arguments": {}},
        resources={"ranks": ranks},
    )


def run(root: Path, shards: str, attempt: str, config: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    arguments = command(root, shards, attempt, config)
    return subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def run_until(
    step: int, root: Path, shards: str, attempt: str, config: dict[str, Any], *, has_saved: bool = False
) -> None:
    """Start a training, and kill all its processes when it has come to a step, and if asked for has saved one."""
    known = set(root.glob(CHECKPOINTS))
    process = subprocess.Popen(
        command(root, shards, attempt, config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + DEADLINE_S
    try:
        while not (
            any(event["event"] == "progress" and event["done"] >= step for event in events(root, attempt))
            and (not has_saved or set(root.glob(CHECKPOINTS)) - known)
        ):
            assert process.poll() is None and time.monotonic() < deadline, f"step {step} was not reached"
            time.sleep(0.02)
    finally:
        for pid in [process.pid, *descendants(process.pid)]:
            os.kill(pid, signal.SIGKILL)
        process.wait()


def leave(cache: Path) -> None:
    """Do nothing to the cache."""


def truncate(cache: Path) -> None:
    """Cut every file of the cache in half."""
    for path in cache.glob("*-*.tar"):
        os.truncate(path, path.stat().st_size // 2)


@pytest.mark.line
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("source", "harm", "data"),
    [
        ("disk", None, {}),
        pytest.param("disk", None, BLOCKS, marks=pytest.mark.slow),
        pytest.param("bucket", None, BLOCKS, marks=pytest.mark.slow),
        ("bucket", leave, BLOCKS),
        pytest.param("bucket", truncate, BLOCKS, marks=pytest.mark.slow),
        pytest.param("bucket", shutil.rmtree, BLOCKS, marks=pytest.mark.slow),
        # Of two shards.
        pytest.param("bucket", leave, {**BLOCKS, "cache_bytes": 70_000}, marks=pytest.mark.slow),
    ],
)
def test_two_ranks_then_three_then_one_train_on_every_sample_once_an_epoch(
    bucket_server: BucketServer,
    small_shards: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    harm: Callable[[Path], None] | None,
    data: dict[str, Any],
) -> None:
    shards = upload(storage.local_path(small_shards)) if source == "bucket" else small_shards
    cache = tmp_path / "cache"
    if harm is not None:
        data = {"cache_bytes": 1 << 20, **data, "cache_dir": str(cache)}
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "trace"))
    root = tmp_path / "train"
    for attempt, ranks, num_workers, step in (("a", 2, 0, 10), ("b", 3, 3, 30)):
        run_until(step, root, shards, attempt, configuration(ranks, num_workers, data))
        if harm is not None:
            harm(cache)
    done = run(root, shards, "c", configuration(1, 1, data))
    assert done.returncode == 0, done.stderr
    assert "continues from" in logs(root, "b") and "continues from" in logs(root, "c")
    assert "ranks 2 -> 3" in logs(root, "b") and "ranks 3 -> 1" in logs(root, "c")

    manifest = ShardManifest.load(small_shards)
    record = last_checkpoint(root).order
    assert record is not None and record.kind == ("blocks" if data else "full")
    order = make_order(record, manifest, seed=0)
    expected: dict[int, list[int]] = {}
    for request in slot_requests(0, order=order, epochs=EPOCHS, global_batch_size=BATCH, slot_size=4, rank=0, ranks=1):
        expected.setdefault(request.step, []).extend(request.samples)
    steps = read_trace(tmp_path / "trace")
    assert {number: step.samples for number, step in steps.items()} == expected
    for epoch in range(EPOCHS):
        seen = [sample for step in steps.values() if step.epoch == epoch for sample in step.samples]
        assert sorted(seen) == list(range(order.num_samples))
    gc.collect()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_training_ends_with_the_parameters_of_an_undisturbed_one(small_shards: str, tmp_path: Path) -> None:
    config = configuration(2, 1, RANDOM, epochs=6)
    whole = run(tmp_path / "whole", small_shards, "a", config)
    assert whole.returncode == 0, whole.stderr
    run_until(15, tmp_path / "killed", small_shards, "a", config)
    done = run(tmp_path / "killed", small_shards, "b", config)
    assert done.returncode == 0, done.stderr
    assert "continues from" in logs(tmp_path / "killed", "b")
    one, other = (CheckpointManifest.load(run.stdout.splitlines()[-1]) for run in (whole, done))
    assert one.parameters_sha256 == other.parameters_sha256
    assert (
        last_checkpoint(tmp_path / "whole").parameters_sha256 == last_checkpoint(tmp_path / "killed").parameters_sha256
    )
