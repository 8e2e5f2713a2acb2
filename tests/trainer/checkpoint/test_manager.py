"""Checkpoints exist when their manifest does; what is staged is what is written, whatever training does meanwhile."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.config import CheckpointSection
from contracts.errors import StorageError, TryAgain
from tests.trainer.checkpoint.attempts import Attempt, committed, file_of, groups, manifest
from trainer.checkpoint import writer
from trainer.checkpoint.commit import MAX_FAILURES, Committer, Peers
from trainer.checkpoint.discovery import Superseded
from trainer.checkpoint.loading import load_group, load_model_state
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


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.save(7)
    assert attempt.committed == [7]
    found = attempt.manager.newest_valid()
    assert found.manifest is not None
    assert (found.manifest.step, found.manifest.position, found.manifest.attempt, found.skipped) == (7, 112, 1, [])
    assert torch.equal(load_model_state(found.uri, found.manifest)["w"], torch.full((3,), 7.0))
    assert torch.equal(load_group(found.uri, found.manifest, "optimizer")["w/exp_avg"], torch.full((3,), 7.5))
    assert found.manifest.parameters_sha256 == parameters_sha256(groups(7)["model"])


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    tensors = {
        "double": torch.randn(2, 3, dtype=torch.float64),
        "half": torch.randn(5).half(),
        "brain": torch.randn(3, 1).bfloat16(),
        "count": torch.tensor(3),
        "flags": torch.tensor([True, False, True]),
        "bytes": torch.arange(3, dtype=torch.uint8),
        "last": torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last),
        "none": torch.empty(0, 4),
        "é": torch.randn(3)[::2],
    }
    attempt = Attempt(tmp_path)
    assert attempt.manager.save(manifest(1), {"model": tensors, "scaler": {}})
    attempt.manager.wait()
    read = load_file(file_of(tmp_path, 1, "model.safetensors"))
    found = attempt.manager.newest_valid()
    assert found.manifest is not None
    ours = load_group(found.uri, found.manifest, "model")
    assert set(read) == set(ours) == set(tensors)
    for name, tensor in tensors.items():
        for other in (read[name], ours[name]):
            assert other.dtype == tensor.dtype
            assert torch.equal(other, tensor)
    assert load_group(found.uri, found.manifest, "scaler") == {}


def test_tied_weights_are_saved(tmp_path: Path) -> None:
    tensor = torch.arange(6.0)
    attempt = Attempt(tmp_path)
    attempt.manager.save(manifest(1), {"model": {"one": tensor, "two": tensor, "part": tensor[2:4]}})
    attempt.manager.wait()
    found = attempt.manager.newest_valid()
    assert found.manifest is not None
    assert torch.equal(load_model_state(found.uri, found.manifest)["part"], tensor[2:4])


def test_what_training_changes_while_a_checkpoint_is_written_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, state = Gate(monkeypatch), groups(1)
    attempt = Attempt(tmp_path)
    attempt.manager.save(manifest(1), state)
    assert gate.reached.wait(60)
    state["model"]["w"].fill_(99)
    gate.open.set()
    attempt.manager.wait()
    found = attempt.manager.newest_valid()
    assert found.manifest is not None
    assert torch.equal(load_model_state(found.uri, found.manifest)["w"], torch.ones(3))


def test_with_one_buffer_a_save_beside_a_write_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    attempt = Attempt(tmp_path)
    assert attempt.manager.save(manifest(1), groups(1))
    assert gate.reached.wait(60)
    assert not attempt.manager.save(manifest(2), groups(2))
    assert "no checkpoint at step 2" in attempt.said[-1]
    # One that is required waits.
    opener = threading.Timer(0.2, gate.open.set)
    opener.start()
    assert attempt.manager.save(manifest(3), groups(3), required=True)
    attempt.manager.wait()
    opener.join()
    assert committed(tmp_path) == [1, 3]


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_write_that_is_waited_for_shows_that_it_gets_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gets_on: bool
) -> None:
    """Its own limit is WRITE_TIMEOUT_S; one that stands still is the watchdog's."""
    monkeypatch.setattr(writer, "LOOK_EVERY_S", 0.01)
    heard, reached = threading.Event(), threading.Event()
    publish = storage.publish_stream

    def slow(uri: str, stream: Any, size: int) -> str:
        if not reached.is_set():
            reached.set()
            for _ in range(1000 if gets_on else 10):
                if gets_on:
                    stream.read(1)
                    stream.seek(0)
                if heard.wait(0.02):
                    break
            assert heard.is_set() == gets_on
        return publish(uri, stream, size)

    attempt = Attempt(tmp_path, alive=heard.set)
    heard.clear()
    monkeypatch.setattr(storage, "publish_stream", slow)
    attempt.manager.save(manifest(1), groups(1))
    assert reached.wait(20)
    assert attempt.manager.save(manifest(2), groups(2), required=True)
    attempt.manager.wait()
    assert committed(tmp_path) == [1, 2]


