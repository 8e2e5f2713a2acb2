"""Checkpoints exist when their manifest does; what is staged is what is written, whatever training does meanwhile."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from contracts import storage
from contracts.config import CheckpointSection
from contracts.errors import ShardlineError, StorageError, TryAgain
from tests.trainer.checkpoint.attempts import Attempt, committed, file_of, groups, manifest, newest_valid
from trainer.checkpoint import manager as manager_module
from trainer.checkpoint.loading import load_groups
from trainer.checkpoint.manager import MAX_FAILURES, Schedule
from trainer.model.build import parameters_sha256


class Gate:
    """Stands in the way of storage.publish_stream until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        publish = storage.publish_stream

        def held(*arguments: Any) -> str:
            self.reached.set()
            assert self.open.wait(60)
            return publish(*arguments)

        monkeypatch.setattr(storage, "publish_stream", held)


def fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> str:
        raise error

    monkeypatch.setattr(storage, "publish_stream", fail)


def test_tensors_of_all_kinds_come_back_and_the_library_reads_them(tmp_path: Path) -> None:
    tied = torch.arange(6.0)
    tensors = {
        "brain": torch.randn(3, 1).bfloat16(),
        "count": torch.tensor(3),
        "flags": torch.tensor([True, False, True]),
        "last": torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last),
        "none": torch.empty(0, 4),
        "é": torch.randn(3)[::2],
        "tied": tied,
        "part of it": tied[2:4],
    }
    attempt = Attempt(tmp_path)
    assert attempt.manager.save(manifest(1), {"model": tensors, "scaler": {}})
    attempt.manager.wait()
    assert attempt.committed == [1]
    found = newest_valid(attempt.manager)
    assert found.manifest is not None
    assert (found.manifest.step, found.manifest.position, found.manifest.attempt, found.skipped) == (1, 16, 1, [])
    assert found.manifest.parameters_sha256 == parameters_sha256(tensors)
    ours = load_groups(found.uri, found.manifest)
    for read in (load_file(file_of(tmp_path, 1, "model.safetensors")), ours["model"]):
        assert read.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert read[name].dtype == tensor.dtype
            assert torch.equal(read[name], tensor)
    assert ours["scaler"] == {}


def test_a_save_beside_a_write_is_skipped_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, state = Gate(monkeypatch), groups(1)
    attempt = Attempt(tmp_path)
    assert attempt.manager.save(manifest(1), state)
    assert gate.reached.wait(60)
    # What training changes meanwhile is not in it.
    state["model"]["w"].fill_(99)
    assert not attempt.manager.save(manifest(2), groups(2))
    assert "skipped checkpoint at step 2" in attempt.said[-1]
    # One that is required waits.
    opener = threading.Timer(0.2, gate.open.set)
    opener.start()
    assert attempt.manager.save(manifest(3), groups(3), required=True)
    attempt.manager.wait()
    opener.join()
    assert committed(tmp_path) == [1, 3]
    assert torch.equal(load_file(file_of(tmp_path, 1, "model.safetensors"))["w"], torch.ones(3))


def test_a_write_that_is_waited_for_is_a_sign_of_life_until_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it may take longer than the limit of any section, and one that stands still is the watchdog's in the end."""
    monkeypatch.setattr(manager_module, "JOIN_INTERVAL_S", 0.01)
    gate, heard = Gate(monkeypatch), threading.Event()
    attempt = Attempt(tmp_path, alive=heard.set)
    heard.clear()
    attempt.manager.save(manifest(1), groups(1))
    opener = threading.Thread(target=lambda: (heard.wait(60), gate.open.set()))
    opener.start()
    assert attempt.manager.save(manifest(2), groups(2), required=True)
    opener.join()
    attempt.manager.wait()
    assert heard.is_set() and committed(tmp_path) == [1, 2]
    gate.open.clear()
    heard.clear()
    monkeypatch.setattr(manager_module, "WRITE_TIMEOUT_S", -1.0)
    attempt.manager.save(manifest(3), groups(3))
    threading.Timer(0.1, gate.open.set).start()
    with pytest.raises(TryAgain, match="it took longer than"):
        attempt.manager.wait()
    assert not heard.is_set()


@pytest.mark.parametrize(
    ("error", "failures"),
    [(TryAgain("no answer"), MAX_FAILURES), (StorageError("no permission", allowed="a", todo="b"), 1)],
    ids=["passes", "stays"],
)
def test_training_ends_when_no_checkpoint_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ShardlineError, failures: int
) -> None:
    attempt = Attempt(tmp_path)
    fail_with(error, monkeypatch)
    with pytest.raises(type(error), match=r"no answer|no permission"):
        for step in range(1, failures + 2):
            attempt.manager.save(manifest(step), groups(step), required=True)
    assert sum("could not be written" in message for message in attempt.said) == failures
    assert not list(tmp_path.glob("checkpoints/step-*")), "what was begun is cleared away"
    if failures > 1:
        monkeypatch.undo()
        with suppress(TryAgain):
            attempt.manager.wait()
        attempt.save(9)
        assert attempt.committed == [9]


def test_old_checkpoints_that_cannot_be_deleted_do_not_undo_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path, keep_last=1)
    attempt.save(1)

    def refuse(uri: str, *, manifest_name: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage, "delete_tree", refuse)
    attempt.save(2)
    assert committed(tmp_path) == [1, 2]
    assert "could not be deleted" in attempt.said[-1]


def test_steps_decide_or_the_clock_of_the_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps = Schedule(CheckpointSection(every_steps=3), is_first=True)
    assert by_steps.propose() == 0
    assert [step for step in range(1, 10) if by_steps.is_due(step)] == [3, 6, 9]
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first, other = (Schedule(CheckpointSection(), is_first=is_first) for is_first in (True, False))
    for seconds, proposed in ((0.0, 0), (299.0, 0), (300.0, 1)):
        now = 1000.0 + seconds
        assert (first.propose(), other.propose()) == (proposed, 0)
    first.agree(1, saves=0)
    assert first.is_due(7)
    # One that is skipped, since the one before is still being written, is not tried again at the next vote.
    first.saved()
    assert not first.is_due(8) and first.propose() == 0
