"""Whole trainings with FSDP2 and with several buckets, killed and continued, and a changing number of ranks."""

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport, ShardManifest
from contracts.config import ModelSection
from tests.conftest import small_config
from tests.support.hooks import BUCKET_MB
from tests.support.trace import ENVIRONMENT, TracedStep, read_trace
from tests.support.traced import HOOKS
from tests.trainer.tasks.for_tests import image_network
from tests.trainer.test_task import command, logs
from trainer.checkpoint.loading import load_model_state
from trainer.model.build import parameters_sha256

# 72 training samples: 20, 20, 20 and 12 an epoch, in slots of 4.
BASE: dict[str, Any] = {"train": {"global_batch_size": 20}, "parallel": {"slot_size": 4}}


def config_of(*, ranks: int, epochs: int, **parallel: Any) -> dict[str, Any]:
    return small_config(
        train={**BASE["train"], "epochs": epochs},
        parallel={**BASE["parallel"], **parallel},
        checkpoint={"every_steps": 3},
        resources={"ranks": ranks},
    )


def start(root: Path, shards: str, attempt: str, config: dict[str, Any], trace: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(root, shards, attempt, config),
        env={**os.environ, **HOOKS, ENVIRONMENT: str(trace), BUCKET_MB: "0.005"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A group of its own, so that one signal ends launcher, torchrun and ranks.
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for the end; return the URI of the training folder."""
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    return output.splitlines()[-1]


def kill_after(process: subprocess.Popen[str], trace: Path, step: int) -> None:
    """Kill everything once a step was taken by some rank."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        if trace.exists() and max(read_trace(trace), default=-1) >= step:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail(f"step {step} was not reached while training went on: {process.communicate()[1]}")


def last_checkpoint(root: Path) -> tuple[Path, CheckpointManifest]:
    path = max(root.glob("*/checkpoints/*/manifest.json"))
    return path.parent, CheckpointManifest.load(storage.normalise(path))


@pytest.mark.slow
def test_a_sharded_network_trains_to_the_end(small_shards: str, tmp_path: Path) -> None:
    config = config_of(ranks=2, epochs=3, strategy="fsdp")
    uri = finish(start(tmp_path / "run", small_shards, "a", config, tmp_path / "trace"))
    result = CheckpointManifest.load(uri)
    assert "fsdp: 6107 parameters over 2 ranks, gathered in 2 blocks" in logs(tmp_path / "run", "a")
    assert result.environment["parallel"] == "fsdp over 2 ranks"
    assert result.metrics["test_accuracy"] > 0.5
    assert result.evaluation is not None
    # What training left, in a process that knows nothing of ranks: as the export reads it.
    model = image_network(ModelSection.model_validate(result.model))
    state = load_model_state(uri, result)
    model.load_state_dict(state)
    assert parameters_sha256(state) == result.parameters_sha256
    assert EvaluationReport.load(result.evaluation.uri(uri)).metrics["accuracy"] == result.metrics["test_accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "parallel"), [(2, {"strategy": "fsdp"}), (3, {"strategy": "fsdp"}), (3, {})])
def test_killed_and_continued_it_ends_in_the_same_bits(
    small_shards: str, tmp_path: Path, ranks: int, parallel: dict[str, Any]
) -> None:
    config = config_of(ranks=ranks, epochs=6, **parallel)
    whole = finish(start(tmp_path / "whole", small_shards, "a", config, tmp_path / "whole-trace"))
    process = start(tmp_path / "cut", small_shards, "a", config, tmp_path / "cut-trace")
    kill_after(process, tmp_path / "cut-trace", 9)
    cut = finish(start(tmp_path / "cut", small_shards, "b", config, tmp_path / "cut-trace"))
    assert "continues from" in logs(tmp_path / "cut", "b")
    assert "not bit-identical" not in logs(tmp_path / "cut", "b")
    (expected_path, expected), (found_path, found) = (last_checkpoint(tmp_path / name) for name in ("whole", "cut"))
    assert (found.step, found.parameters_sha256) == (expected.step, expected.parameters_sha256) and found.step == 24
    names = [file.name for file in expected.files]
    assert names == [file.name for file in found.files]
    assert (f"model-00001-of-{ranks:05d}.safetensors" in names) == (parallel.get("strategy") == "fsdp")
    for name in names:
        assert (found_path / name).read_bytes() == (expected_path / name).read_bytes()
    reports = [EvaluationReport.load(CheckpointManifest.load(uri).evaluation.uri(uri)) for uri in (whole, cut)]  # type: ignore[union-attr]
    assert reports[0] == reports[1]
    traces = [read_trace(tmp_path / f"{name}-trace") for name in ("whole", "cut")]
    assert [step.samples for step in traces[0].values()] == [step.samples for step in traces[1].values()]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_come_and_go(small_shards: str, tmp_path: Path, strategy: str) -> None:
    """2 -> 1 -> 3 -> 2 ranks, with BatchNorm: the same samples in the same order, and the same losses."""
    epochs = 45
    undisturbed = config_of(ranks=2, epochs=epochs, strategy=strategy)
    whole = finish(start(tmp_path / "whole", small_shards, "a", undisturbed, tmp_path / "whole-trace"))
    changes = []
    trace = tmp_path / "trace"
    for attempt, ranks, last in (("a", 2, 40), ("b", 1, 80), ("c", 3, 120)):
        config = config_of(ranks=ranks, epochs=epochs, strategy=strategy)
        kill_after(start(tmp_path / "elastic", small_shards, attempt, config, trace), trace, last)
        changes.append(last_checkpoint(tmp_path / "elastic")[1].step)
    elastic = finish(start(tmp_path / "elastic", small_shards, "d", undisturbed, trace))
    for attempt in ("b", "c", "d"):
        assert "not bit-identical to an undisturbed run, the environment differs: ranks" in logs(
            tmp_path / "elastic", attempt
        )
    expected, found = read_trace(tmp_path / "whole-trace"), read_trace(trace)
    check_samples(expected, found, ShardManifest.load(small_shards).splits["train"].samples, epochs)
    for change in changes:
        for step in range(change, change + 50):
            tolerance = 1e-5 if step < change + 10 else 1e-3
            assert found[step].loss == pytest.approx(expected[step].loss, abs=tolerance), (step, changes)
    assert any(found[step].loss != expected[step].loss for step in found), "another order of sums shows"
    results = [CheckpointManifest.load(uri).metrics["test_accuracy"] for uri in (whole, elastic)]
    assert results[1] == pytest.approx(results[0], abs=0.005)


def check_samples(expected: dict[int, TracedStep], found: dict[int, TracedStep], samples: int, epochs: int) -> None:
    assert [(step, one.samples) for step, one in found.items()] == [
        (step, one.samples) for step, one in expected.items()
    ]
    for epoch in range(epochs):
        seen = Counter(sample for one in found.values() if one.epoch == epoch for sample in one.samples)
        assert seen == Counter(range(samples))


@pytest.mark.slow
def test_the_strategy_may_change_on_the_way(small_shards: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for attempt, strategy, last in (("a", "ddp", 6), ("b", "fsdp", 15)):
        config = config_of(ranks=2, epochs=8, strategy=strategy)
        kill_after(start(tmp_path / "run", small_shards, attempt, config, trace), trace, last)
    uri = finish(start(tmp_path / "run", small_shards, "c", config_of(ranks=2, epochs=8), trace))
    assert "the environment differs: parallel fsdp over 2 ranks -> ddp" in logs(tmp_path / "run", "c")
    assert CheckpointManifest.load(uri).finished


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"sync_batch_norm": True}, "parallel.sync_batch_norm is on, but there is no GPU here"),
    ],
)
def test_what_cannot_work_ends_with_2(
    small_shards: str, tmp_path: Path, parallel: dict[str, Any], message: str
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    process = start(tmp_path / "run", small_shards, "a", config_of(ranks=2, epochs=1, **parallel), tmp_path / "trace")
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 2
    assert message in errors
