from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import storage
from contracts.artifacts import ExportManifest
from contracts.errors import EXIT_UNPROVEN
from contracts.stage import run_stage
from tests.trainer.export.conftest import write_shards
from trainer.export import inputs, verify
from trainer.export.gates.samples import draw_samples, samples_of, stratify
from trainer.export.task import export


def test_each_class_has_its_share_in_a_fixed_order() -> None:
    labels = np.random.default_rng(0).choice(4, 5000, p=[0.6, 0.3, 0.08, 0.02]).astype(np.int32)
    places = stratify(labels, 500, seed=7)
    assert places == sorted(set(places)) and len(places) == 500
    found, all_of_them = (np.bincount(given, minlength=4) for given in (labels[places], labels))
    assert np.abs(found - all_of_them / 10).max() <= 1
    assert stratify(labels, 500, seed=7) == places
    assert len(set(stratify(labels, 500, seed=8)) & set(places)) < 150


def test_labels_that_are_no_classes_are_drawn_at_random() -> None:
    places = stratify(np.full(1000, -1, np.int32), 64, seed=0)
    assert len(set(places)) == 64
    assert 300 < np.mean(places) < 700 and np.std(np.diff(places)) > 3


def test_a_split_that_is_small_enough_is_taken_whole(tmp_path: Path) -> None:
    shards, uri = write_shards(tmp_path / "shards", samples=70), storage.normalise(tmp_path / "shards")
    assert draw_samples(uri, shards, most=70, seed=0) is None
    places = draw_samples(uri, shards, most=69, seed=0)
    assert places is not None and len(places) == 69


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_the_gates_run_a_part_and_say_so_and_verify_runs_the_same(
    line: Any, exported: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setattr("trainer.export.making.PROOF_SAMPLES", 64)
    from tests.trainer.export.conftest import write_checkpoint

    for name in ("shards", "train"):
        shutil.rmtree(line.folder / name)
    shards = write_shards(line.folder / "shards", samples=90)
    write_checkpoint(line.folder / "train", exported.model, shards)
    settings = {"precision": "fp32", "runtime": "tensorrt_rtx", "targets": ["l4"]}
    assert run_stage("export", export, line.arguments(export=settings)) == 0
    uri = storage.normalise(line.manifests[0].parent)
    manifest = ExportManifest.load(uri)
    assert (manifest.test_samples, manifest.proof_samples, manifest.proof_seed) == (90, 64, 0)
    assert manifest.parity["onnx"]["fp32"].samples == 64
    (program, evaluation) = (
        next(gate for gate in manifest.gates if gate.name == name) for name in ("program", "evaluation")
    )
    assert program.figures["samples"] == 64
    assert evaluation.status == "passed"
    assert evaluation.figures["torch accuracy"] == manifest.metrics["torch"]["accuracy"]
    places = samples_of(manifest, storage.normalise(line.folder / "shards"), shards)
    assert places is not None and len(places) == 64
    capfd.readouterr()
    assert verify.main([str(line.manifests[0].parent), "--shards", str(line.folder / "shards")]) == EXIT_UNPROVEN
    assert "passed        program" in capfd.readouterr().out


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_another_version_or_other_code_is_another_export(line: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = line.arguments(export={"precision": "fp32", "runtime": "tensorrt_rtx", "targets": ["l4"]})
    assert run_stage("export", export, arguments) == 0
    assert run_stage("export", export, arguments) == 0
    assert len(line.manifests) == 1
    for name, changed in (("hash_code", lambda: "0" * 64), ("version_of", lambda package: "9.9")):
        monkeypatch.setattr(inputs, name, changed)
        assert run_stage("export", export, arguments) == 0
    assert len(line.manifests) == 3
