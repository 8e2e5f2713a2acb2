"""Training whose output is in a bucket: checkpoints, the manifest, and what tells about it."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.trainer.launch.machines import Machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
ROOT = "gs://bucket-1/line/train"


@pytest.fixture
def machine(small_shards: str, bucket_server: BucketServer, tmp_path: Path) -> Iterator[Machine]:
    config = small_config(train={"epochs": 40}, checkpoint={"every_steps": 20})
    made = Machine(tmp_path, small_shards, config, output=ROOT)
    yield made
    made.end()
    gc.collect()


def test_training_into_a_bucket_goes_on_after_its_machine_was_lost(machine: Machine) -> None:
    def checkpoints() -> list[str]:
        names = [entry.name for entry in storage.list_objects(ROOT)]
        return [name for name in names if "/checkpoints/" in name and name.endswith("/manifest.json")]

    machine.start()
    machine.wait_for(lambda: len(checkpoints()) > 0)
    machine.kill()
    machine.start()
    assert machine.wait() == 0, machine.stderr()
    uri = machine.printed.splitlines()[-1]
    assert uri.startswith(ROOT)
    assert CheckpointManifest.load(uri).finished
    names = [entry.name for entry in storage.list_objects(ROOT)]
    for kept in ("events.jsonl", "assignment.json"):
        assert f"attempts/{machine.attempts[-1]}/{kept}" in names
    assert "continues from" in storage.read_bytes(f"{ROOT}/attempts/{machine.attempts[-1]}/events.jsonl").decode()
    assert any("/tensorboard/events.out" in name for name in names)
