"""The newest and the best stay; nothing that is damaged, does not count or is not ours is touched."""

from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from tests.trainer.checkpoint.attempts import Attempt, committed, file_of, manifest
from trainer.checkpoint.discovery import score_of

JUDGED = {
    "headline": {"metric": "accuracy", "direction": "max"},
    "directions": {"accuracy": "max", "distance": "min"},
}


def evaluated(accuracy: float, loss: float) -> dict[str, Any]:
    return {"metrics": {"validation_accuracy": accuracy, "validation_loss": loss}, "evaluated": "model", **JUDGED}


@pytest.mark.parametrize(
    ("metric", "kept"),
    [("", [2, 6]), ("loss", [4, 6]), ("distance", [5, 6])],
)
def test_the_best_by_a_metric_are_kept_of_those_that_were_evaluated(
    tmp_path: Path, metric: str, kept: list[int]
) -> None:
    attempt = Attempt(tmp_path, keep_last=1, best_metric=metric)
    evaluations = {1: (0.5, 0.9), 2: (0.9, 0.3), 3: (0.9, 0.4), 4: (0.8, 0.1), 5: (0.9, 0.5)}
    for step, (accuracy, loss) in evaluations.items():
        # By the distance, of which lower is better, the fifth is the best; of two equal ones the one of lower loss.
        distance = {2: 0.5, 3: 0.4, 4: 0.5, 5: 0.1}.get(step, 0.9)
        metrics = {"validation_accuracy": accuracy, "validation_loss": loss, "validation_distance": distance}
        attempt.save(step, metrics=metrics, evaluated="model", **JUDGED)
    # Metrics of an earlier step are not its own.
    attempt.save(6, metrics=metrics | {"validation_accuracy": 1.0, "validation_loss": 0.0}, **JUDGED)
    assert committed(tmp_path) == kept
    for value in (float("nan"), float("inf")):
        assert score_of(manifest(1, **evaluated(value, 0.1)), "validation_accuracy") is None


def test_damaged_newer_checkpoints_do_not_push_out_good_ones(tmp_path: Path) -> None:
    """After a resume from an older one: what is saved then is behind the damaged ones, and all that there is."""
    Attempt(tmp_path, keep_last=9).save(20, 30)
    for step in (20, 30):
        path = file_of(tmp_path, step, "model.safetensors")
        path.write_bytes(path.read_bytes()[:-1])
    for step in (5, 10, 15):
        Attempt(tmp_path, keep_last=2).save(step)
    assert Attempt(tmp_path).resumed_at == 15
    assert committed(tmp_path) == [10, 15, 20, 30]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """Other names; a folder named like a checkpoint, of an attempt without a record; files beside."""
    folder = tmp_path / "checkpoints"
    names = ("notes", "step-00000001.000077", "step-00000001.backup")
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("x")
    attempt = Attempt(tmp_path, keep_last=1)
    attempt.save(2, 3)
    assert sorted(path.parent.name for path in folder.glob("*/file")) == list(names)
    assert committed(tmp_path) == [3]


def test_what_earlier_attempts_left_unfinished_goes_once_something_newer_stands(tmp_path: Path) -> None:
    Attempt(tmp_path).save(1, 2)
    file_of(tmp_path, 2, MANIFEST_NAME).unlink()
    attempt = Attempt(tmp_path)
    assert file_of(tmp_path, 2, "model.safetensors").exists()
    # The same step again, by another attempt.
    attempt.save(2)
    assert [path.name for path in sorted(tmp_path.glob("checkpoints/step-*2.*"))] == ["step-00000002.000002"]
    assert storage.display(attempt.manager.folder_uri) in attempt.said[-1]
