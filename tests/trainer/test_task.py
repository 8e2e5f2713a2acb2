"""The training stage on real shards, with two processes and gloo."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from contracts import storage
from contracts.artifacts import (
    CheckpointManifest,
    EvaluationReport,
    ProfileChoice,
    ProfileReport,
    SampleOrder,
    ShardManifest,
    find_damage,
)
from contracts.artifacts.classification import ClassificationDetails
from contracts.config import STAGE_KEYS, RunConfig
from contracts.events import EVENTS_NAME, EventReader
from contracts.fingerprint import model_fingerprint
from contracts.scalars import SCALARS_FOLDER
from contracts.stage import run_stage
from inspection.training import read_curves
from tests.conftest import small_config
from trainer.data.reader import ShardReader
from trainer.launch.assignment import ASSIGNMENT_NAME
from trainer.task import execute


def command(root: Path, shards: str, attempt: str, config: dict[str, Any], *more: str) -> list[str]:
    sections = {name: config[name] for name in STAGE_KEYS["train"] if name in config}
    options = ["--root", str(root), "--shards", shards, "--attempt", attempt, "--config-json", json.dumps(sections)]
    return [sys.executable, "-m", "trainer.task", *options, *more]


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=240, check=False)


def events(root: Path, attempt: str) -> list[dict[str, Any]]:
    return list(EventReader(root / "attempts" / attempt / EVENTS_NAME).poll())


def logs(root: Path, attempt: str) -> str:
    return "\n".join(event["message"] for event in events(root, attempt) if event["event"] == "log")


def wait_for_step(root: Path, attempt: str, step: int) -> None:
    # For a machine that is slow and busy; nothing waits so long unless it hangs.
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if any(event["event"] == "progress" and event["done"] >= step for event in events(root, attempt)):
            return
        time.sleep(0.02)
    pytest.fail(f"step {step} was not reached")


# Told while it works, as often as it takes.
LEDGER = ("machine", "progress", "log", "life", "resume", "spent", "checkpoint", "stop")


def last_checkpoint(root: Path) -> CheckpointManifest:
    return CheckpointManifest.load(storage.normalise(max(root.glob("*/checkpoints/*/manifest.json"))))


def test_training_learns_and_leaves_what_its_manifest_says(small_shards: str, tmp_path: Path) -> None:
    # Ranks start sooner than with a network of transformers.
    config = small_config(model={"architecture": "models_for_tests:without_batchnorm", "arguments": {}})
    done = run(tmp_path, small_shards, "a", config)
    assert done.returncode == 0, done.stderr
    uri = done.stdout.splitlines()[-1]
    result = CheckpointManifest.load(uri)
    assert result.finished
    assert result.classes == ["blue", "green", "red"]
    assert result.environment["ranks"] == "2"
    assert result.environment["threads_per_rank"] == "1"
    # Its generator draws crops and augmentation.
    assert result.environment["numpy"] == np.__version__
    assert result.metrics["test_accuracy"] > 0.5
    assert result.slot_size == 4
    assert result.order == SampleOrder(kind="full")
    kinds = [event["event"] for event in events(tmp_path, "a")]
    assert [kind for kind in kinds if kind not in LEDGER] == ["start", "folder", "ready", "finish"]
    committed = [event["step"] for event in events(tmp_path, "a") if event["event"] == "checkpoint"]
    kept = [
        CheckpointManifest.load(storage.normalise(path)).step for path in tmp_path.glob("*/checkpoints/*/manifest.json")
    ]
    assert set(kept) <= set(committed) and max(kept) == max(committed)
    assert committed == sorted(set(committed)), "each is told once"
    assert "slot_size 4: set by parallel.slot_size; num_workers 0: set by data.num_workers" in logs(tmp_path, "a")
    check_scalars(storage.local_path(uri))
    check_evaluation(uri, result, small_shards)
    assert run_stage("train", execute, command(tmp_path, small_shards, "b", config)[3:]) == 0
    assert events(tmp_path, "b")[-1]["event"] == "reused"


def check_evaluation(uri: str, result: CheckpointManifest, shards: str) -> None:
    """The test split's document lies beside the best weights, and agrees with the manifest and with the shards."""
    assert result.evaluation is not None
    assert result.evaluation.name == f"{result.files[0].name.rpartition('/')[0]}/evaluation.json"
    assert find_damage(uri, [result.evaluation]) is None
    report = EvaluationReport.load(result.evaluation.uri(uri))
    assert (report.step, report.parameters_sha256) == (result.step, result.parameters_sha256)
    assert (report.metrics["accuracy"], report.loss) == (result.metrics["test_accuracy"], result.metrics["test_loss"])
    details = ClassificationDetails.of(report)
    assert details is not None and set(report.metrics) == {"accuracy", "f1_macro", "recall_macro"}
    manifest = ShardManifest.load(shards)
    split = manifest.splits["test"]
    assert [one.samples for one in details.classes] == split.samples_by_class
    assert report.samples == split.samples == sum(samples for _, _, samples in details.confusion)
    right = sum(samples for label, predicted, samples in details.confusion if label == predicted)
    assert right == round(report.metrics["accuracy"] * report.samples) == sum(one.right for one in details.classes)
    assert len(details.worst) == min(split.samples, 50)
    reader = ShardReader(shards, manifest, "test")
    for one in details.worst:
        assert (one.shard, one.key) == reader.origin_of(one.place)
        assert one.label == reader.sample(one.place)["label"]
    probabilities = [one.probability for one in details.worst]
    assert probabilities == sorted(probabilities)
    # The outcomes of both ranks, in the order of the split.
    assert result.predictions is not None
    table = parquet.read_table(storage.local_path(result.predictions.uri(uri))).to_pydict()
    assert table["key"] == [reader.origin_of(place)[1] for place in range(len(reader))]
    hits = [label == answer for label, answer in zip(table["label"], table["answer"], strict=True)]
    assert sum(hits) / len(hits) == report.metrics["accuracy"]
    assert all(path.startswith(f"{label}/") for path, label in zip(table["path"], table["label"], strict=True))


