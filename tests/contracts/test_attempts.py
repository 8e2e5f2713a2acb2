"""What an attempt leaves on this machine's disk is copied to the bucket of its output."""

import gc
import json
from pathlib import Path

import pytest

from contracts import attempts, storage
from contracts.attempts import Copier
from contracts.errors import DataError
from contracts.events import EVENTS_NAME
from contracts.stage import Stage, run_stage
from rehearsal.gcs import BucketServer

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
ROOT = "gs://bucket-1/line/train"


def run(*more: str, keep: bool = True, fail: bool = False) -> int:
    """Run a stage that leaves a file for TensorBoard in its own folder, and fails or not."""

    def execute(stage: Stage) -> str:
        folder = stage.require_events_folder()
        stage.keep(folder / "tensorboard", storage.join(ROOT, "abc", "tensorboard"))
        (folder / "tensorboard").mkdir()
        (folder / "tensorboard" / "scalars").write_text("1")
        stage.log("works")
        if fail:
            raise DataError("given", allowed="allowed", todo="todo")
        return storage.join(ROOT, "abc")

    arguments = ["--attempt", "a", "--config-json", "{}", *more]
    try:
        return run_stage("train", execute, arguments, keep_attempt=keep)
    finally:
        gc.collect()


def kept() -> list[str]:
    return [entry.name for entry in storage.list_objects(ROOT)]


def test_events_errors_and_scalars_are_in_the_bucket_at_the_end(bucket_server: BucketServer) -> None:
    assert run("--root", ROOT, fail=True) == 2
    assert kept() == ["abc/tensorboard/scalars", "attempts/a/error.json", "attempts/a/events.jsonl"]
    events = storage.read_bytes(storage.join(ROOT, "attempts", "a", EVENTS_NAME)).decode().splitlines()
    assert [json.loads(event)["event"] for event in events] == ["start", "log", "error"]
    assert json.loads(storage.read_bytes(storage.join(ROOT, "attempts", "a", "error.json")))["exit_code"] == 2


def test_a_file_that_grows_is_copied_again(
    bucket_server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "COPY_INTERVAL_S", 0.01)
    copies = Copier()
    copies.add(tmp_path, "gs://bucket-1/grows/attempt")
    try:
        for content in (b"1", b"12"):
            (tmp_path / "events.jsonl").write_bytes(content)
            while not storage.exists("gs://bucket-1/grows/attempt/events.jsonl") or (
                storage.read_bytes("gs://bucket-1/grows/attempt/events.jsonl") != content
            ):
                pass
    finally:
        assert copies.close()
