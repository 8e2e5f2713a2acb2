"""Checkpoints exist when their manifest does, and only if their files agree with it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest
from contracts.errors import DataError
from trainer.checkpoint.manager import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    CheckpointManager,
    load_model_state,
    load_optimizer_state,
)


def manifest(step: int, best_step: int = 0) -> CheckpointManifest:
    return CheckpointManifest(
        fingerprint="f",
        step=step,
        position=step * 16,
        epoch=0,
        slot_size=4,
        model={},
        classes=["a", "b"],
        data={},
        shards_fingerprint="s",
        metrics={},
        best_step=best_step,
        parameters_sha256="",
        environment={},
        files=[],
    )


def save(folder: Path, step: int, *, attempt: str = "a", best_step: int = 0, keep_last: int = 9) -> CheckpointManager:
    manager = CheckpointManager(storage.normalise(folder), attempt=attempt, keep_last=keep_last)
    manager.save(manifest(step, best_step), {"w": torch.full((3,), float(step))}, {"w/exp_avg": torch.ones(3)})
    return manager


def steps(folder: Path) -> list[int]:
    return sorted(int(path.parent.name[5:13]) for path in folder.rglob(MANIFEST_NAME))


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    found = save(tmp_path, 7).newest_valid()
    assert found is not None
    uri, document, skipped = found
    assert (document.step, document.position, skipped) == (7, 112, [])
    assert torch.equal(load_model_state(uri, document)["w"], torch.full((3,), 7.0))
    assert torch.equal(load_optimizer_state(uri, document)["w/exp_avg"], torch.ones(3))


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    manager = CheckpointManager(storage.normalise(tmp_path), attempt="a", keep_last=1)
    assert manager.newest_valid() is None


def test_tied_weights_are_saved(tmp_path: Path) -> None:
    tensor = torch.arange(6.0)
    manager = CheckpointManager(storage.normalise(tmp_path), attempt="a", keep_last=1)
    manager.save(manifest(1), {"one": tensor, "two": tensor, "part": tensor[2:4]}, {})
    uri, document, _ = manager.newest_valid() or pytest.fail("not found")
    assert torch.equal(load_model_state(uri, document)["part"], tensor[2:4])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", [MODEL_FILE, OPTIMIZER_FILE])
@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over_and_named(
    tmp_path: Path, damage: Callable[[Path], None], name: str
) -> None:
    save(tmp_path, 1)
    manager = save(tmp_path, 2)
    damage(next(tmp_path.glob(f"checkpoints/step-00000002.*/{name}")))
    found = manager.newest_valid()
    assert found is not None
    assert found[1].step == 1
    assert len(found[2]) == 1
    assert "step-00000002" in found[2][0]
    assert name in found[2][0]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"kind": "shards"}', b'{"kind": "checkpoint"'])
def test_a_damaged_manifest_is_passed_over(tmp_path: Path, content: bytes) -> None:
    save(tmp_path, 1)
    manager = save(tmp_path, 2)
    next(tmp_path.glob("checkpoints/step-00000002.*/manifest.json")).write_bytes(content)
    found = manager.newest_valid()
    assert found is not None
    assert found[1].step == 1
    assert len(found[2]) == 1


def test_data_without_a_manifest_is_nothing_and_the_step_can_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 2, attempt="a")
    next(tmp_path.rglob(MANIFEST_NAME)).unlink()
    assert CheckpointManager(storage.normalise(tmp_path), attempt="b", keep_last=1).newest_valid() is None
    found = save(tmp_path, 2, attempt="b").newest_valid()
    assert found is not None
    assert found[0].endswith("step-00000002.b")


def test_a_kill_before_the_manifest_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def killed(uri: str, content: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2)
    monkeypatch.undo()
    found = CheckpointManager(storage.normalise(tmp_path), attempt="b", keep_last=1).newest_valid()
    assert found is not None
    assert found[1].step == 1


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in range(1, 8):
        save(tmp_path, step, best_step=min(step, 3), keep_last=2)
    assert steps(tmp_path) == [3, 6, 7]


def test_damaged_newer_checkpoints_do_not_push_out_good_ones(tmp_path: Path) -> None:
    """After a resume from an older one: what is saved then is behind the damaged ones, and all that there is."""
    for step in (20, 30):
        save(tmp_path, step)
        truncate(next(tmp_path.glob(f"checkpoints/step-{step:08d}.*/{MODEL_FILE}")))
    for step in (5, 10, 15):
        found = save(tmp_path, step, attempt="b", keep_last=2).newest_valid()
        assert found is not None
        assert found[1].step == step
    assert steps(tmp_path) == [10, 15, 20, 30]


def test_retention_deletes_the_manifest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def killed(path: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2, keep_last=1)
    assert steps(tmp_path) == [2]


def test_loading_a_damaged_checkpoint_is_a_user_error(tmp_path: Path) -> None:
    uri, document, _ = save(tmp_path, 1).newest_valid() or pytest.fail("not found")
    flip(next(tmp_path.rglob(MODEL_FILE)))
    with pytest.raises(DataError, match="crc32c"):
        load_model_state(uri, document)
