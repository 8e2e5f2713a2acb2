"""What stays: the newest, the best, each Nth; nothing that is damaged, does not count or is not ours is touched."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.config import CheckpointSection
from tests.trainer.checkpoint.attempts import Attempt, committed, file_of, manifest
from trainer.checkpoint.retention import Candidate, choose_kept, score_of


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, keep_last=2)
    for step in range(1, 8):
        attempt.save(step, best_step=min(step, 3))
    assert committed(tmp_path) == [3, 6, 7]


@pytest.mark.parametrize(("metric", "kept"), [("validation_accuracy", [2, 3, 6]), ("validation_loss", [2, 4, 6])])
def test_the_best_by_a_metric_are_kept_of_those_that_were_evaluated(
    tmp_path: Path, metric: str, kept: list[int]
) -> None:
    attempt = Attempt(tmp_path, keep_last=1, keep_best=2, best_metric=metric)
    found = {1: (0.5, 0.9), 2: (0.9, 0.3), 3: (0.9, 0.4), 4: (0.8, 0.1), 5: (0.9, 0.5)}
    for step, (accuracy, loss) in found.items():
        metrics = {"validation_accuracy": accuracy, "validation_loss": loss}
        attempt.save(step, metrics=metrics, evaluated="model", best_step=2)
    # Metrics of an earlier step are not its own.
    attempt.save(6, metrics={"validation_accuracy": 1.0, "validation_loss": 0.0}, best_step=2)
    assert committed(tmp_path) == kept


def test_a_metric_that_is_no_number_is_no_score() -> None:
    for value in (float("nan"), float("inf")):
        metrics = {"validation_accuracy": value, "validation_loss": 0.1}
        assert score_of(manifest(1, evaluated="ema", metrics=metrics), "validation_accuracy") is None
    assert score_of(manifest(1, evaluated="model"), "validation_accuracy") is None


def test_each_nth_is_kept(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, keep_last=1, keep_every_steps=10)
    attempt.save(3, 9, 12, 15, 21, 29, 31)
    assert committed(tmp_path) == [12, 21, 31]


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
    st.integers(1, 3),
    st.none() | st.integers(1, 20),
    st.integers(0, 60),
)
def test_what_is_kept(found: list[Candidate], last: int, best: int, every: int | None, best_step: int) -> None:
    rules = CheckpointSection(keep_last=last, keep_best=best, keep_every_steps=every)
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
    assert scores[:best] == sorted((o.score for o in latest.values() if o.score is not None), reverse=True)[:best]
    if every is not None:
        for run in {step // every for step in newest_first if step >= every}:
            assert min(step for step in newest_first if step // every == run) in steps
