"""What stays: the newest, the best, each Nth; nothing that is damaged, does not count or is not ours is touched."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest
from contracts.config import CheckpointSection
from contracts.errors import TryAgain
from tests.trainer.checkpoint.attempts import Attempt, committed, file_of, groups, manifest
from trainer.checkpoint.retention import Candidate, choose_kept, score_of

JUDGED = {
    "headline": {"metric": "accuracy", "direction": "max"},
    "directions": {"accuracy": "max", "distance": "min"},
}


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, keep_last=2)
    for step in range(1, 8):
        # Without a validation split what was evaluated last is the best.
        attempt.save(step, evaluated="model" if step <= 3 else None)
    assert committed(tmp_path) == [3, 6, 7]


@pytest.mark.parametrize(
    ("metric", "kept"),
    [("", [2, 6]), ("validation_accuracy", [2, 6]), ("loss", [4, 6]), ("distance", [5, 6])],
)
def test_the_best_by_a_metric_are_kept_of_those_that_were_evaluated(
    tmp_path: Path, metric: str, kept: list[int]
) -> None:
    attempt = Attempt(tmp_path, keep_last=1, best_metric=metric)
    found = {1: (0.5, 0.9), 2: (0.9, 0.3), 3: (0.9, 0.4), 4: (0.8, 0.1), 5: (0.9, 0.5)}
    for step, (accuracy, loss) in found.items():
        # By the distance, of which lower is better, the fifth is the best; of two equal ones the one of lower loss.
        distance = {2: 0.5, 3: 0.4, 4: 0.5, 5: 0.1}.get(step, 0.9)
        metrics = {"validation_accuracy": accuracy, "validation_loss": loss, "validation_distance": distance}
        attempt.save(step, metrics=metrics, evaluated="model", **JUDGED)
    # Metrics of an earlier step are not its own.
    attempt.save(6, metrics=metrics | {"validation_accuracy": 1.0, "validation_loss": 0.0}, **JUDGED)
    assert committed(tmp_path) == kept


def evaluated(accuracy: float, loss: float) -> dict[str, Any]:
    return {"metrics": {"validation_accuracy": accuracy, "validation_loss": loss}, "evaluated": "model", **JUDGED}


def test_the_best_is_one_that_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path, keep_last=1)
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
    best = [(one.best_step, one.best_metrics["validation_accuracy"]) for one in newest(attempt)]
    assert best == [(1, 0.5)]
    # Better than what is there, if not than what was lost; and a later attempt knows it.
    attempt.save(5, **evaluated(0.6, 0.5))
    again = Attempt(tmp_path, keep_last=1)
    again.save(6)
    again.save(7, **evaluated(0.6, 0.5))
    assert [(one.step, one.best_step, one.best_metrics["validation_loss"]) for one in newest(again)] == [(7, 5, 0.5)]
    assert committed(tmp_path) == [5, 7]


def newest(attempt: Attempt) -> list[CheckpointManifest]:
    found = attempt.manager.newest_valid().manifest
    return [found] if found is not None else []


def test_the_best_that_is_whole_is_found(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, keep_last=9)
    for step, loss in ((1, 0.3), (2, 0.2), (3, 0.1), (4, 0.2)):
        attempt.save(step, **evaluated(0.5, loss))
    attempt.save(5)
    file_of(tmp_path, 3, "optimizer.safetensors").write_bytes(b"")
    order = []
    while (found := attempt.manager.find_best("model").manifest) is not None:
        order.append(found.step)
        path = file_of(tmp_path, found.step, "model.safetensors")
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    # By score, of equal ones the earlier; then what was not evaluated.
    assert order == [2, 4, 1, 5]
    assert [said.partition(";")[0] for said in attempt.said] == [
        f"warning: the best checkpoint is that of step {step}, not 3" for step in order
    ]
    assert "step-00000003.000001: optimizer.safetensors has 0 bytes" in attempt.said[0]


def test_what_does_not_count_is_not_the_best(tmp_path: Path) -> None:
    """Step 3 is committed by a process that was thought dead, after its successor has resumed from step 2."""
    zombie = Attempt(tmp_path, keep_last=9)
    zombie.save(1, 2, **evaluated(0.1, 1.0))
    zombie.save(3, **evaluated(0.9, 0.1))
    late = file_of(tmp_path, 3, MANIFEST_NAME)
    content = late.read_bytes()
    late.unlink()
    attempt = Attempt(tmp_path, keep_last=9)
    assert attempt.resumed_at == 2
    late.write_bytes(content)
    found = attempt.manager.find_best("model").manifest
    assert found is not None and found.step == 1


def test_a_metric_that_is_no_number_is_no_score() -> None:
    for value in (float("nan"), float("inf")):
        metrics = {"validation_accuracy": value, "validation_loss": 0.1}
        assert score_of(manifest(1, evaluated="ema", metrics=metrics, **JUDGED), "validation_accuracy") is None
    assert score_of(manifest(1, evaluated="model"), "validation_accuracy") is None


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


def test_the_manifest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path, keep_last=1)
    attempt.save(1)

    def killed(path: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        attempt.save(2)
    assert committed(tmp_path) == [2]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """Other names; a folder named like a checkpoint, of an attempt without a record; files beside."""
    folder = tmp_path / "checkpoints"
    for name in ("step-00000001.000077", "step-00000001.backup", "notes"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("x")
    attempt = Attempt(tmp_path, keep_last=1)
    attempt.save(2, 3)
    assert sorted(path.parent.name for path in folder.glob("*/file")) == [
        "notes",
        "step-00000001.000077",
        "step-00000001.backup",
    ]
    assert committed(tmp_path) == [3]


def test_what_earlier_attempts_left_unfinished_goes_once_something_newer_stands(tmp_path: Path) -> None:
    Attempt(tmp_path).save(1, 2)
    file_of(tmp_path, 2, MANIFEST_NAME).unlink()
    attempt = Attempt(tmp_path)
    assert file_of(tmp_path, 2, "model.safetensors").exists()
    attempt.save(3)
    assert not list(tmp_path.glob("checkpoints/step-00000002.*"))
    assert storage.display(attempt.manager.folder_uri) in attempt.said[-1]


candidates = st.builds(
    Candidate,
    step=st.integers(0, 60),
    attempt=st.integers(1, 3),
    score=st.none() | st.tuples(st.sampled_from([0.1, 0.5, 0.9]), st.sampled_from([-1.0, -2.0])),
)


@given(
    st.lists(candidates, min_size=1, max_size=25, unique_by=lambda one: (one.step, one.attempt)),
    st.integers(1, 4),
    st.integers(0, 60),
)
def test_what_is_kept(found: list[Candidate], last: int, best_step: int) -> None:
    rules = CheckpointSection(keep_last=last)
    kept = choose_kept(found, rules, best_step=best_step)
    newest_first = sorted({one.step for one in found}, reverse=True)
    steps = {one.step for one in kept}
    assert kept <= set(found)
    assert len(steps) == len(kept)
    assert steps >= set(newest_first[:last])
    if best_step in newest_first:
        assert best_step in steps
    # A second look deletes nothing more, and what was let go is not missed when a new one comes.
    assert choose_kept(kept, rules, best_step=best_step) == kept
    newer = Candidate(max(newest_first) + 1, 4)
    assert choose_kept([*found, newer], rules, best_step=best_step) <= {*kept, newer}
    scores = sorted((one.score for one in found if one.score is not None and one in kept), reverse=True)
    latest = {one.step: one for one in sorted(found, key=lambda one: one.attempt)}
    assert scores[:1] == sorted((o.score for o in latest.values() if o.score is not None), reverse=True)[:1]
