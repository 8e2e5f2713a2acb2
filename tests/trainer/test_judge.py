"""Two exports on one test split: the verdict, its error rates, classes by name, and what cannot be compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest, ShippedFile
from contracts.errors import CheckFailed
from contracts.process import thread_environment
from tests.trainer.export import colours
from tests.trainer.export.colours import CLASSES, GRAPH_NAME
from tests.trainer.tasks.splits import Made, make_split
from trainer import judge as command
from trainer.judge import GROUPS, draw_counts, find_interval, loss_limit, main
from trainer.tasks.metrics import SplitMetrics

PER_CLASS = 40
EXCHANGED = ["black", "red", "green", "grey", "blue", "white"]


# --- the statistics ---------------------------------------------------------------------------------------------------


def test_error_rates_of_400_pairs() -> None:
    """Models that are right on 90 % of the samples and disagree on some, with a tolerance of 0.02."""
    samples, discordant = 1_000, 0.05
    random, draws = np.random.default_rng(1), draw_counts(GROUPS)

    def share_kept_out(loss: float) -> float:
        # By group: samples that only the candidate, only production, or both have right.
        shares = [(discordant - loss) / 2, (discordant + loss) / 2, 0.9 - discordant / 2, 0.1 - discordant / 2]
        gained, lost, _, _ = np.moveaxis(random.multinomial(samples // GROUPS, shares, (400, GROUPS)), 2, 0)
        losses = (lost - gained) / samples
        limits = [loss_limit(find_interval(draws @ -pair), 0.02) for pair in losses]
        return float(np.mean(losses.sum(axis=1) > limits))

    assert share_kept_out(0.0) <= 0.05
    assert share_kept_out(0.03) >= 0.95


def test_a_drawn_metric_is_that_of_the_drawn_batches() -> None:
    """Sums, largest and smallest values: a group that is drawn twice counts twice."""
    logits, labels = make_split(60)
    batches = [(outputs, {"label": label}) for outputs, label in zip(logits.split(20), labels.split(20), strict=True)]
    for name in Made().metrics():
        metrics, expected = (SplitMetrics(Made(), torch.device("cpu")) for _ in range(2))
        groups = []
        for batch in batches:
            metrics.update(*batch)
            groups.append(command.take_states(metrics.by_name[name]))
        for counts in ([2, 0, 1], [1, 1, 1]):
            expected.by_name[name].reset()
            for number, count in enumerate(counts):
                for _ in range(count):
                    expected.update(*batches[number])
            model = command._Evaluation(metrics.headline, metrics.by_name[name], groups, 60, "")
            assert command.metric_of(model, counts) == pytest.approx(expected.values()[name])


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def few_groups_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "GROUPS", 30)
    monkeypatch.setattr(command, "DRAWS", 100)
    monkeypatch.setattr(command, "threads_per_rank", lambda ranks: 1)
    for name, value in thread_environment(1).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, and a sound export of each kind of labels."""
    place = tmp_path_factory.mktemp("judge")
    colours.write_shards(place / "shards", per_class=PER_CLASS)
    colours.write_export(place / "sound")
    colours.write_shards(place / "several-shards", per_class=PER_CLASS, several=True)
    document = colours.write_export(place / "several", thresholds=[0.3] * len(CLASSES))
    headline = document.headline.model_copy(update={"metric": "average_precision"})
    write(place / "several", task="image_multilabel", headline=headline, metrics={"fp32": {"average_precision": 1.0}})
    return place


def write(folder: Path, **changes: Any) -> None:
    """Write the manifest of an export whose files have changed."""
    uri = storage.normalise(folder)
    document = ExportManifest.load(uri)
    files = [ShippedFile.of(uri, entry.name) for entry in document.files]
    (folder / MANIFEST_NAME).write_bytes(document.model_copy(update={"files": files, **changes}).sealed().to_json())


def changed(sound: Path, folder: Path, name: str, content: Any) -> Path:
    """Return a copy of an export with another file, of which its manifest knows."""
    shutil.copytree(sound, folder)
    (folder / name).write_text(json.dumps(content))
    write(folder)
    return folder