def check_scalars(folder: Path) -> None:
    """Read what training wrote: TensorBoard's own reader finds what the lines of scalars say."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    train = ("loss", "learning_rate", "gradient_norm", "skipped_steps", "samples_per_s", "epoch")
    names = {f"train/{name}" for name in train} | {"memory/resident_bytes", "memory/resident_peak_bytes"}
    names |= {f"validation/{name}" for name in ("loss", "accuracy", "f1_macro", "recall_macro")} | {"data/time_percent"}
    assert set(accumulator.Tags()["scalars"]) == names
    curves = {curve.name: curve for curve in read_curves(storage.normalise(folder / SCALARS_FOLDER))[0]}
    assert set(curves) == names
    for name, curve in curves.items():
        scalars = accumulator.Scalars(name)
        assert curve.steps == [scalar.step for scalar in scalars], name
        # A float64 of nine digits may become the float32 beside the one that it becomes with all of its digits.
        np.testing.assert_allclose(curve.values, [scalar.value for scalar in scalars], rtol=2e-7, err_msg=name)
    assert curves["validation/accuracy"].steps == [5, 10]
    assert all(0 < scalar.value <= 100 for scalar in accumulator.Scalars("data/time_percent"))


def profile_folder(folder: Path, config: dict[str, Any], **changes: Any) -> str:
    report = ProfileReport(
        **{
            "fingerprint": "f",
            "model_fingerprint": model_fingerprint(RunConfig.model_validate(config)),
            "shards_fingerprint": "s",
            "hardware": {},
            "torch_version": "2",
            "ranks": 2,
            "threads_per_rank": 1,
            "global_batch_size": 16,
            "points": [],
            "choice": ProfileChoice(slot_size=8, num_workers=1, reason="r"),
            **changes,
        }
    )
    storage.publish(storage.join(storage.normalise(folder), "manifest.json"), report.to_json())
    return str(folder)


def test_a_profile_that_contradicts_the_number_of_ranks_is_refused_before_they_start(
    small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = small_config(parallel={"slot_size": "auto"}, resources={"ranks": 2})
    chosen = ProfileChoice(slot_size=16, num_workers=1, reason="r")
    profile = profile_folder(tmp_path / "profile", config, choice=chosen, global_batch_size=32)
    arguments = command(tmp_path / "train", small_shards, "a", config, "--profile", profile)
    assert run_stage("train", execute, arguments[3:]) == 2
    assert not list(tmp_path.rglob(ASSIGNMENT_NAME))
    said = capfd.readouterr().err
    assert "warning: the profile was measured with train.global_batch_size 32, not 16" in said
    assert "slots of 16 (chosen by the profile) makes 1 slots for 2 ranks" in said


def test_an_error_of_a_rank_is_the_stages(small_shards: str, tmp_path: Path) -> None:
    done = run(tmp_path, small_shards, "a", small_config(model={"architecture": "resnett"}))
    assert done.returncode == 2
    assert done.stderr.count("train: error: ") == 1
    assert "did you mean resnet?" in done.stderr[done.stderr.index("train: error: ") :]
    assert not list(tmp_path.glob("*/manifest.json"))