@pytest.mark.parametrize("write_timeout_s", [1800, 0])
def test_a_first_rank_that_waits_for_the_others_gets_on_within_the_limit_of_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_timeout_s: int
) -> None:
    monkeypatch.setattr(writer, "LOOK_EVERY_S", 0.01)
    heard = threading.Event()
    waits: list[bool] = []

    def gather(mine: object, answers: list[object], **options: Any) -> None:
        answers[:] = [([], None), ([], None)]
        waits.append(heard.wait(60 if write_timeout_s else 0.1))

    monkeypatch.setattr(dist, "gather_object", gather)
    monkeypatch.setattr(Committer, "_commit", lambda *arguments: None)
    monkeypatch.setattr("trainer.checkpoint.commit.WRITE_TIMEOUT_S", write_timeout_s)
    thread = writer.Writer()
    committer = Committer(
        f"file://{tmp_path}",
        rules=CheckpointSection(),
        peers=Peers(0, 2, cast("Any", object())),
        log=print,
        on_piece=thread.get_on,
        on_wait=thread.get_on_until,
    )
    thread.submit(0, lambda: committer.write(manifest(1), [], sharded=True))
    thread.wait(heard.set)
    thread.raise_error()
    assert waits == [bool(write_timeout_s)]


def test_a_state_of_another_shape_takes_new_buffers(tmp_path: Path) -> None:
    """An optimizer has no state before its first step."""
    attempt = Attempt(tmp_path)
    attempt.manager.save(manifest(0), {"model": {"w": torch.ones(2)}, "optimizer": {}})
    attempt.manager.wait()
    attempt.save(1)
    assert torch.equal(load_file(file_of(tmp_path, 1, "optimizer.safetensors"))["w/exp_avg"], torch.full((3,), 1.5))


def test_a_kill_before_the_manifest_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    attempt.save(1)

    def killed(uri: str, content: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "publish", killed)
    attempt.manager.save(manifest(2), groups(2))
    with pytest.raises(KeyboardInterrupt):
        attempt.manager.wait()
    monkeypatch.undo()
    assert file_of(tmp_path, 2, "model.safetensors").exists()
    assert Attempt(tmp_path).resumed_at == 1


def test_the_step_can_be_saved_again_by_the_next_attempt(tmp_path: Path) -> None:
    """Also within one launch: torchrun starts a rank again under the same id."""
    Attempt(tmp_path).save(2)
    next(tmp_path.rglob(MANIFEST_NAME)).unlink()
    attempt = Attempt(tmp_path)
    assert attempt.resumed_at is None
    attempt.save(2)
    assert Attempt(tmp_path).resumed_at == 2
    # What the first left unfinished is gone.
    assert [path.name for path in sorted(tmp_path.glob("checkpoints/step-*"))] == ["step-00000002.000002"]


def test_a_failed_write_is_said_cleared_away_and_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)

    def fail(*arguments: Any) -> str:
        raise TryAgain("no answer")

    monkeypatch.setattr(storage, "publish_stream", fail)
    assert attempt.manager.save(manifest(1), groups(1))
    with pytest.raises(TryAgain, match="no answer"):
        attempt.manager.wait()
    assert "step-00000001" in attempt.said[-1]
    assert "no answer" in attempt.said[-1]
    monkeypatch.undo()
    attempt.save(2)
    assert attempt.committed == [2]
    assert [path.name for path in tmp_path.glob("checkpoints/step-*")] == ["step-00000002.000001"]


def test_training_ends_when_no_checkpoint_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)

    def fail(*arguments: Any) -> str:
        raise TryAgain("no answer")

    monkeypatch.setattr(storage, "publish_stream", fail)
    with pytest.raises(TryAgain, match="no answer"):
        for step in range(1, MAX_FAILURES + 2):
            attempt.manager.save(manifest(step), groups(step), required=True)
    assert sum("could not be written" in said for said in attempt.said) == MAX_FAILURES


def test_what_can_never_work_ends_training_at_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)

    def fail(*arguments: Any) -> str:
        raise StorageError("no permission", allowed="a", todo="b")

    monkeypatch.setattr(storage, "publish_stream", fail)
    attempt.manager.save(manifest(1), groups(1))
    with pytest.raises(StorageError, match="no permission"):
        attempt.manager.save(manifest(2), groups(2), required=True)


def test_a_process_that_was_replaced_commits_nothing_and_ends(tmp_path: Path) -> None:
    zombie = Attempt(tmp_path)
    zombie.save(10)
    successor = Attempt(tmp_path)
    zombie.manager.save(manifest(20), groups(20))
    with pytest.raises(Superseded, match=r"attempt 2 has begun since, at step 10: run \w+ trains the same") as caught:
        zombie.manager.wait()
    assert caught.value.exit_code == 2
    assert committed(tmp_path) == [10]
    successor.save(15)
    assert Attempt(tmp_path).resumed_at == 15


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
