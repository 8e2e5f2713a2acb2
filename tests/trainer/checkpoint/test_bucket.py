"""Checkpoints in a bucket, through the real client: create-only, checksummed, patient for a bounded time."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import TryAgain
from contracts.stores import gcs
from rehearsal.gcs import BucketServer, Rule
from tests.trainer.checkpoint.attempts import Attempt, groups, manifest, newest_valid
from trainer.checkpoint.discovery import Superseded
from trainer.checkpoint.loading import load_model_state

FOLDER = "gs://bucket-1/line/train"
pytestmark = [
    pytest.mark.usefixtures("bucket_server"),
    # A connection that an answer of 503 has broken is closed when it is collected.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def closed_client() -> Iterator[None]:
    yield
    gcs.close()


def steps() -> list[int]:
    found = storage.list_objects(f"{FOLDER}/checkpoints")
    return [int(item.name[5:13]) for item in found if item.name.endswith(MANIFEST_NAME)]


def flip(uri: str) -> None:
    content = bytearray(storage.read_bytes(uri))
    content[-1] ^= 1
    storage.replace(uri, bytes(content))


def test_a_checkpoint_comes_back_and_old_ones_go() -> None:
    attempt = Attempt(FOLDER, keep_last=2)
    attempt.save(1, 2, 3)
    again = Attempt(FOLDER)
    assert (again.resumed_at, again.said, steps()) == (3, [], [2, 3])
    found = newest_valid(again.manager)
    assert found.manifest is not None
    assert torch.equal(load_model_state(found.uri, found.manifest)["w"], torch.full((3,), 3.0))


def test_every_write_is_create_only_and_carries_its_checksum(bucket_server: BucketServer) -> None:
    Attempt(FOLDER).save(1)
    writes = [entry for entry in bucket_server.access_log.entries() if entry.operation.startswith("uploads")]
    assert writes
    with pytest.raises(storage.AlreadyPublished):
        storage.publish_stream(f"{FOLDER}/checkpoints/attempt-000001.json", _stream(b"other"), 5)
    assert storage.publish_stream(f"{FOLDER}/new", _stream(b"other"), 5) == storage.crc32c(b"other")
    # The same content a second time is a retry after a lost answer.
    assert storage.publish_stream(f"{FOLDER}/new", _stream(b"other"), 5) == storage.crc32c(b"other")


def _stream(content: bytes) -> Any:
    import io

    return io.BytesIO(content)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", MANIFEST_NAME])
def test_damage_is_passed_over(name: str) -> None:
    Attempt(FOLDER).save(1, 2)
    uri = f"{FOLDER}/checkpoints/step-00000002.000001/{name}"
    if name == MANIFEST_NAME:
        storage.delete(uri)
    else:
        flip(uri)
    attempt = Attempt(FOLDER)
    assert attempt.resumed_at == 1
    assert "step-00000002" in attempt.said[0]


def test_a_storm_of_503_is_waited_out(bucket_server: BucketServer) -> None:
    attempt = Attempt(FOLDER)
    bucket_server.faults.set(
        Rule(method="POST", status=503, nth=(1, 2, 4)),
        Rule(method="PUT", status=503, nth=(1,)),
        Rule(method="GET", status=503, nth=(2,)),
    )
    attempt.save(1)
    bucket_server.faults.set()
    assert Attempt(FOLDER).resumed_at == 1
    gc.collect()


def test_a_lost_answer_of_the_commit_is_a_commit(bucket_server: BucketServer) -> None:
    attempt = Attempt(FOLDER)
    bucket_server.faults.set(Rule(method="POST", object=f"*{MANIFEST_NAME}", status=503, after=True, limit=1))
    attempt.save(1)
    assert bucket_server.faults.hits() == [1]
    assert Attempt(FOLDER).resumed_at == 1


def test_a_storm_without_end_is_given_up_and_the_checkpoint_before_stands(
    bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs, "RETRY_DEADLINE_S", 2.0)
    attempt = Attempt(FOLDER)
    attempt.save(1)
    bucket_server.faults.set(Rule(method="POST", status=503))
    assert attempt.manager.save(manifest(2), groups(2))
    with pytest.raises(TryAgain, match="does not answer"):
        attempt.manager.wait()
    assert "step-00000002" in attempt.said[-1]
    bucket_server.faults.set()
    attempt.save(3)
    assert (steps(), Attempt(FOLDER).resumed_at) == ([1, 3], 3)


def test_a_slow_upload_ends_at_its_limit(bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB in chunks of 16 KiB a second each never end within half a second."""
    attempt = Attempt(FOLDER)
    monkeypatch.setattr("contracts.stores.gcs.CHUNK_BYTES", 256 << 10)
    monkeypatch.setattr("google.cloud.storage.blob._MAX_MULTIPART_SIZE", 0)
    monkeypatch.setattr("trainer.checkpoint.manager.WRITE_TIMEOUT_S", 0.5)
    bucket_server.faults.set(Rule(method="PUT", latency_s=1.0))
    big = {"model": {"w": torch.zeros(512 << 10)}, "optimizer": {}}
    began = time.monotonic()
    assert attempt.manager.save(manifest(1), big)
    # Training is not held up by it.
    assert not attempt.manager.save(manifest(2), groups(2))
    with pytest.raises(TryAgain, match="it took longer than"):
        attempt.manager.wait()
    assert time.monotonic() - began < 60
    bucket_server.faults.set()
    assert Attempt(FOLDER).resumed_at is None


def test_a_zombie_in_the_bucket(bucket_server: BucketServer) -> None:
    """It uploads slowly while its successor starts, resumes and saves."""
    zombie = Attempt(FOLDER)
    zombie.save(10)
    gate = threading.Event()
    publish, hold = storage.publish_stream, threading.current_thread()

    def slow(*arguments: Any) -> str:
        if threading.current_thread() is not hold and ".000001/" in arguments[0]:
            assert gate.wait(60)
        return publish(*arguments)

    storage.publish_stream = slow  # type: ignore[assignment]
    try:
        zombie.manager.save(manifest(20), groups(20))
        successor = Attempt(FOLDER)
        assert successor.resumed_at == 10
        successor.save(15)
        gate.set()
        with pytest.raises(Superseded):
            zombie.manager.wait()
    finally:
        storage.publish_stream = publish
    assert Attempt(FOLDER).resumed_at == 15