def judge(
    capsys: pytest.CaptureFixture[str], candidate: Path, production: Path, shards: Path, *more: str
) -> tuple[int, Mapping[str, Any]]:
    given = ["--candidate", str(candidate), "--production", str(production), "--shards", str(shards), *more]
    code = main(given)
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_worse_model_ends_with_1(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worse = changed(place / "sound", tmp_path / "worse", "labels.json", EXCHANGED)
    code, result = judge(capsys, worse, place / "sound", place / "shards")
    assert (code, result["verdict"], result["metric"], result["samples"]) == (1, "worse", "accuracy", 6 * PER_CLASS)
    assert result["difference"] == pytest.approx(result["candidate"] - result["production"])
    assert result["candidate"] < 0.7
    low, high = result["interval"]
    assert low < result["difference"] < high < -0.02
    assert (result["left_out"], result["classes_gained"], result["classes_lost"]) == (0, [], [])
    assert result["ran"]["candidate"].startswith(f"{GRAPH_NAME} by onnxruntime ")
    assert judge(capsys, worse, place / "sound", place / "shards") == (code, result)
    # A tolerance that lets it pass, and the better model beside it.
    assert judge(capsys, worse, place / "sound", place / "shards", "--tolerance", "0.5")[0] == 0
    code, result = judge(capsys, place / "sound", worse, place / "shards")
    assert (code, result["verdict"]) == (0, "not worse") and result["interval"][0] > 0


def test_classes_are_compared_by_name(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = changed(place / "sound", tmp_path / "old", "labels.json", [*CLASSES[:5], "gold"])
    code, result = judge(capsys, place / "sound", old, place / "shards")
    assert (code, result["classes_gained"], result["classes_lost"]) == (0, ["white"], ["gold"])
    assert (result["samples"], result["left_out"]) == (5 * PER_CLASS, PER_CLASS)
    # Both say the same: production's gold is as wrong as the candidate's white.
    assert result["candidate"] == result["production"] > 0.6


def test_each_model_s_inputs_are_prepared_as_its_export_says(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = json.loads((place / "sound" / "preprocess.json").read_text())
    shifted = changed(place / "sound", tmp_path / "shifted", "preprocess.json", {**entries, "mean": [0.0] * 3})
    code, result = judge(capsys, shifted, place / "sound", place / "shards")
    assert (code, result["verdict"]) == (1, "worse")
    alone = judge(capsys, place / "sound", place / "sound", place / "shards")[1]
    assert result["production"] == alone["production"] == alone["candidate"]


def test_several_labels_are_compared_by_average_precision(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound, shards = place / "several", place / "several-shards"
    labels = json.loads((sound / "labels.json").read_text())
    exchanged = [{**entry, "label": name} for entry, name in zip(labels, EXCHANGED, strict=True)]
    worse = changed(sound, tmp_path / "worse", "labels.json", exchanged)
    code, result = judge(capsys, worse, sound, shards)
    assert (code, result["metric"], result["samples"]) == (1, "average_precision", 6 * PER_CLASS)
    old = changed(sound, tmp_path / "old", "labels.json", [*labels[:5], {**labels[5], "label": "gold"}])
    code, result = judge(capsys, sound, old, shards)
    assert (code, result["classes_gained"], result["left_out"]) == (0, ["white"], 0)
    assert result["candidate"] == result["production"] > 0.6


def test_an_engine_runs_on_its_gpu_and_elsewhere_its_graph_does(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, shards = place / "sound", place / "shards"
    folder = Path(shutil.copytree(sound, tmp_path / "engine"))
    # Whatever GPU this machine has, no GPU loads this.
    colours.write_engine(folder, b"an engine")
    code, result = judge(capsys, folder, sound, shards)
    assert (code, result["difference"]) == (0, 0.0) and result["ran"]["candidate"].startswith(f"{GRAPH_NAME} by onnx")

    def fail(inputs: object) -> None:
        raise CheckFailed("the engine does not run")

    # Not 1, which says that the candidate is worse.
    monkeypatch.setattr(command, "open_runner", lambda folder: (fail, "an engine"))
    assert main(["--candidate", str(folder), "--production", str(sound), "--shards", str(shards)]) == 2
    assert "its model does not run: the engine does not run" in capsys.readouterr().err


def test_what_cannot_be_compared_ends_with_2(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound, shards = place / "sound", place / "shards"
    damaged = Path(shutil.copytree(sound, tmp_path / "damaged"))
    (damaged / "labels.json").write_text(json.dumps(EXCHANGED))
    broken = Path(shutil.copytree(sound, tmp_path / "broken"))
    (broken / GRAPH_NAME).write_bytes(b"no graph")
    colours.write_manifest(broken)
    unknown = changed(sound, tmp_path / "unknown", "labels.json", list("abcdef"))
    other = Path(shutil.copytree(shards, tmp_path / "other"))
    document = json.loads((other / MANIFEST_NAME).read_text())
    (other / MANIFEST_NAME).write_text(json.dumps({**document, "format_version": 1}))
    for candidate, production, given, words in (
        (sound, damaged, shards, "labels.json has"),
        (broken, sound, shards, "its model does not run"),
        (place / "several", sound, shards, "the candidate is of task image_multilabel"),
        (sound, unknown, shards, "0 test samples can be compared; 240 are of classes that production does not know"),
        (sound, sound, other, "format"),
        (sound, sound, tmp_path / "none", "none"),
    ):
        arguments = ["--candidate", str(candidate), "--production", str(production), "--shards", str(given)]
        assert main(arguments) == 2, words
        out, err = capsys.readouterr()
        assert not out and words in err
        assert [line.split(":")[0] for line in err.splitlines()] == ["judge", "  allowed", "  to do"]
    assert main([*arguments[:4], "--shards", str(shards), "--tolerance", "2"]) == 2
