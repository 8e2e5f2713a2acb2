"""The newest and the best stay; nothing that is damaged, does not count or is not ours is touched."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import TryAgain
from tests.trainer.checkpoint.attempts import Attempt, committed, file_of, groups, manifest, newest_valid
from trainer.checkpoint.discovery import CheckpointFolder, choose_retained, score_of

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


def test_the_best_is_one_that_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path, keep_last=1)
    # Without a validation split it would be what was evaluated last.
    attempt.save(1, **evaluated(0.5, 1.0))
    attempt.save(2, **evaluated(0.4, 1.0))

    def fail(*arguments: Any) -> str:
        raise TryAgain("no answer")

    monkeypatch.setattr(storage, "publish_stream", fail)
    assert attempt.manager.save(manifest(3, **evaluated(0.9, 0.1)), groups(3))
    with pytest.raises(TryAgain):
        attempt.manager.wait()
    monkeypatch.undo()
    attempt.save(4, **evaluated(0.4, 1.0))
    newest = newest_valid(attempt.manager).manifest
    assert newest is not None
    assert (newest.best_step, newest.best_metrics["validation_accuracy"]) == (1, 0.5)
    # Better than what is there, if not than what was lost; and a later attempt knows it.
    attempt.save(5, **evaluated(0.6, 0.5))
    again = Attempt(tmp_path, keep_last=1)
    again.save(6)
    again.save(7, **evaluated(0.6, 0.5))
    newest = newest_valid(again.manager).manifest
    assert newest is not None
    assert (newest.step, newest.best_step, newest.best_metrics["validation_loss"]) == (7, 5, 0.5)
    assert committed(tmp_path) == [5, 7]


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


places = st.builds(CheckpointFolder, uri=st.just(""), step=st.integers(0, 60), attempt=st.integers(1, 3))
scores = st.none() | st.tuples(st.sampled_from([0.1, 0.5, 0.9]), st.sampled_from([-1.0, -2.0]))


@given(st.dictionaries(places, scores, min_size=1, max_size=25), st.integers(1, 4), st.integers(0, 60))
def test_what_is_kept(
    found: dict[CheckpointFolder, tuple[float, float] | None], keep_last: int, best_step: int
) -> None:
    kept = choose_retained(found, keep_last, best_step=best_step)
    newest_first = sorted({place.step for place in found}, reverse=True)
    steps = {place.step for place in kept}
    assert kept <= set(found)
    assert len(steps) == len(kept)
    assert steps >= set(newest_first[:keep_last])
    assert best_step in steps or best_step not in newest_first
    # A second look deletes nothing more, and what was let go is not missed when a new one comes.
    assert choose_retained({place: found[place] for place in kept}, keep_last, best_step=best_step) == kept
    newer = CheckpointFolder("", max(newest_first) + 1, 4)
    assert choose_retained({**found, newer: None}, keep_last, best_step=best_step) <= {*kept, newer}
    latest = {place.step: found[place] for place in sorted(found, key=lambda place: place.attempt)}
    best = max((score for score in latest.values() if score is not None), default=None)
    assert best is None or best in [found[place] for place in kept]
