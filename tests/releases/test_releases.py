"""Configurations, documents and checkpoints of earlier releases are read, resumed, or refused by name."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from contracts import storage
from contracts.artifacts import (
    CheckpointManifest,
    EvaluationReport,
    ExportManifest,
    Headline,
    ProfileReport,
    RunRecord,
    ShardManifest,
    find_damage,
)
from contracts.artifacts.classification import ClassificationDetails
from contracts.output import mark_folder
from contracts.resolve import parse_config
from inspection.page import render_report
from inspection.profile_page import make_profile_page
from inspection.run.find import find_place
from inspection.run.read import read_run
from inspection.run.summary import read_line
from trainer.checkpoint.loading import load_groups, load_model_state

RELEASES = sorted(path.parent for path in Path(__file__).parent.glob("*/line.yaml"))
EVERY_RELEASE = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def output(release: Path, stage: str) -> Path:
    """Return the folder of a stage's output, named by its fingerprint."""
    return only(release, f"line/{stage}/{'[0-9a-f]' * 16}")


def uri_of(release: Path, stage: str) -> str:
    return storage.normalise(output(release, stage))


def test_there_are_releases() -> None:
    assert "0.1.0" in [path.name for path in RELEASES]


@EVERY_RELEASE
def test_configuration_and_documents_are_read(release: Path) -> None:
    parse_config(yaml.safe_load((release / "line.yaml").read_text()), where="line.yaml")
    shards = ShardManifest.load(uri_of(release, "shard"))
    assert sum(split.samples for split in shards.splits.values()) == 300
    assert find_damage(uri_of(release, "shard"), shards.owned_files()) is None
    assert ProfileReport.load(uri_of(release, "profile")).choice.slot_size == 4
    training = CheckpointManifest.load(uri_of(release, "train"))
    assert training.finished and training.step == 72
    assert training.evaluation is not None
    report = EvaluationReport.load(training.evaluation.uri(uri_of(release, "train")))
    accuracy = Headline(metric="accuracy", direction="max")
    assert report.headline == training.headline == accuracy and training.directions == {"accuracy": "max"}
    assert report.metrics == {"accuracy": training.metrics["test_accuracy"]}
    best = {name: training.metrics[name] for name in ("validation_accuracy", "validation_loss")}
    assert training.best_metrics == best and training.task["name"] == report.task == "image_classification"
    details = ClassificationDetails.of(report)
    assert details is not None and details.right == round(report.metrics["accuracy"] * report.samples)
    # What was read may be written, and is read again.
    for document in (training, report):
        assert type(document).parse(document.to_json(), where="a copy") == document
    assert ExportManifest.load(uri_of(release, "export")).precision == "fp16"
    record = RunRecord.parse((release / "line" / "run.json").read_bytes(), where="run.json")
    assert record.state == "succeeded"
    assert record.find_headline() == (accuracy, training.metrics["test_accuracy"])


@EVERY_RELEASE
def test_the_run_is_shown(release: Path) -> None:
    place = find_place(str(release / "line"))
    view = read_run(place)
    assert view.state == "succeeded" and view.task == "image_classification"
    line = read_line(place)
    assert (line.headline.metric, line.headline.metric_value) == ("accuracy", 0.9393939393939394)
    page = render_report(view)
    assert "Test accuracy" in page and "93.94\u00a0%" in page
    assert 'id="confusion"' in page and page.count("<li") >= 24 and "cannot be shown" not in page
    uri = uri_of(release, "profile")
    profile = make_profile_page(ProfileReport.load(uri), uri)
    assert 'value="4" data-figure="choice.slot_size"' in profile and "before 0.2.0 left none" in profile


@pytest.mark.line
@EVERY_RELEASE
def test_a_checkpoint_is_resumed_and_ends_as_the_release_ended(release: Path, tmp_path: Path) -> None:
    """From step 60 of 72: the last 12 steps are taken by the code of today."""
    finished = output(release, "train")
    expected = CheckpointManifest.load(storage.normalise(finished))
    folder = tmp_path / "line" / "train" / finished.name
    folder.mkdir(parents=True)
    mark_folder(storage.normalise(folder), "train")
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    (folder / "manifest.json").unlink()
    (folder / "model.safetensors").unlink()
    shutil.rmtree(only(folder, "checkpoints/step-00000072.*"))
    config = json.loads(only(release, "line/runs/*/train.json").read_text())
    command = [
        sys.executable,
        "-m",
        "trainer.task",
        f"--output={folder}",
        "--attempt=b",
        f"--config-json={json.dumps(config)}",
    ]
    command += [f"--shards={uri_of(release, 'shard')}", f"--profile={uri_of(release, 'profile')}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "checkpoints" / "attempt-000002.json").read_text())["step"] == 60
    result = CheckpointManifest.load(storage.normalise(folder))
    assert (result.step, result.position) == (expected.step, expected.position)
    same = {name: value for name, value in expected.environment.items() if name in ("cpu_capability", "torch", "numpy")}
    ours = load_model_state(storage.normalise(folder), result)
    theirs = load_model_state(storage.normalise(finished), expected)
    # The hash of the whole is over names, too, which had `network.` before them.
    assert set(ours) == set(theirs) and not any(name.startswith("network.") for name in ours)
    if {name: result.environment[name] for name in same} == same:
        assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
        # Later releases count more; what the release has counted is the same.
        assert expected.metrics.items() <= result.metrics.items()
    else:
        # Other kernels add in another order.
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-2, atol=1e-3)


@EVERY_RELEASE
def test_every_group_of_a_checkpoint_is_read(release: Path) -> None:
    folder = only(output(release, "train"), "checkpoints/step-00000060.*")
    groups: dict[str, Any] = load_groups(storage.normalise(folder), CheckpointManifest.load(storage.normalise(folder)))
    assert set(groups) == {"model", "optimizer", "ema", "guard"}


@EVERY_RELEASE
def test_an_export_is_verified_by_its_hashes(release: Path) -> None:
    """The engine is not kept here, and exactly that is said."""
    folder = output(release, "export")
    done = subprocess.run([sys.executable, "-m", "trainer.export.verify", str(folder)], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("failed ")]
    assert len(failed) == 1 and "model.fp16.sm89.engine is missing" in failed[0], done.stdout
